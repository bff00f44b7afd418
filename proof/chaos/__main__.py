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

from proof.chaos.cluster import NAMES
from proof.chaos.environment import LOGS, PICTURE, Stage
from proof.chaos.schedule import DEFAULT_FAULTS, PACE, Kind, StoreKind, drawn
from proof.choosing import choices_of, chosen
from proof.history import History
from proof.plot import OPTIONAL_WORKLOADS, WORKLOADS
from proof.verdicts import Verdict

_FOLDER: Final = Path(".cache/chaos")
_SEEDS: Final = 10**6
_LONGEST_S: Final = 86_400


def _asked() -> argparse.Namespace:
    asking = argparse.ArgumentParser(
        prog="python -m proof.chaos", description="Real processes, a nemesis, and what is to be said of it."
    )
    asking.add_argument("--seconds", type=float, default=180.0, help="how long things go wrong (180)")
    asking.add_argument("--seed", type=int, help="what is drawn, and printed, if it is not given")
    asking.add_argument("--store", type=StoreKind, choices=list(StoreKind), default=StoreKind.FILE)
    asking.add_argument("--nodes", type=int, default=4, help=f"how many players, from 2 to {len(NAMES)} (4)")
    asking.add_argument(
        "--rest",
        type=float,
        default=PACE.rest_s,
        metavar="S",
        help="between two deeds of a workload (%(default)s)",
    )
    asking.add_argument("--out", type=Path, help="a folder that is made for the history")
    asking.add_argument(
        "--faults",
        nargs="+",
        metavar="KIND",
        choices=choices_of(Kind, DEFAULT_FAULTS),
        help="kinds of faults to draw from (all that apply to the store)",
    )
    asking.add_argument(
        "--with", nargs="+", dest="only", metavar="WORKLOAD", choices=_workloads(), help="play no others"
    )
    asking.add_argument("--plant", default="", metavar="BUG", help="play with a planted bug")
    asked = asking.parse_args()
    if not 2 <= asked.nodes <= len(NAMES):
        asking.error(f"--nodes: from 2 to {len(NAMES)}")
    if not 0.01 <= asked.rest <= PACE.ttl_s:
        asking.error(f"--rest: from 0.01 to {PACE.ttl_s:g}")
    if not 1 <= asked.seconds <= _LONGEST_S:
        asking.error(f"--seconds: from 1 to {_LONGEST_S}")
    if asked.out is not None and asked.out.exists() and (not asked.out.is_dir() or any(asked.out.iterdir())):
        asking.error(f"--out: {asked.out} is there already, and not empty")
    if asked.plant and asked.plant not in _planted():
        asking.error(f"--plant: {asked.plant} is none of {', '.join(_planted())}")
    return asked


def _unless_usual(asked: argparse.Namespace) -> str:
    rest = "" if asked.rest == PACE.rest_s else f" --rest {asked.rest:g}"
    faults = f" --faults {' '.join(asked.faults)}" if asked.faults else ""
    faults += f" --with {' '.join(asked.only)}" if asked.only else ""
    return rest + faults + (f" --plant {asked.plant}" if asked.plant else "")


def _workloads() -> list[str]:
    return [each.name for each in (*WORKLOADS, *OPTIONAL_WORKLOADS)]


def _planted() -> Iterable[str]:
    from proof.mutants.plants import PLANTS  # nobody else need load them

    return PLANTS


def main() -> None:
    """Play, judge, tell; exit with 1 if a promise was broken."""
    asked = _asked()
    seed = secrets.randbelow(_SEEDS) if asked.seed is None else asked.seed
    kinds = chosen(asked.faults, Kind, DEFAULT_FAULTS)
    schedule = drawn(seed, asked.seconds, asked.store, NAMES[: asked.nodes], kinds)
    folder = asked.out or _FOLDER / f"{time.strftime('%Y%m%d-%H%M%S')}-{asked.store}-{seed}"
    again = (
        f"python -m proof.chaos --seconds {asked.seconds:g} --seed {seed} "
        f"--store {asked.store} --nodes {asked.nodes}{_unless_usual(asked)}"
    )
    print(f"{again}\n{schedule}", flush=True)
    began = time.monotonic()
    stage = Stage(schedule, folder, asked.plant, asked.rest, tuple(asked.only or ()))
    logging.basicConfig(filename=folder / LOGS / "stage.log", level=logging.INFO)
    try:
        asyncio.run(_played(stage))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("stopped: everything that was begun has been ended")
    except TimeoutError:
        sys.exit(f"the faults do not come to an end: see {folder / LOGS}\nOnce more: {again}")
    history, said = stage.judge()
    print(f"\n{_summary(stage, history, said)}\nin {time.monotonic() - began:.0f} s, written to {folder}")
    print(f"the picture is {folder / PICTURE}")
    if not all(verdict.holds for verdict in said):
        sys.exit(
            f"BROKEN. Once more: {again}\nThe same history, judged again: python -m proof.judge {folder}"
        )


async def _played(stage: Stage) -> None:
    playing = asyncio.current_task()
    assert playing is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, playing.cancel)
    await stage.play()


def _summary(stage: Stage, history: History, said: list[Verdict]) -> str:
    deeds = history.all_deeds
    steps = Counter(str(deed.step) for deed in deeds)
    kinds = Counter(event.data["kind"] for event in history.notes("fault.began"))
    missed = Counter(event.data["kind"] for event in history.notes("fault.left_out"))
    plan = stage.schedule
    lines = [
        f"seed {plan.seed}, {plan.seconds:g} s on {plan.store}, {len(plan.players)} players",
        f"{len(deeds)} operations: " + ", ".join(f"{count} {step}" for step, count in sorted(steps.items())),
        f"{sum(kinds.values())} faults: " + ", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items())),
    ]
    points = [len(history.notes(f"point.{end}")) for end in ("reached", "missed")]
    lines.append("killed at a point of the code {} times; {} times it was not reached".format(*points))
    if missed:
        lines.append("left out: " + ", ".join(f"{kind} {n}" for kind, n in sorted(missed.items())))
    return "\n".join((*lines, *map(str, said)))


if __name__ == "__main__":
    main()
