"""`python -m bench`: measure, print a table, keep JSON lines; with `budget`, say where the time goes."""

from __future__ import annotations

import argparse
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench.budget.report import print_budgets
from bench.lines.registry import LINES, select
from bench.measure import FULL, QUICK
from bench.report import report
from bench.timing import measure_all

_BUDGET: Final = "budget"
_RESULTS: Final = Path(__file__).resolve().parent / "results"


def main() -> int:
    """Run the chosen lines; 1 if one failed, 2 if a name fits none, 130 if stopped."""
    arguments = _arguments()
    if arguments.list:
        width = max(len(line.name) for line in LINES)
        for line in LINES:
            print(f"{line.name:<{width}}  {line.what}")
        return 0
    pace = QUICK if arguments.quick else FULL
    if arguments.names == [_BUDGET]:
        _forget_settings()
        return print_budgets(pace)
    lines = select(arguments.names)
    if not lines:
        print(f"no line is named {' or '.join(arguments.names)}; see --list", file=sys.stderr)
        return 2
    _forget_settings()
    if arguments.repeat is not None:
        pace = pace._replace(rounds=arguments.repeat)
    if arguments.all:
        pace = pace._replace(grows=True)
    began = datetime.now(UTC)
    kept = _file(arguments.results, began)
    try:
        outcome = measure_all(lines, pace, kept, began, quick=arguments.quick)
    except KeyboardInterrupt:
        print(f"\nstopped; what was measured is kept in {kept}", file=sys.stderr)
        return 130
    if arguments.json:
        sys.stdout.buffer.write(kept.read_bytes())
    else:
        print(f"{report.machine_line(outcome.facts)}\n\n{report.table(outcome.found)}\n\nkept in {kept}")
        if not outcome.failed:
            print(f"To make docs/project/benchmarks.md of it: python -m bench.report.page {kept}")
    if outcome.failed:
        failed = " ".join(outcome.failed)
        print(f"failed: {failed}; run these again, and make the page of both files", file=sys.stderr)
    return 1 if outcome.failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure the mesh next to raw limits and peers."
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="only lines whose name holds this; 'budget': the processor time of hot paths by layer",
    )
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


def _file(folder: Path, began: datetime) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{began:%Y%m%dT%H%M%S.%fZ}.jsonl"


if __name__ == "__main__":
    raise SystemExit(main())
