"""The budgets as tables in Markdown."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import machine
from bench.budget.budget import THREADS, Budget, measure
from bench.budget.layers import LAYERS
from bench.measure import Pace
from bench.report.report import machine_line
from tools.sqld import Server
from vox_mesh import run


def print_budgets(pace: Pace) -> int:
    """Measure all budgets, and print them."""
    with tempfile.TemporaryDirectory(prefix="vox-bench-") as folder, Server() as server:
        facts = machine.facts(server)
        budgets = run(measure(Path(folder), server, pace))
    print(machine_line(facts), *summary(budgets), "", *layers(budgets), sep="\n")
    return 0


def summary(budgets: Sequence[Budget]) -> list[str]:
    """Return a row for each path: ours, the floor, what is above it."""
    rows = [
        "| path | one operation | ours | floor | above it | ratio | statements | calls |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in budgets:
        above, ratio = each.ours - each.floor, each.ours / each.floor
        rows.append(
            f"| `{each.name}` | {each.what} | {each.ours:,.0f} us | {each.floor:,.0f} us | {above:,.0f} us "
            f"| {ratio:.1f} x | {each.statements:.1f} | {each.calls:,.0f} |"
        )
    return rows


def layers(budgets: Sequence[Budget]) -> list[str]:
    """Return a row for each layer: its microseconds in each path."""
    heads = " | ".join(f"`{each.name}`" for each in budgets)
    rows = [f"| layer | {heads} |", f"| --- |{' --- |' * len(budgets)}"]
    for layer in (*LAYERS, THREADS):
        spent = " | ".join(f"{each.layers[layer]:,.0f}" for each in budgets)
        rows.append(f"| {layer} | {spent} |")
    return rows
