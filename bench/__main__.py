"""`python -m bench`: measure, print a table, keep JSON lines."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from bench import machine, report
from bench.figures import Found
from bench.ground import Ground
from bench.lines import LINES, Line, chosen, plane_of
from bench.measure import FULL, QUICK, Pace
from bench.records import Record, written
from tools.sqld import Server
from vox_mesh import run

_RESULTS: Final = Path(__file__).resolve().parent / "results"


def main() -> int:
    """Run the chosen lines; 2 if a name fits none."""
    arguments = _arguments()
    if arguments.list:
        for line in LINES:
            print(f"{line.name:<20}{line.what}")
        return 0
    lines = chosen(arguments.names)
    if not lines:
        print(f"no line is named {' or '.join(arguments.names)}; see --list", file=sys.stderr)
        return 2
    _forget_settings()
    pace = QUICK if arguments.quick else FULL
    if arguments.repeat is not None:
        pace = pace._replace(rounds=arguments.repeat)
    if arguments.all:
        pace = pace._replace(grows=True)
    began = datetime.now(UTC)
    found, facts = _run(lines, pace)
    run = {"quick": arguments.quick, "at": f"{began:%Y-%m-%dT%H:%M:%SZ}", "machine": facts}
    records = [Record(plane_of(line).name, line.name, each, run) for line, each in found]
    kept = _keep(written(records), arguments.results)
    if arguments.json:
        sys.stdout.buffer.write(kept.read_bytes())
    else:
        table = report.table([each for _, each in found])
        print(f"{report.machine_line(facts)}\n\n{table}\n\nkept in {kept}")
        print(f"To make docs/benchmarks.md of it: python -m bench.page {kept}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure the mesh beside raw limits and peers."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only lines whose name holds this")
    parser.add_argument("--quick", action="store_true", help="a short look; the figures mean little")
    parser.add_argument("--repeat", type=_count, metavar="N", help="how many rounds of each side")
    parser.add_argument("--all", action="store_true", help="the largest sizes of growth, in a short look too")
    parser.add_argument("--list", action="store_true", help="name the lines and end")
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of the table")
    parser.add_argument("--results", type=Path, default=_RESULTS, metavar="FOLDER", help="where to keep them")
    return parser.parse_args()


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return count


def _forget_settings() -> None:
    """What is set for a real mesh must not reach a benchmark, nor the other way round."""
    for name in list(os.environ):
        if name.startswith(("VOX_", "TURSO_")):
            del os.environ[name]


def _run(lines: Sequence[Line], pace: Pace) -> tuple[list[tuple[Line, Found]], dict[str, Any]]:
    found: list[tuple[Line, Found]] = []
    with ExitStack() as stack:
        needs_server = any(line.needs_server for line in lines)
        server = stack.enter_context(Server()) if needs_server else None
        facts = machine.facts(server)
        for line in lines:
            print(f"measuring {line.name}: {line.what}", end="", file=sys.stderr, flush=True)
            began = perf_counter()
            with tempfile.TemporaryDirectory(prefix="vox-bench-") as folder:
                found += [(line, each) for each in run(line.run(Ground(Path(folder), server, pace)))]
            print(f" ({perf_counter() - began:.0f} s)", file=sys.stderr)
    return found, facts


def _keep(lines: bytes, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.jsonl"
    path.write_bytes(lines)
    return path


if __name__ == "__main__":
    raise SystemExit(main())
