"""The course of a run: line after line, each kept before the next begins.

A line that fails, or at which the run is stopped, costs no other; only the server is for all.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from bench import machine
from bench.environment import BenchEnvironment
from bench.figures import Found
from bench.lines.registry import Line, plane_of
from bench.measure import Pace
from bench.report.records import Record, written
from tools.sqld import Server
from vox_mesh import run


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has found, and which of its lines failed."""

    facts: Mapping[str, Any]
    found: list[Found] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def measure_all(lines: Sequence[Line], pace: Pace, kept: Path, began: datetime, *, quick: bool) -> Outcome:
    """Measure the lines in turn, and append their results to the file `kept`."""
    with ExitStack() as stack:
        file = stack.enter_context(kept.open("ab", buffering=0))
        needs_server = any(line.needs_server for line in lines)
        server = stack.enter_context(Server()) if needs_server else None
        outcome = Outcome(machine.facts(server))
        about = {"quick": quick, "at": f"{began:%Y-%m-%dT%H:%M:%SZ}", "machine": outcome.facts}
        for line in lines:
            print(f"measuring {line.name}: {line.what}", end="", file=sys.stderr, flush=True)
            before = perf_counter()
            try:
                found = _measure(line, server, pace)
                file.write(written([Record(plane_of(line).name, line.name, each, about) for each in found]))
            except Exception as error:
                outcome.failed.append(line.name)
                print(f" (failed: {type(error).__name__}: {error})", file=sys.stderr)
                traceback.print_exception(error)
                continue
            outcome.found.extend(found)
            print(f" ({perf_counter() - before:.0f} s)", file=sys.stderr)
    return outcome


def _measure(line: Line, server: Server | None, pace: Pace) -> Sequence[Found]:
    """In a folder of its own, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="vox-bench-") as folder:
        return run(line.run(BenchEnvironment(Path(folder), server, pace)))
