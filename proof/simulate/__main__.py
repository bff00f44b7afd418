"""Try seeds, and tell which of them break a promise: `python -m proof.simulate --seeds 1000`."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from proof import plot
from proof.choosing import choices_of, chosen
from proof.simulate.faults import DEFAULT_FAULTS, Kind
from proof.simulate.loop import Stuck
from proof.simulate.tally import StuckSeed, Tally
from proof.simulate.trial import SECONDS, Trial, tried

_PROGRESS_S: Final = 10.0
_AT_A_TIME: Final = 4
"""Seeds that a process is given together."""


def main() -> None:
    """Try the seeds that the arguments name; exit with 1 if one of them broke a promise."""
    asked = _parser().parse_args()
    seeds = range(asked.first, asked.first + asked.seeds) if asked.seed is None else [asked.seed]
    tally = Tally(partial(_command, asked))
    try:
        with _trials(seeds, asked) as trials:
            for trial in _with_progress(trials, tally, asked.json):
                tally.add(trial)
                if isinstance(trial, Trial) and _is_enough(asked, trial):
                    break
    except KeyboardInterrupt:
        sys.exit(f"stopped: {tally.told()}")
    print(json.dumps(tally.document()) if asked.json else tally.told())
    sys.exit(1 if tally.broken or tally.stuck else 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m proof.simulate", description=__doc__)
    add = parser.add_argument
    add("--seeds", type=int, default=100, metavar="N", help="how many")
    add("--first", type=int, default=1, metavar="K", help="the first of them")
    add("--seed", type=int, metavar="S", help="this one alone")
    add("--seconds", type=float, default=SECONDS, metavar="V", help="of simulated time until all heals")
    add("--slow", type=float, default=1.0, metavar="K", help="K times as slow: hours instead of minutes")
    add("--history", type=Path, metavar="FOLDER", help="where the histories go")
    add("--processes", type=int, default=1, metavar="P", help="so many seeds at the same time")
    add("--until-broken", action="store_true", help="end with the first seed that breaks")
    add("--until", nargs="+", default=(), metavar="CHECK", help="end with the first that breaks one of these")
    add("--with", nargs="+", dest="only", metavar="WORKLOAD", choices=_names(), help="play no others")
    add("--faults", nargs="+", metavar="KIND", choices=choices_of(Kind), help="these kinds, and no others")
    add("--json", action="store_true", help="tell it as one JSON document")
    return parser


def _names() -> list[str]:
    return [each.name for each in (*plot.WORKLOADS, *plot.OPTIONAL_WORKLOADS)]


def _is_enough(asked: argparse.Namespace, trial: Trial) -> bool:
    broken = {verdict.name for verdict in trial.broken}
    return bool(broken.intersection(asked.until) or (asked.until_broken and broken))


def _command(asked: argparse.Namespace, seed: int) -> str:
    """What plays a seed again."""
    seconds = "" if asked.seconds == SECONDS else f" --seconds {asked.seconds:g}"
    slow = "" if asked.slow == 1.0 else f" --slow {asked.slow:g}"
    only = f" --with {' '.join(asked.only)}" if asked.only else ""
    faults = f" --faults {' '.join(asked.faults)}" if asked.faults else ""
    return f"python -m proof.simulate --seed {seed}{seconds}{slow}{only}{faults} --history history"


@contextmanager
def _trials(seeds: Iterable[int], asked: argparse.Namespace) -> Iterator[Iterator[Trial | StuckSeed]]:
    """The trials of seeds, in their order."""
    faults = chosen(asked.faults, Kind, DEFAULT_FAULTS)
    play = partial(tried, seconds=asked.seconds, only=asked.only, slowness=asked.slow, faults=faults)
    attempt = partial(_tried, play=play, folder=asked.history)
    if asked.processes == 1:
        yield map(attempt, seeds)
        return
    with multiprocessing.get_context("fork").Pool(asked.processes, _leave_interrupts) as pool:
        yield pool.imap(attempt, seeds, chunksize=_AT_A_TIME)


def _leave_interrupts() -> None:
    """Whoever began this process ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _tried(seed: int, play: Callable[..., Trial], folder: Path | None) -> Trial | StuckSeed:
    try:
        return play(seed, folder=None if folder is None else folder / str(seed))
    except Stuck as error:
        return StuckSeed(seed, str(error))


def _with_progress(
    trials: Iterator[Trial | StuckSeed], tally: Tally, is_quiet: bool
) -> Iterator[Trial | StuckSeed]:
    """Say now and then how far it is."""
    due = time.monotonic() + _PROGRESS_S
    for trial in trials:
        yield trial
        if not is_quiet and time.monotonic() >= due:
            print(tally, file=sys.stderr, flush=True)
            due = time.monotonic() + _PROGRESS_S


if __name__ == "__main__":
    main()
