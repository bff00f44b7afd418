"""The faults of a simulated run: drawn from its seed in advance, in storms with calm between them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from proof.simulate.network import NetworkConditions
from proof.workload import Pace

_CALM_S: Final = (2.0, 7.0)
_STORM_S: Final = (5.0, 14.0)
_GAP_S: Final = (0.2, 3.0)
"""Between two faults of a storm."""

_FUSE: Final = 60
"""A process that is to be killed makes up to this many more steps, so that it dies while it is busy."""

PACE: Final = Pace(tick_s=5.0, ttl_s=15.0, rest_s=4.0)
_QUICK: Final = Pace(tick_s=2.0, ttl_s=6.0, rest_s=2.0)
"""For runs with a crash, so that it is detected before the end."""

_DEATHS: Final = 0.05
"""The share of runs with one crash and no other fault."""

_DIES_AT_S: Final = (2.0, 8.0)
_BREAKERS: Final = 0.2
_SKEW_MS: Final = 50_000
_DRIFT: Final = 2e-4
_AHEAD_S: Final = 5_000.0


class Kind(StrEnum):
    """The kinds of faults."""

    KILL = "kill"
    LEAVE = "leave"
    PAUSE = "pause"
    REPLACE = "replace"
    """A node is paused, another process takes over its identity, and then it resumes."""
    LINE = "line"
    """The connection of a node to the database is bad."""
    RELAY = "relay"
    """The connections of a node to the others are bad."""
    NETWORK = "network"
    """The connections of all nodes to the database are bad."""
    DATABASE = "database"
    """The database is paused."""
    CLOCK = "clock"
    """The wall clock of a node is set."""
    ROLLBACK = "rollback"
    """The database is rolled back to an earlier state."""
    SLOW = "slow"
    """The database answers after seconds: to all nodes, or to one."""
    HELD = "held"
    """A foreign client holds a write transaction open: writes wait for it, reads do not."""
    DATABASE_CLOCK = "database-clock"
    """The clock of the database is set, forward or back."""
    UNSEEN_ROLLBACK = "unseen-rollback"
    """A rollback in which every node is killed and loses its memory: none is left that could notice."""
    UNREACHABLE = "unreachable"
    """One node cannot connect to the database."""


DEFAULT_FAULTS: Final = frozenset(Kind) - {Kind.UNSEEN_ROLLBACK, Kind.UNREACHABLE}
"""The kinds of faults that a run draws from by default."""

_APART: Final = (Kind.ROLLBACK, Kind.DATABASE_CLOCK)
"""A run has one of these or the other: no check could tell which of the two explains what it sees."""


_NODE_FAULTS: Final = {Kind.KILL: 5, Kind.LEAVE: 1, Kind.PAUSE: 3, Kind.REPLACE: 1, Kind.CLOCK: 1}
_NETWORK_FAULTS: Final = {Kind.LINE: 5, Kind.RELAY: 1, Kind.NETWORK: 2, Kind.DATABASE: 1}
_LASTS_S: Final = {
    Kind.KILL: (0.05, 8.0),
    Kind.LEAVE: (0.05, 8.0),
    Kind.PAUSE: (0.5, 30.0),
    Kind.REPLACE: (1.0, 15.0),
    Kind.LINE: (0.5, 10.0),
    Kind.RELAY: (0.5, 10.0),
    Kind.NETWORK: (0.3, 6.0),
    Kind.DATABASE: (0.2, 6.0),
    Kind.CLOCK: (2.0, 10.0),
}

_EXTRA: Final = {
    Kind.ROLLBACK: (0.02, 15.0),
    Kind.SLOW: (4.0, 12.0),
    Kind.HELD: (3.0, 8.0),
    Kind.DATABASE_CLOCK: (2.0, 20.0),
    Kind.UNSEEN_ROLLBACK: (0.02, 15.0),
    Kind.UNREACHABLE: (8.0, 20.0),
}
"""Drawn separately, so that the other faults are the same with and without these; and how long each lasts."""

_TIMES: Final = (1, 1, 2, 3)
"""How often each of them happens in a run."""

_SLOW_S: Final = 10.0
_STEPS_MS: Final = (20_000, 60_000, 3_600_000)
"""The maximum step of the database's clock; the minimum is half of it. The mesh follows smaller steps, which
make leases shorter or longer by that much."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, for a while."""

    kind: Kind
    at: float
    seconds: float
    node: int
    """The index of the affected node; -1: all."""
    conditions: NetworkConditions | None = None
    fuse: int = 0
    skew_ms: int = 0


@dataclass(frozen=True, slots=True)
class Clock:
    """The initial errors of a node's clocks."""

    skew_ms: int
    rate: float
    ahead_s: float


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """All faults of one run."""

    nodes: int
    seconds: float
    pace: Pace
    clocks: tuple[Clock, ...]
    has_breaker: bool
    faults: tuple[Fault, ...]
    storms: tuple[tuple[float, bool], ...]
    """When storms and calms begin, and whether it is a storm."""
    slowness: float = 1.0
    """The factor by which everything is slower, except for what the mesh itself decides."""

    @property
    def is_crash_only(self) -> bool:
        """Whether the run has one crash and no other fault."""
        return not self.storms

    def slow_down(self, times: float) -> FaultPlan:
        """Return the plan slower by this factor, to cover what the mesh does by the minute or hour."""
        return replace(
            self,
            seconds=self.seconds * times,
            pace=self.pace.slow_down(times),
            faults=tuple(
                replace(fault, at=fault.at * times, seconds=fault.seconds * times) for fault in self.faults
            ),
            storms=tuple((at * times, is_storm) for at, is_storm in self.storms),
            slowness=self.slowness * times,
        )


def draw_plan(seed: int, seconds: float, faults: Set[Kind] = DEFAULT_FAULTS) -> FaultPlan:
    """Return the fault plan of a seed, with only these kinds of faults."""
    if faults >= set(_APART):
        faults = faults - {random.Random(f"apart {seed}").choice(_APART)}
    if Kind.DATABASE_CLOCK in faults:
        faults = faults - {Kind.UNSEEN_ROLLBACK}
    plan = _draw_base_plan(seed, seconds)
    left = [fault for fault in plan.faults if fault.kind in faults]
    if not plan.is_crash_only:
        left += _extra_faults(random.Random(f"extra fate {seed}"), seconds, plan.nodes, faults)
    return replace(plan, faults=tuple(left))


def _extra_faults(rng: random.Random, seconds: float, nodes: int, kinds: Set[Kind]) -> Iterator[Fault]:
    for kind, (least, most) in _EXTRA.items():
        times = rng.choice(_TIMES)
        for _ in range(min(times, 1) if kind is Kind.DATABASE_CLOCK else times):
            at, lasts_s = rng.uniform(1.0, 0.8 * seconds), rng.uniform(least, most)
            node = rng.choice((-1, rng.randrange(nodes)))
            share, step_ms = rng.choice((0.3, 0.7, 1.0)), rng.choice(_STEPS_MS)
            skew_ms = rng.choice((-1, 1)) * rng.randint(step_ms // 2, step_ms)
            if kind in kinds:
                node = max(node, 0) if kind is Kind.UNREACHABLE else node
                yield Fault(kind, at, lasts_s, node, _extra_conditions(kind, share), skew_ms=skew_ms)


def _extra_conditions(kind: Kind, share: float) -> NetworkConditions | None:
    if kind is Kind.SLOW:
        return NetworkConditions(late=share, late_s=_SLOW_S)
    return NetworkConditions(refused=1.0) if kind is Kind.UNREACHABLE else None


def _draw_base_plan(seed: int, seconds: float) -> FaultPlan:
    """Draw all but the separately drawn faults."""
    rng = random.Random(f"fate {seed}")
    nodes = rng.choice((3, 3, 3, 3, 4, 5))
    clocks = tuple(_clock(rng) for _ in range(nodes))
    if rng.random() < _DEATHS:
        at, who = rng.uniform(*_DIES_AT_S), rng.randrange(nodes)
        death = Fault(Kind.KILL, at, seconds, who, fuse=rng.randrange(_FUSE))
        return FaultPlan(nodes, seconds, _QUICK, clocks, False, (death,), ())
    storms = tuple(_storms(rng, seconds))
    faults = tuple(
        fault for at, end in _storm_spans(storms, seconds) for fault in _faults(rng, at, end, nodes)
    )
    return FaultPlan(nodes, seconds, PACE, clocks, rng.random() < _BREAKERS, faults, storms)


def _storms(rng: random.Random, seconds: float) -> Iterator[tuple[float, bool]]:
    at, is_storm = 0.0, False
    while at < seconds:
        yield at, is_storm
        at += rng.uniform(*(_STORM_S if is_storm else _CALM_S))
        is_storm = not is_storm


def _storm_spans(storms: tuple[tuple[float, bool], ...], seconds: float) -> Iterator[tuple[float, float]]:
    ends = [at for at, _ in storms[1:]] + [seconds]
    return ((at, end) for (at, is_storm), end in zip(storms, ends, strict=True) if is_storm)


def _faults(rng: random.Random, at: float, end: float, nodes: int) -> Iterator[Fault]:
    while (at := at + rng.uniform(*_GAP_S)) < end:
        kinds = _NODE_FAULTS if rng.random() < 0.5 else _NETWORK_FAULTS
        (kind,) = rng.choices(tuple(kinds), tuple(kinds.values()))
        least, most = _LASTS_S[kind]
        seconds = least + (most - least) * rng.random() ** 2
        node = -1 if kind in (Kind.NETWORK, Kind.DATABASE) else rng.randrange(nodes)
        conditions = _draw_conditions(rng) if kind in (Kind.LINE, Kind.RELAY, Kind.NETWORK) else None
        skew_ms = rng.randint(-_SKEW_MS, _SKEW_MS)
        yield Fault(kind, at, seconds, node, conditions, rng.randrange(_FUSE), skew_ms)


def _draw_conditions(rng: random.Random) -> NetworkConditions:
    """Draw one problem of a connection, or a little of all of them."""
    share = rng.choice((0.1, 0.3, 0.6, 1.0))
    match rng.randrange(8):
        case 0:
            return NetworkConditions(refused=share)
        case 1:
            return NetworkConditions(lost=share)
        case 2:
            return NetworkConditions(unanswered=share)
        case 3:
            return NetworkConditions(broken=share)
        case 4:
            return NetworkConditions(doubled=share)
        case 5:
            return NetworkConditions(late=share, late_s=rng.choice((0.2, 1.0, 5.0, 20.0)))
        case _:
            few = share / 5
            return NetworkConditions(few, few, few, few, few, share, rng.choice((0.1, 1.0, 8.0)))


def _clock(rng: random.Random) -> Clock:
    skew_ms = rng.choice((0, rng.randint(-2_000, 2_000), rng.randint(-_SKEW_MS, _SKEW_MS)))
    return Clock(skew_ms, 1 + _DRIFT * rng.uniform(-1, 1), _AHEAD_S * rng.random())
