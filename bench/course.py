"""The course of a run: line after line, each kept before the next begins.

A line that fails, or at which the run is stopped, costs no other.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from bench import machine
from bench.figures import Found
from bench.ground import Ground
from bench.lines import Line, plane_of
from bench.measure import Pace
from bench.records import Record, written
from tools.sqld import Server
from vox_mesh import run


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has found, and which of its lines failed."""

    facts: Mapping[str, Any]
    found: list[Found] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def follow(lines: Sequence[Line], pace: Pace, kept: Path, began: datetime, *, quick: bool) -> Outcome:
    """Measure the lines in turn; what they find is added to the file `kept` as it comes."""
    with ExitStack() as stack:
        needs_server = any(line.needs_server for line in lines)
        server = stack.enter_context(Server()) if needs_server else None
        outcome = Outcome(machine.facts(server))
        about = {"quick": quick, "at": f"{began:%Y-%m-%dT%H:%M:%SZ}", "machine": outcome.facts}
        file = stack.enter_context(kept.open("ab", buffering=0))
        for line, found in _measured(lines, server, pace):
            if isinstance(found, Exception):
                outcome.failed.append(line.name)
                continue
            file.write(written([Record(plane_of(line).name, line.name, each, about) for each in found]))
            outcome.found.extend(found)
    return outcome


def _measured(
    lines: Sequence[Line], server: Server | None, pace: Pace
) -> Iterator[tuple[Line, Sequence[Found] | Exception]]:
    for line in lines:
        print(f"measuring {line.name}: {line.what}", end="", file=sys.stderr, flush=True)
        began = perf_counter()
        found: Sequence[Found] | Exception
        try:
            with tempfile.TemporaryDirectory(prefix="vox-bench-") as folder:
                found = run(line.run(Ground(Path(folder), server, pace)))
        except Exception as error:
            found = error
            print(f" (failed: {type(error).__name__}: {error})", file=sys.stderr)
        else:
            print(f" ({perf_counter() - began:.0f} s)", file=sys.stderr)
        yield line, found
