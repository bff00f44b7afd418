"""The official MCP conformance suite finds no fault, over HTTP at each of two nodes, and over stdio."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.mcp.left_out import NODE, STDIO
from tests.support.mcp.stdio_bridge import stdio_bridge
from tests.support.mcp.suite import Outcome, judge, run_suite, scenarios
from tests.support.mcp.suite_mesh import SuiteMesh, suite_mesh
from tests.support.running.lengths import in_soak, only_at_full_length

SCENARIOS: Final = 65
"""All that the locked version of the suite has for servers. Another number: look at the new ones."""

NEWEST: Final = "2026-07-28"
OLDER: Final = ("2025-03-26", "2025-06-18", "2025-11-25")


async def check(
    url: str, mesh: SuiteMesh, folder: Path, left_out: Mapping[str, str], revision: str | None
) -> None:
    """Run the suite, and see that every applicable scenario passes."""
    out = folder / f"results-{revision}"
    outcomes = await asyncio.to_thread(run_suite, url, out, bearer=mesh.token, revision=revision)
    assert set(outcomes) == scenarios(revision)
    assert judge(outcomes, left_out) == []


def test_all_scenarios_of_the_suite_are_known() -> None:
    known = scenarios()
    assert len(known) == SCENARIOS
    assert {name.partition(":")[0] for name in NODE} <= known


def test_what_is_left_out_is_documented_with_its_reason() -> None:
    page = (Path(__file__).parents[3] / "docs" / "project" / "reliability.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("|")]
    for name, reason in STDIO.items():
        assert any(f"`{name}`" in row and row.endswith(f"| {reason} |") for row in rows), name


async def test_both_nodes_of_a_mesh_conform(tmp_path: Path) -> None:
    async with suite_mesh(tmp_path, "one", "two") as mesh, asyncio.TaskGroup() as runs:
        runs.create_task(check(mesh.url(), mesh, tmp_path, NODE, NEWEST))
        runs.create_task(check(mesh.url(1), mesh, tmp_path, NODE, None))


@only_at_full_length
@pytest.mark.soak
async def test_the_first_node_conforms_in_all_scenarios(tmp_path: Path) -> None:
    async with suite_mesh(tmp_path, "one") as mesh:
        await check(mesh.url(), mesh, tmp_path, NODE, None)


@pytest.mark.soak
@pytest.mark.timeout(600)  # each of its sessions starts a process
@pytest.mark.parametrize("revision", [NEWEST, *in_soak(None)])
async def test_the_command_conforms_on_stdin_and_stdout(tmp_path: Path, revision: str | None) -> None:
    async with suite_mesh(tmp_path, "one") as mesh, stdio_bridge(*mesh.pipe()) as (url, bridge):
        await check(url, mesh, tmp_path, STDIO, revision)
    assert {*bridge.endings} == {0}


@only_at_full_length
@pytest.mark.soak
async def test_a_node_conforms_to_older_revisions(tmp_path: Path) -> None:
    async with suite_mesh(tmp_path, "one") as mesh:
        for revision in OLDER:
            await check(mesh.url(), mesh, tmp_path, NODE, revision)


def test_a_scenario_is_left_out_only_if_it_does_not_pass() -> None:
    outcomes = {
        "good": Outcome(2, {}),
        "bad": Outcome(1, {"a": "FAILURE a: wrong", "b": "WARNING b: odd"}),
        "skipped": Outcome(0, {}),
    }
    assert judge(outcomes, {}) == [
        "bad: FAILURE a: wrong",
        "bad: WARNING b: odd",
        "skipped was skipped",
    ]
    assert judge(outcomes, {"bad:a": "", "bad:b": "", "skipped": ""}) == []
    assert judge(outcomes, {"bad": "", "skipped": "", "good": ""}) == [
        "good passes: it must not be left out",
    ]
    assert judge({"good": Outcome(2, {})}, {"good:a": ""}) == ["good:a passes: it must not be left out"]
