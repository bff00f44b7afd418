"""The faults of a run and their times: all drawn from the seed in advance."""

from __future__ import annotations

import random
from collections.abc import Iterator, Set
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import count
from typing import Any, Final

from proof.chaos.points import ON_FILE, ON_SERVER
from proof.workload import Pace

PACE: Final = Pace(tick_s=0.5, ttl_s=2.0, rest_s=0.3)

_STORM_S: Final = 8.0
_CALM_S: Final = 4.0
_LONG_CALM_S: Final = 20.0
_LONG_EVERY: Final = 6
"""Every n-th calm is long: in those every node must make progress again."""
_FIRST_S: Final = 1.0
"""Calm before the first storm."""
_UNEVEN: Final = 0.25
_RATE: Final = 0.7
"""Faults per second, on average over storms and calms."""
_GAPS: Final = (0.3, 1.7)
"""Between two faults, as parts of the average."""
_KILLED_FOR_REPLACEMENT: Final = 0.3
"""The part of replaced processes that are killed; the others leave."""
_RECOVERY_S: Final = 1.0
"""The time without a new fault for a target after one has ended."""


class StoreKind(StrEnum):
    """Where the data of a run is."""

    FILE = "file"
    SQLD = "sqld"

    @classmethod
    def drawn_from(cls, seed: int) -> StoreKind:
        """Return the store that a seed chooses, for runs that are on one of them."""
        kinds = list(cls)
        return kinds[seed % len(kinds)]


class Kind(StrEnum):
    """The kinds of faults."""

    KILL = "kill"
    KILL_AT_POINT = "kill-at-point"
    ABSENCE = "absence"
    """Killed, and down for so long that every node must notice."""
    PAUSE = "pause"
    SERVER_KILL = "server-kill"
    SERVER_PAUSE = "server-pause"
    SERVER_RESTART = "server-restart"
    DELAY = "delay"
    THROTTLE = "throttle"
    CUT = "cut"
    HALF_OPEN = "half-open"
    DROP_ANSWER = "drop-answer"
    DUPLICATE = "duplicate"
    CLOCK_STEP = "clock-step"
    CLOCK_DRIFT = "clock-drift"
    DISK_FULL = "disk-full"
    TORN_REPLICA = "torn-replica"
    TORN_SPOOL = "torn-spool"
    FILE_HELD = "file-held"
    WRITER_STORM = "writer-storm"
    STORE_BACK = "store-back"
    """The store is rolled back to a copy of some seconds ago."""
    COMMITS_LOST = "commits-lost"
    """The store is rolled back to a copy of a moment ago."""
    SLOW_ANSWERS = "slow-answers"
    """Responses come after seconds, later than any client waits for them."""
    SERVER_STALL = "server-stall"
    """The server is paused for longer than deadlines, and resumes."""
    WRITE_HELD = "write-held"
    """A foreign client holds a write transaction open."""
    READ_HELD = "read-held"
    """A foreign client holds a read transaction open."""
    DATABASE_CLOCK = "database-clock"
    """The clock of the server is set, forward or back."""
    STRANGERS = "strangers"
    """All the time: never drawn."""
    COMPACTION = "compaction"
    """The server compacts its replication log every few seconds, all the time: never drawn."""
    REPLACEMENT = "replacement"
    """A node is stopped and goes on with another build, each in turn: never drawn."""


class Lane(StrEnum):
    """What a fault affects; each target has one fault at a time."""

    NODE = "player"
    CLOCK = "clock"
    LINK = "link"
    DATABASE = "database"


@dataclass(frozen=True, slots=True)
class Sort:
    """How faults of one kind are drawn."""

    lane: Lane
    shortest_s: float
    longest_s: float
    stores: tuple[StoreKind, ...] = tuple(StoreKind)
    is_away: bool = False
    """Whether the node is inactive meanwhile."""


_ON_SQLD: Final = (StoreKind.SQLD,)
SORTS: Final = {
    Kind.KILL: Sort(Lane.NODE, 0.1, 2.0, is_away=True),
    Kind.KILL_AT_POINT: Sort(Lane.NODE, 1.0, 3.0, is_away=True),
    Kind.ABSENCE: Sort(Lane.NODE, 10.0, 14.0, is_away=True),
    Kind.PAUSE: Sort(Lane.NODE, 1.5 * PACE.ttl_s, 5 * PACE.ttl_s, is_away=True),
    Kind.SERVER_KILL: Sort(Lane.DATABASE, 0.1, 2.0, _ON_SQLD),
    Kind.SERVER_PAUSE: Sort(Lane.DATABASE, 0.5, 4.0, _ON_SQLD),
    Kind.SERVER_RESTART: Sort(Lane.DATABASE, 0.1, 1.0, _ON_SQLD),
    Kind.DELAY: Sort(Lane.LINK, 2.0, 6.0, _ON_SQLD),
    Kind.THROTTLE: Sort(Lane.LINK, 2.0, 6.0, _ON_SQLD),
    Kind.CUT: Sort(Lane.LINK, 0.5, 4.0, _ON_SQLD),
    Kind.HALF_OPEN: Sort(Lane.LINK, 1.0, 5.0, _ON_SQLD),
    Kind.DROP_ANSWER: Sort(Lane.LINK, 0.5, 3.0, _ON_SQLD),
    Kind.DUPLICATE: Sort(Lane.LINK, 1.0, 4.0, _ON_SQLD),
    Kind.CLOCK_STEP: Sort(Lane.CLOCK, 1.0, 5.0),
    Kind.CLOCK_DRIFT: Sort(Lane.CLOCK, 2.0, 6.0),
    Kind.DISK_FULL: Sort(Lane.NODE, 0.5, 3.0),
    Kind.TORN_REPLICA: Sort(Lane.NODE, 0.1, 1.0, _ON_SQLD, is_away=True),
    Kind.TORN_SPOOL: Sort(Lane.NODE, 0.1, 1.0, _ON_SQLD, is_away=True),
    Kind.FILE_HELD: Sort(Lane.DATABASE, 0.5, 4.0, (StoreKind.FILE,)),
    Kind.WRITER_STORM: Sort(Lane.NODE, 1.0, 4.0),
    Kind.STORE_BACK: Sort(Lane.DATABASE, 2.0, 10.0),
    Kind.COMMITS_LOST: Sort(Lane.DATABASE, 0.02, 0.5),
    Kind.SLOW_ANSWERS: Sort(Lane.LINK, 4.0, 12.0, _ON_SQLD),
    Kind.SERVER_STALL: Sort(Lane.DATABASE, 4.0, 8.0, _ON_SQLD),
    Kind.WRITE_HELD: Sort(Lane.DATABASE, 3.0, 8.0),
    Kind.READ_HELD: Sort(Lane.DATABASE, 3.0, 10.0),
    Kind.DATABASE_CLOCK: Sort(Lane.DATABASE, 2.0, 10.0, _ON_SQLD),
}
ROLLBACKS: Final = frozenset((Kind.STORE_BACK, Kind.COMMITS_LOST))
DEFAULT_FAULTS: Final = frozenset(Kind)
"""The kinds that a run draws from by default."""
_OFTEN: Final = (Kind.KILL, Kind.KILL_AT_POINT, Kind.PAUSE)
"""Kinds that are in the deck twice."""


def lane_of(kind: Kind, store: StoreKind) -> Lane:
    """Return what a kind affects: on a file, all nodes share one disk."""
    if kind is Kind.DISK_FULL and store is StoreKind.FILE:
        return Lane.DATABASE
    return Lane.NODE if kind is Kind.REPLACEMENT else SORTS[kind].lane


def kinds_on(store: StoreKind, faults: Set[Kind] = DEFAULT_FAULTS) -> tuple[Kind, ...]:
    """Return those of these kinds that apply to a store."""
    return tuple(kind for kind, sort in SORTS.items() if store in sort.stores and kind in faults)


def of_seed(seed: int, store: StoreKind, kinds: Set[Kind]) -> Set[Kind]:
    """Return the kinds that a seed draws from: rollbacks or steps of the database's clock, never both.

    A rollback also undoes what the nodes have agreed on about the clock. No check could tell the result of
    both together from a fault.
    """
    rollbacks = ROLLBACKS & kinds
    if not rollbacks or Kind.DATABASE_CLOCK not in kinds_on(store, kinds):
        return kinds
    return kinds - (rollbacks if random.Random(f"apart {seed}").random() < 0.5 else {Kind.DATABASE_CLOCK})


@dataclass(frozen=True, slots=True)
class Phase:
    """A storm or a calm."""

    at: float
    until: float
    is_storm: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; times are in seconds from the start."""

    id: int
    at: float
    kind: Kind
    node: str
    """The affected node; empty, if it is the database."""
    lasting: float
    detail: dict[str, Any]

    def __str__(self) -> str:
        detail = ", ".join(f"{name} {value}" for name, value in self.detail.items())
        target = self.node or "-"
        return f"{self.at:7.2f} s  {self.kind:<15} {target:<6} {self.lasting:5.2f} s  {detail}".rstrip()


@dataclass(frozen=True, slots=True)
class Schedule:
    """All faults of a run."""

    seed: int
    seconds: float
    store: StoreKind
    nodes: tuple[str, ...]
    phases: tuple[Phase, ...]
    faults: tuple[Fault, ...]
    is_compacting: bool = False
    """Whether the server compacts its replication log every few seconds."""
    builds: tuple[str, ...] = ()
    """The names of two builds: nodes begin with the first, and are replaced in turn."""

    def document(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(map(str, self.faults))


def draw_schedule(
    seed: int,
    seconds: float,
    store: StoreKind,
    nodes: tuple[str, ...],
    kinds: Set[Kind] = DEFAULT_FAULTS,
    builds: tuple[str, ...] = (),
) -> Schedule:
    """Return the schedule of a run: always the same for the same arguments.

    With several builds the store is not rolled back: only the nodes write to it.
    """
    kinds = of_seed(seed, store, kinds) if not builds else kinds - ROLLBACKS
    rng = random.Random(f"{seed} {seconds} {store} {nodes}")
    phases = tuple(_phases(rng, seconds))
    faults = tuple(_Drawing(rng, store, nodes, seconds, kinds).faults(phases))
    if builds:
        replacements = _replacements(rng, seconds, nodes, builds, len(faults))
        faults = tuple(sorted((*faults, *replacements), key=lambda fault: fault.at))
    return Schedule(seed, seconds, store, nodes, phases, faults, Kind.COMPACTION in kinds, builds)


def _replacements(
    rng: random.Random, seconds: float, nodes: tuple[str, ...], builds: tuple[str, ...], number: int
) -> Iterator[Fault]:
    """Yield the replacement of each node in turn: by the second build, by the first, by the second again."""
    older, newer = builds
    turns = [(node, build) for build in (newer, older, newer) for node in nodes]
    apart_s = seconds / (len(turns) + 1)
    for turn, (node, build) in enumerate(turns, 1):
        detail = {"build": build, "is_killed": rng.random() < _KILLED_FOR_REPLACEMENT}
        yield Fault(number + turn, round(turn * apart_s, 3), Kind.REPLACEMENT, node, 0.0, detail)


def _phases(rng: random.Random, seconds: float) -> Iterator[Phase]:
    at, is_storm, length = 0.0, False, _FIRST_S
    for number in count(1):
        until = min(seconds, at + length)
        yield Phase(at, until, is_storm)
        if until == seconds:
            return
        at, is_storm = until, not is_storm
        calm_s = _CALM_S if number % (2 * _LONG_EVERY) else _LONG_CALM_S
        length = (_STORM_S if is_storm else calm_s) * rng.uniform(1 - _UNEVEN, 1 + _UNEVEN)


class _Drawing:
    """Draw kinds from a deck, so that each has its turn, for targets without a current fault."""

    def __init__(
        self,
        rng: random.Random,
        store: StoreKind,
        nodes: tuple[str, ...],
        seconds: float,
        kinds: Set[Kind],
    ) -> None:
        self._rng = rng
        self._kinds = kinds_on(store, kinds)
        self._often = [kind for kind in _OFTEN if kind in kinds]
        self._store = store
        self._nodes = nodes
        self._seconds = seconds
        self._deck: list[Kind] = []
        self._busy: dict[tuple[Lane, str], float] = {}
        self._away: dict[str, float] = {}

    def faults(self, phases: tuple[Phase, ...]) -> Iterator[Fault]:
        rate = _RATE * (_STORM_S + _CALM_S) / _STORM_S
        number = 0
        for phase in phases:
            at = phase.at + self._rng.random() / rate
            while phase.is_storm and at < phase.until:
                if fault := self._fault(number + 1, round(at, 3)):
                    number += 1
                    yield fault
                at += self._rng.uniform(*_GAPS) / rate

    def _fault(self, number: int, at: float) -> Fault | None:
        """Return the next fault: the next kind in the deck that is possible."""
        fault = self._next(number, at)
        if fault is None:
            self._refill()
            fault = self._next(number, at)
        return fault

    def _next(self, number: int, at: float) -> Fault | None:
        for kind in self._deck:
            places = self._places(kind, at)
            if places:
                self._deck.remove(kind)
                return self._made(number, at, kind, self._rng.choice(places))
        return None

    def _refill(self) -> None:
        """Put the kinds back that were drawn, behind the ones that still wait."""
        more = [kind for kind in (*self._kinds, *self._often) if kind not in self._deck]
        self._rng.shuffle(more)
        self._deck += more

    def _places(self, kind: Kind, at: float) -> list[str]:
        """Return the targets that are free for this fault until its end."""
        sort, lane = SORTS[kind], lane_of(kind, self._store)
        if at + sort.shortest_s > self._seconds:
            return []
        if lane is Lane.DATABASE:
            free = [""]
        else:
            away = sum(until > at for until in self._away.values())
            if sort.is_away and away >= max(1, len(self._nodes) - 2):
                return []
            free = list(self._nodes)
        return [each for each in free if self._busy.get((lane, each), 0.0) <= at]

    def _made(self, number: int, at: float, kind: Kind, node: str) -> Fault:
        sort = SORTS[kind]
        lasting = round(self._rng.uniform(sort.shortest_s, min(sort.longest_s, self._seconds - at)), 3)
        if sort.is_away:
            self._away[node] = at + lasting
        self._busy[lane_of(kind, self._store), node] = at + lasting + _RECOVERY_S
        return Fault(number, at, kind, node, lasting, self._detail(kind))

    def _detail(self, kind: Kind) -> dict[str, Any]:
        rng = self._rng
        match kind:
            case Kind.KILL_AT_POINT:
                return {"point": rng.choice(ON_FILE if self._store is StoreKind.FILE else ON_SERVER)}
            case Kind.DELAY:
                return {"delay_ms": rng.randint(20, 400)}
            case Kind.THROTTLE:
                return {"bytes_per_s": rng.randint(20_000, 200_000)}
            case Kind.CLOCK_STEP:
                far = rng.choice((1_000, 10_000, 50_000, 200_000))
                return {"offset_ms": rng.choice((-1, 1)) * rng.randint(far // 2, far)}
            case Kind.CLOCK_DRIFT:
                return {"rate": round(rng.uniform(0.8, 1.2), 3)}
            case Kind.SLOW_ANSWERS:
                return {"delay_ms": rng.randint(3_000, 10_000)}
            case Kind.DATABASE_CLOCK:
                far = rng.choice((20_000, 60_000, 3_600_000))
                return {"ahead_ms": rng.choice((-1, 1)) * rng.randint(far // 2, far)}
            case Kind.STORE_BACK | Kind.COMMITS_LOST:
                return {"is_killed": rng.random() < 0.5}
            case Kind.TORN_REPLICA | Kind.TORN_SPOOL:
                return {"chance": rng.randrange(2**32)}
            case _:
                return {}
