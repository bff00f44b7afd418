"""Have agents edit one repository: `python -m proof.editing --seconds 120 --seed 7 --store file`."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from proof.chaos.schedule import StoreKind
from proof.editing.environment import EditingRun, Plan
from proof.history import History
from proof.verdicts import Verdict

_FOLDER: Final = Path(".cache/editing")
_SEEDS: Final = 10**6
_LONGEST_S: Final = 3_600


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m proof.editing",
        description="Have agents edit one repository over MCP and hooks, kill one, and check the commits.",
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="length of the run (120)")
    parser.add_argument("--seed", type=int, help="drawn, and printed, if it is not given")
    parser.add_argument("--store", type=StoreKind, choices=list(StoreKind), default=StoreKind.FILE)
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
    plan = Plan(seed, args.seconds, args.store, args.plant)
    again = f"python -m proof.editing --seconds {plan.seconds:g} --seed {plan.seed} --store {plan.store}"
    print(again, flush=True)
    editing = EditingRun(plan, args.out or _FOLDER / f"{time.strftime('%Y%m%d-%H%M%S')}-{plan.store}-{seed}")
    try:
        asyncio.run(_run(editing))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("stopped: everything that was begun has been ended")
    history, verdicts = editing.evaluate()
    print(f"\n{_summary(history, verdicts)}\nwritten to {editing.folder}")
    if not all(verdict.holds for verdict in verdicts):
        sys.exit(f"BROKEN. Once more: {again}")


async def _run(editing: EditingRun) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await editing.run()


def _summary(history: History, verdicts: list[Verdict]) -> str:
    commits = Counter(note.data["author"] for note in history.notes("committed"))
    edits = Counter(note.who for note in history.notes("edit"))
    refusals = Counter(note.data["via"] for note in history.notes("refusal"))
    lines = [
        f"{edits.total()} edits: {_counted(edits)}",
        f"{commits.total()} commits: {_counted(commits)}",
        f"{refusals.total()} refusals: {_counted(refusals)}",
        f"{len(history.notes('sent'))} messages",
        *(f"woken {1_000 * seconds:.0f} ms after the message was sent" for seconds in _waking_s(history)),
    ]
    return "\n".join((*lines, *map(str, verdicts)))


def _waking_s(history: History) -> Iterator[float]:
    """Yield the time from each message that woke an agent, when its sender knew of it, to the agent awake."""
    for woken in history.notes("woken"):
        sent = [each.at for each in history.notes("sent") if each.data["to"] == woken.who]
        yield woken.at - max(sent, default=woken.at)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    main()
