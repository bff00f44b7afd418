"""Chaos: `python -m proof.chaos --seconds 180 --seed 7 --store file`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from proof.chaos.builds import BuildMissing
from proof.chaos.cluster import NAMES
from proof.chaos.environment import LOGS, PICTURE, Environment
from proof.chaos.schedule import DEFAULT_FAULTS, PACE, Kind, StoreKind, draw_schedule
from proof.fault_kinds import choices_of, select_kinds
from proof.history import History
from proof.suite import OPTIONAL_WORKLOADS, WORKLOADS
from proof.verdicts import Verdict

_FOLDER: Final = Path(".cache/chaos")
_SEEDS: Final = 10**6
_LONGEST_S: Final = 86_400


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m proof.chaos", description="Real processes, a nemesis, and what is to be said of it."
    )
    parser.add_argument("--seconds", type=float, default=180.0, help="how long things go wrong (180)")
    parser.add_argument("--seed", type=int, help="what is drawn, and printed, if it is not given")
    parser.add_argument("--store", type=StoreKind, choices=list(StoreKind), default=StoreKind.FILE)
    parser.add_argument("--nodes", type=int, default=4, help=f"number of nodes, from 2 to {len(NAMES)} (4)")
    parser.add_argument(
        "--rest",
        type=float,
        default=PACE.rest_s,
        metavar="S",
        help="between two deeds of a workload (%(default)s)",
    )
    parser.add_argument("--out", type=Path, help="a folder that is made for the history")
    parser.add_argument(
        "--faults",
        nargs="+",
        metavar="KIND",
        choices=choices_of(Kind, DEFAULT_FAULTS),
        help="kinds of faults to draw from (all that apply to the store)",
    )
    parser.add_argument(
        "--with", nargs="+", dest="only", metavar="WORKLOAD", choices=_workloads(), help="play no others"
    )
    parser.add_argument(
        "--builds",
        nargs=2,
        metavar=("OLDER", "NEWER"),
        default=(),
        help="replace each node by the newer build and back: this, next, earlier, or a revision of git",
    )
    parser.add_argument("--plant", default="", metavar="BUG", help="play with a planted bug")
    args = parser.parse_args()
    if not 2 <= args.nodes <= len(NAMES):
        parser.error(f"--nodes: from 2 to {len(NAMES)}")
    if not 0.01 <= args.rest <= PACE.ttl_s:
        parser.error(f"--rest: from 0.01 to {PACE.ttl_s:g}")
    if not 1 <= args.seconds <= _LONGEST_S:
        parser.error(f"--seconds: from 1 to {_LONGEST_S}")
    if args.out is not None and args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        parser.error(f"--out: {args.out} is there already, and not empty")
    if args.plant and args.plant not in _planted():
        parser.error(f"--plant: {args.plant} is none of {', '.join(_planted())}")
    return args


def _unusual_options(args: argparse.Namespace) -> str:
    rest = "" if args.rest == PACE.rest_s else f" --rest {args.rest:g}"
    faults = f" --faults {' '.join(args.faults)}" if args.faults else ""
    faults += f" --with {' '.join(args.only)}" if args.only else ""
    faults += f" --builds {' '.join(args.builds)}" if args.builds else ""
    return rest + faults + (f" --plant {args.plant}" if args.plant else "")


def _workloads() -> list[str]:
    return [each.name for each in (*WORKLOADS, *OPTIONAL_WORKLOADS)]


def _planted() -> Iterable[str]:
    from proof.mutants.planted_bugs import PLANTS  # only needed for this option

    return PLANTS


def main() -> None:
    """Run, check and report; exit with 1 if a promise was broken."""
    args = _parse_args()
    seed = secrets.randbelow(_SEEDS) if args.seed is None else args.seed
    kinds = select_kinds(args.faults, Kind, DEFAULT_FAULTS)
    schedule = draw_schedule(seed, args.seconds, args.store, NAMES[: args.nodes], kinds, tuple(args.builds))
    folder = args.out or _FOLDER / f"{time.strftime('%Y%m%d-%H%M%S')}-{args.store}-{seed}"
    again = (
        f"python -m proof.chaos --seconds {args.seconds:g} --seed {seed} "
        f"--store {args.store} --nodes {args.nodes}{_unusual_options(args)}"
    )
    print(f"{again}\n{schedule}", flush=True)
    began = time.monotonic()
    try:
        environment = Environment(schedule, folder, args.plant, args.rest, tuple(args.only or ()))
    except BuildMissing as error:
        sys.exit(f"--builds: {error}")
    logging.basicConfig(filename=folder / LOGS / "stage.log", level=logging.INFO)
    try:
        asyncio.run(_run(environment))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("stopped: everything that was begun has been ended")
    except TimeoutError:
        sys.exit(f"the faults do not come to an end: see {folder / LOGS}\nOnce more: {again}")
    history, verdicts = environment.evaluate()
    summary = _summary(environment, history, verdicts)
    print(f"\n{summary}\nin {time.monotonic() - began:.0f} s, written to {folder}")
    print(f"the picture is {folder / PICTURE}")
    if not all(verdict.holds for verdict in verdicts):
        sys.exit(
            f"BROKEN. Once more: {again}\nThe same history, judged again: python -m proof.judge {folder}"
        )


async def _run(environment: Environment) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await environment.run()


def _summary(environment: Environment, history: History, verdicts: list[Verdict]) -> str:
    operations = history.all_operations
    steps = Counter(str(operation.step) for operation in operations)
    kinds = Counter(event.data["kind"] for event in history.notes("fault.began"))
    missed = Counter(event.data["kind"] for event in history.notes("fault.left_out"))
    plan = environment.schedule
    lines = [
        f"seed {plan.seed}, {plan.seconds:g} s on {plan.store}, {len(plan.nodes)} nodes",
        f"{len(operations)} operations: "
        + ", ".join(f"{count} {step}" for step, count in sorted(steps.items())),
        f"{sum(kinds.values())} faults: " + ", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items())),
    ]
    points = [len(history.notes(f"point.{end}")) for end in ("reached", "missed")]
    lines.append("killed at a point of the code {} times; {} times it was not reached".format(*points))
    if missed:
        lines.append("left out: " + ", ".join(f"{kind} {n}" for kind, n in sorted(missed.items())))
    return "\n".join((*lines, *map(str, verdicts)))


if __name__ == "__main__":
    main()
