"""A trial: one seed is run and checked."""

from __future__ import annotations

import gc
import hashlib
import logging
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from proof import suite
from proof.crashes import CrashHandler
from proof.history import Event, History, Step
from proof.simulate.faults import DEFAULT_FAULTS, Kind, draw_plan
from proof.simulate.loop import Stuck
from proof.simulate.world import NODES, World, prepare_database
from proof.verdicts import Verdict, evaluate
from vox_mesh.model.base.keys import SigningKey

SECONDS: Final = 40.0
DEADLINE_S: Final = 20.0
"""CPU time for one seed: other processes may need the machine too."""

_AT_ONCE: Final = (1, 1, 2, 2, 3)
"""How many workloads run in one trial."""

_WITNESSES: Final = ("writes", "looks")
"""The workloads that detect a crash."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a seed."""

    seed: int
    workloads: tuple[str, ...]
    operations: int
    faults: int
    seconds: float
    """Of simulated time."""
    digest: str
    """The hash of its history: the same for every run of a seed."""
    verdicts: tuple[Verdict, ...]

    @property
    def holds(self) -> bool:
        """Whether every promise was kept."""
        return all(verdict.holds for verdict in self.verdicts)

    @property
    def broken(self) -> tuple[Verdict, ...]:
        """The promises that were not kept."""
        return tuple(verdict for verdict in self.verdicts if not verdict.holds)


def run_seed(
    seed: int,
    seconds: float = SECONDS,
    folder: Path | None = None,
    only: Sequence[str] | None = None,
    slowness: float = 1.0,
    faults: Set[Kind] = DEFAULT_FAULTS,
) -> Trial:
    """Run a seed and check its history, which is written into the folder, if there is one.

    With `only`, just these workloads run: that is another run than without. So is a slow run, though it has
    the same faults. `faults` are the kinds that may happen.
    """
    plan = draw_plan(seed, seconds, faults).slow_down(slowness)
    if only is None:
        only = _WITNESSES if plan.is_crash_only else _draw_workloads(seed)
    every = (*suite.WORKLOADS, *suite.OPTIONAL_WORKLOADS)
    workloads = [each for each in every if each.name in only]
    world = World(seed, plan, workloads, _image(), _keys(), _watch(DEADLINE_S * slowness))
    try:
        with _quietly(world), _without_gc():
            world.run()
    finally:
        if folder is not None:
            _write(folder, world.events)
    history = History(world.events)
    return Trial(
        seed,
        tuple(each.name for each in workloads),
        sum(event.step is Step.CALL for event in world.events),
        len(history.notes("fault.began")),
        world.loop.now,
        _digest(world.events),
        tuple(evaluate(check, history) for check in suite.CHECKS),
    )


def _draw_workloads(seed: int) -> Sequence[str]:
    rng = random.Random(f"workloads {seed}")
    count = min(len(suite.WORKLOADS), rng.choice(_AT_ONCE))
    return [each.name for each in rng.sample(suite.WORKLOADS, count)]


@cache
def _image() -> bytes:
    return prepare_database()


@cache
def _keys() -> dict[str, SigningKey]:
    """Return the keys of all nodes: the same in every process."""
    seeds = {name: hashlib.sha256(name.encode()).digest() for name in NODES}
    return {name: SigningKey(Ed25519PrivateKey.from_private_bytes(seed)) for name, seed in seeds.items()}


def _watch(seconds: float) -> Callable[[], None]:
    deadline = time.process_time() + seconds

    def watch() -> None:
        if time.process_time() > deadline:
            raise Stuck(f"it took more than {seconds:g} s")

    return watch


@contextmanager
def _without_gc() -> Iterator[None]:
    """Disable garbage collection, which depends on what else this process has done; collect at the end."""
    gc.freeze()
    gc.disable()
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None  # abandoned tasks may complain
    try:
        yield
    finally:
        with warnings.catch_warnings(action="ignore"):
            gc.collect()
        sys.unraisablehook = hook
        gc.enable()
        gc.unfreeze()


@contextmanager
def _quietly(world: World) -> Iterator[None]:
    """Silence the log, but record tracebacks in the history."""
    log, crashes = logging.getLogger("vox_mesh"), CrashHandler(world.record_crash)
    level, propagates = log.level, log.propagate
    log.addHandler(crashes)
    log.setLevel(logging.ERROR)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(crashes)
        log.setLevel(level)
        log.propagate = propagates


def _write(folder: Path, events: Sequence[Event]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "history.jsonl").open("wb") as file:
        file.writelines(event.line() for event in events)


def _digest(events: Sequence[Event]) -> str:
    whole = hashlib.sha256()
    for event in events:
        whole.update(event.line())
    return whole.hexdigest()[:16]
