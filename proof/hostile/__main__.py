"""Attack a mesh: `python -m proof.hostile --seconds 60 --seed 7 --store file`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

from proof.chaos.schedule import StoreKind
from proof.checkers.hostile import lag_summary
from proof.history import History
from proof.hostile.environment import LOGS, Attack, HostileRun, Plan
from proof.verdicts import Verdict

_FOLDER: Final = Path(".cache/hostile")
_SEEDS: Final = 10**6
_LONGEST_S: Final = 86_400


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m proof.hostile",
        description="Attack a mesh with hostile requests and hostile rows, and check that it holds.",
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the run (60)")
    parser.add_argument("--seed", type=int, help="drawn, and printed, if it is not given")
    parser.add_argument("--store", type=StoreKind, choices=list(StoreKind), default=StoreKind.FILE)
    parser.add_argument(
        "--with",
        nargs="+",
        dest="attacks",
        metavar="ATTACK",
        choices=list(Attack),
        type=Attack,
        default=list(Attack),
        help=f"kinds of attacks, of {', '.join(Attack)} (all)",
    )
    parser.add_argument("--out", type=Path, help="a folder that is made for the history")
    parser.add_argument("--plant", default="", metavar="BUG", help="run with a planted bug")
    args = parser.parse_args()
    if not 1 <= args.seconds <= _LONGEST_S:
        parser.error(f"--seconds: from 1 to {_LONGEST_S}")
    return args


def main() -> None:
    """Run, check and report; exit with 1 if a promise was broken."""
    args = _parse_args()
    seed = secrets.randbelow(_SEEDS) if args.seed is None else args.seed
    plan = Plan(seed, args.seconds, args.store, frozenset(args.attacks), args.plant)
    again = f"python -m proof.hostile --seconds {plan.seconds:g} --seed {plan.seed} --store {plan.store}"
    if plan.attacks != frozenset(Attack):
        again += f" --with {' '.join(sorted(plan.attacks))}"
    print(again, flush=True)
    folder = args.out or _FOLDER / f"{time.strftime('%Y%m%d-%H%M%S')}-{plan.store}-{plan.seed}"
    hostile = HostileRun(plan, folder)
    logging.basicConfig(filename=folder / LOGS / "stage.log", level=logging.INFO)
    try:
        asyncio.run(_run(hostile))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("stopped: everything that was begun has been ended")
    history, verdicts = hostile.evaluate()
    print(f"\n{_summary(history, verdicts)}\nwritten to {folder}")
    if not all(verdict.holds for verdict in verdicts):
        sys.exit(f"BROKEN. Once more: {again}")


async def _run(hostile: HostileRun) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await hostile.run()


def _summary(history: History, verdicts: list[Verdict]) -> str:
    answers = Counter(str(each.data["status"]) for each in history.notes("hostile.answer"))
    writes = Counter(each.data["way"] for each in history.notes("hostile.write") if not each.data["refused"])
    forged = Counter(each.data["way"] for each in history.notes("forgery") if not each.data["refused"])
    done = Counter(each.what for each in history.all_operations if each.is_ok)
    lines = [
        f"{answers.total()} requests: {_counted(answers)}",
        f"{writes.total()} rows written: {_counted(writes)}",
        f"{forged.total()} forgeries: {_counted(forged)}",
        f"honest work done: {_counted(done)}",
        *lag_summary(history),
    ]
    errors = Counter(each.data["where"].partition(":")[0] for each in history.notes("unexpected"))
    if errors:
        lines.append(f"internal errors, also of vandalism: {_counted(errors)}")
    return "\n".join((*lines, *map(str, verdicts)))


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    main()
