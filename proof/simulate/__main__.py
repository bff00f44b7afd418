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

from proof import suite
from proof.fault_kinds import choices_of, select_kinds
from proof.simulate.faults import DEFAULT_FAULTS, Kind
from proof.simulate.loop import Stuck
from proof.simulate.tally import StuckSeed, Tally
from proof.simulate.trial import SECONDS, Trial, run_seed

_PROGRESS_S: Final = 10.0
_AT_A_TIME: Final = 4
"""Seeds that a worker process gets at a time."""


def main() -> None:
    """Run the seeds that the arguments name; exit with 1 if one of them broke a promise."""
    args = _parser().parse_args()
    seeds = range(args.first, args.first + args.seeds) if args.seed is None else [args.seed]
    tally = Tally(partial(_command, args))
    try:
        with _run_trials(seeds, args) as trials:
            for trial in _report_progress(trials, tally, args.json):
                tally.add(trial)
                if isinstance(trial, Trial) and _should_stop(args, trial):
                    break
    except KeyboardInterrupt:
        sys.exit(f"stopped: {tally.report()}")
    print(json.dumps(tally.document()) if args.json else tally.report())
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
    add("--processes", type=int, default=1, metavar="P", help="seeds at the same time")
    add("--until-broken", action="store_true", help="end with the first seed that breaks")
    add("--until", nargs="+", default=(), metavar="CHECK", help="end with the first that breaks one of these")
    add("--with", nargs="+", dest="only", metavar="WORKLOAD", choices=_names(), help="play no others")
    add("--faults", nargs="+", metavar="KIND", choices=choices_of(Kind), help="these kinds, and no others")
    add("--json", action="store_true", help="tell it as one JSON document")
    return parser


def _names() -> list[str]:
    return [each.name for each in (*suite.WORKLOADS, *suite.OPTIONAL_WORKLOADS)]


def _should_stop(args: argparse.Namespace, trial: Trial) -> bool:
    broken = {verdict.name for verdict in trial.broken}
    return bool(broken.intersection(args.until) or (args.until_broken and broken))


def _command(args: argparse.Namespace, seed: int) -> str:
    """Return the command that runs a seed again."""
    seconds = "" if args.seconds == SECONDS else f" --seconds {args.seconds:g}"
    slow = "" if args.slow == 1.0 else f" --slow {args.slow:g}"
    only = f" --with {' '.join(args.only)}" if args.only else ""
    faults = f" --faults {' '.join(args.faults)}" if args.faults else ""
    return f"python -m proof.simulate --seed {seed}{seconds}{slow}{only}{faults} --history history"


@contextmanager
def _run_trials(seeds: Iterable[int], args: argparse.Namespace) -> Iterator[Iterator[Trial | StuckSeed]]:
    """Yield the trials of the seeds, in their order."""
    faults = select_kinds(args.faults, Kind, DEFAULT_FAULTS)
    run_one = partial(run_seed, seconds=args.seconds, only=args.only, slowness=args.slow, faults=faults)
    attempt = partial(_run_or_give_up, run_one=run_one, folder=args.history)
    if args.processes == 1:
        yield map(attempt, seeds)
        return
    with multiprocessing.get_context("fork").Pool(args.processes, _leave_interrupts) as pool:
        yield pool.imap(attempt, seeds, chunksize=_AT_A_TIME)


def _leave_interrupts() -> None:
    """Ignore Ctrl-C: the parent process stops this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run_or_give_up(seed: int, run_one: Callable[..., Trial], folder: Path | None) -> Trial | StuckSeed:
    try:
        return run_one(seed, folder=None if folder is None else folder / str(seed))
    except Stuck as error:
        return StuckSeed(seed, str(error))


def _report_progress(
    trials: Iterator[Trial | StuckSeed], tally: Tally, is_quiet: bool
) -> Iterator[Trial | StuckSeed]:
    """Print the progress from time to time."""
    due = time.monotonic() + _PROGRESS_S
    for trial in trials:
        yield trial
        if not is_quiet and time.monotonic() >= due:
            print(tally, file=sys.stderr, flush=True)
            due = time.monotonic() + _PROGRESS_S


if __name__ == "__main__":
    main()
