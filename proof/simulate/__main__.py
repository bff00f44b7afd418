"""Try seeds, and tell which of them break a promise: `python -m proof.simulate --seeds 1000`."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from proof.simulate.trial import SECONDS, Trial, tried
from proof.verdicts import Verdict

Plant = Callable[[str], object]
"""Plants the fault of this name in the program that is tried, before anything of it runs."""

_PROGRESS_S: Final = 10.0
_HOUR_S: Final = 3_600


class Tally:
    """All trials so far."""

    def __init__(self, command: Callable[[int], str]) -> None:
        self._command = command
        self._looks: Counter[str] = Counter()
        self.seeds = self.deeds = self.faults = 0
        self.seconds = 0.0
        self.broken: list[Trial] = []

    def add(self, trial: Trial) -> None:
        """One more."""
        self.seeds += 1
        self.deeds += trial.deeds
        self.faults += trial.faults
        self.seconds += trial.seconds
        for verdict in trial.verdicts:
            self._looks[verdict.name] += verdict.looks
        if not trial.holds:
            self.broken.append(trial)

    def __str__(self) -> str:
        hours = self.seconds / _HOUR_S
        return (
            f"{self.seeds} seeds, {hours:.1f} hours of simulated time, {self.deeds} deeds, "
            f"{self.faults} faults, {len(self.broken)} broken"
        )

    def told(self) -> str:
        """All of it, for people."""
        lines = [str(self)]
        lines += [f"  {name:<28} {looks:>10} looks" for name, looks in self._looks.items()]
        for trial in self.broken:
            lines += ["", f"seed {trial.seed} ({', '.join(trial.workloads)}) broke:"]
            lines += [str(verdict) for verdict in trial.broken]
            lines.append(f"again: {self._command(trial.seed)}")
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {
            "seeds": self.seeds,
            "simulated_s": round(self.seconds, 3),
            "deeds": self.deeds,
            "faults": self.faults,
            "looks": dict(self._looks),
            "broken": [self._broken(trial) for trial in self.broken],
        }

    def _broken(self, trial: Trial) -> dict[str, Any]:
        return {
            "seed": trial.seed,
            "workloads": trial.workloads,
            "digest": trial.digest,
            "verdicts": [_document(verdict) for verdict in trial.broken],
            "again": self._command(trial.seed),
        }


def _document(verdict: Verdict) -> dict[str, Any]:
    return {"check": verdict.name, "faults": verdict.faults, "count": verdict.count}


def main(arguments: list[str] | None = None, plant: Plant | None = None) -> int:
    """Try the seeds that the arguments name; 1 if one of them broke a promise."""
    asked = _parser().parse_args(arguments)
    if asked.plant is not None:
        if plant is None:
            sys.exit("nothing can be planted here: see python -m proof.mutants")
        plant(asked.plant)
    seeds = range(asked.first, asked.first + asked.seeds) if asked.seed is None else [asked.seed]
    tally = Tally(partial(_command, asked))
    try:
        with _trials(seeds, asked) as trials:
            for trial in _with_progress(trials, tally, asked):
                tally.add(trial)
                if asked.until_broken and tally.broken:
                    break
    except KeyboardInterrupt:
        print(f"stopped: {tally}", file=sys.stderr)
        return 1
    print(json.dumps(tally.document()) if asked.json else tally.told())
    return 1 if tally.broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m proof.simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many")
    parser.add_argument("--first", type=int, default=1, metavar="K", help="the first of them")
    parser.add_argument("--seed", type=int, metavar="S", help="this one alone")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="V", help="of simulated time in which things go wrong"
    )
    parser.add_argument("--history", type=Path, metavar="FOLDER", help="where histories of broken seeds go")
    parser.add_argument("--processes", type=int, default=1, metavar="P", help="so many at the same time")
    parser.add_argument("--until-broken", action="store_true", help="end with the first that breaks")
    parser.add_argument("--json", action="store_true", help="tell it as one JSON document")
    parser.add_argument("--plant", metavar="NAME", help="plant a fault in the program before")
    return parser


def _command(asked: argparse.Namespace, seed: int) -> str:
    """What plays a seed again."""
    seconds = "" if asked.seconds == SECONDS else f" --seconds {asked.seconds:g}"
    plant = "" if asked.plant is None else f" --plant {asked.plant}"
    return f"python -m proof.simulate --seed {seed}{seconds}{plant} --history history"


@contextmanager
def _trials(seeds: Iterable[int], asked: argparse.Namespace) -> Iterator[Iterator[Trial]]:
    """The trials of seeds, in their order."""
    attempt = partial(_tried, seconds=asked.seconds, folder=asked.history)
    if asked.processes == 1:
        yield map(attempt, seeds)
        return
    with multiprocessing.get_context("fork").Pool(asked.processes, _ignore_interrupts) as pool:
        yield pool.imap(attempt, seeds, chunksize=4)


def _ignore_interrupts() -> None:
    """Whoever began us ends us."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _tried(seed: int, seconds: float, folder: Path | None) -> Trial:
    return tried(seed, seconds, None if folder is None else folder / str(seed))


def _with_progress(trials: Iterator[Trial], tally: Tally, asked: argparse.Namespace) -> Iterator[Trial]:
    """Say now and then how far it is."""
    due = time.monotonic() + _PROGRESS_S
    for trial in trials:
        yield trial
        if not asked.json and time.monotonic() >= due:
            print(tally, file=sys.stderr, flush=True)
            due = time.monotonic() + _PROGRESS_S


if __name__ == "__main__":
    sys.exit(main())
