"""The database's clock: notice that it was set, agree on the step, and correct the time of the mesh.

A node that notices a step records it in `clock_witnesses`. When most live nodes have noticed the same step,
one of them changes the correction in `database_clock`, by compare and swap, so that the time of the mesh goes
on without a step. Until then nothing is granted or expires: every request states the time it expects.
"""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

from vox_mesh.model.nodes.clock_steps import (
    ClockStep,
    ClockWitness,
    StepDecision,
    StepJudgement,
    is_followed,
    judge,
)
from vox_mesh.model.nodes.liveness import DEAD_AFTER_TICKS
from vox_mesh.nodes.clock import MAX_STEP_MS, MeshClock, jumped_error
from vox_mesh.store.rows import Row
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Script, Statement
from vox_mesh.store.write.interceptor import DirectDatabase

_log = logging.getLogger(__name__)

_SQL: Final = named("database_clock")
_INCARNATION_GUARD: Final = named("nodes")["refuse_unless_incarnation"]
_SCHEMA_VERSION: Final = 10
"""The schema version since which nodes know the correction."""

_OVERDUE_S: Final = 30.0
"""How long nodes that disagree on a step wait for each other."""

_MAX_SILENCE_MS: Final = 30_000
"""How old the newest heartbeat of the others, or their record of a step, may be when a node starts."""

_RECENT_STEP_MS: Final = 5_000
"""A step recorded more recently stands; an older one may have been undone since."""

_WITNESS_COLUMNS: Final = (
    "scope_id",
    "repository_id",
    "node_id",
    "incarnation",
    "beats",
    "knows",
    "low_ms",
    "high_ms",
)

FIRST_READ: Final = Statement(_SQL["first_read"], (MAX_STEP_MS, DEAD_AFTER_TICKS, _MAX_SILENCE_MS))
"""Reads the time, and the signs by which a starting process detects that the database's clock was set."""

NodeKey = tuple[str, str, str]
"""A node of any mesh in the database: its scope, its repository and its id."""


class Observer(NamedTuple):
    """The node that observes the database's clock, in its present incarnation."""

    key: NodeKey
    incarnation: int


class ConfirmedStep(NamedTuple):
    """A step that the nodes agreed on."""

    step_ms: int
    correction_ms: int
    witnesses: int


class DatabaseClock:
    """Observe the database's clock for one process. Calls must not overlap."""

    def __init__(self, clock: MeshClock) -> None:
        self._clock = clock
        self._epoch = 0
        self._beats: dict[tuple[NodeKey, int], int] = {}  # by incarnation, when the step was first noticed
        self._beats_at = (0, 0)  # the epoch and the count of steps they belong to
        self._noticed_at = 0.0
        self._has_testified = False
        self.unrecorded: list[ConfirmedStep] = []
        """Steps corrected by this node that are not in the op log yet."""

    async def first_read(self, database: DirectDatabase) -> None:
        """Read the time when a node starts, unless it is known."""
        if not self._clock.is_set:
            await self._read_time(database)

    async def check(self, database: DirectDatabase, observer: Observer | None) -> None:
        """Read the time; raise `DatabaseClockJumped` while a step is not confirmed.

        A node takes part in confirming it; a command (`None`) waits for the nodes and follows them.
        """
        await self._read_time(database)
        if observer is None:
            await self._follow(database)
        elif self._clock.step is not None:
            await self._decide(database, observer)
        elif self._has_testified:
            await self._testify(database, observer, None)
        if self._clock.step is not None:
            raise jumped_error(self._clock.step.low_ms)

    async def _read_time(self, database: DirectDatabase) -> None:
        is_first, started = not self._clock.is_set, self._clock.started()
        row = (await database.ask(FIRST_READ if is_first else Statement(_SQL["read"])))[0]
        self._epoch = row["epoch"]
        if is_first:
            hear_first(self._clock, row, started)
        else:
            self._clock.heard(row["now_ms"], started, row["correction_ms"])

    async def _follow(self, database: DirectDatabase) -> None:
        """Accept the database's clock if most nodes do: then they have accepted the step."""
        if self._clock.step is None:
            self._beats.clear()
            return
        values = (self._clock.now_ms, DEAD_AFTER_TICKS, self._epoch, _SCHEMA_VERSION)
        rows = await database.ask(Statement(_SQL["witnesses"], values))
        if is_followed([self._witness(row) for row in rows]):
            self._clock.accept()
            await self._read_time(database)

    async def _decide(self, database: DirectDatabase, observer: Observer) -> None:
        step = self._clock.step
        assert step is not None
        noticed = (self._epoch, self._clock.jumps)
        if self._beats_at != noticed:  # an earlier step may have been corrected by another node
            self._beats.clear()
            self._beats_at, self._noticed_at = noticed, self._clock.started()
        rows = await self._testify(database, observer, step)
        others = [self._witness(row) for row in rows if _node_key(row) != observer.key]
        judgement = judge(
            step,
            others,
            own_clock_stepped_too=self._clock.has_own_stepped_too,
            has_come_right=self._clock.has_come_right,
            is_overdue=self._clock.started() - self._noticed_at > _OVERDUE_S,
        )
        if judgement.decision is StepDecision.CORRECT:
            await self._correct(database, observer, judgement)
        elif judgement.decision is StepDecision.ACCEPT:
            _log.error(
                "database clock step accepted as the time of the mesh: step_s=%+.1f", step.low_ms / 1_000
            )
            self._clock.accept()
        if judgement.decision is not StepDecision.WAIT:
            await self._read_time(database)
        if self._clock.step is None:
            await self._testify(database, observer, None)

    async def _testify(self, database: DirectDatabase, observer: Observer, step: ClockStep | None) -> Any:
        """Record what this node has noticed. Return what all live nodes have recorded."""
        low_ms, high_ms = (None, None) if step is None else step
        now_ms = self._clock.now_ms
        script = Script(
            Statement(_INCARNATION_GUARD, (*observer.key, observer.incarnation), refusal="replaced"),
            Statement(
                _SQL["testify"],
                (*observer.key, observer.incarnation, self._epoch, low_ms, high_ms, now_ms),
            ),
            answer=Answer(
                _SQL["witnesses"], (now_ms, DEAD_AFTER_TICKS, self._epoch, _SCHEMA_VERSION), _WITNESS_COLUMNS
            ),
            repeatable=True,
        )
        rows = (await database.apply(script)).rows
        self._has_testified = step is not None
        return rows

    def _witness(self, row: Row) -> ClockWitness:
        low_ms, high_ms = row["low_ms"], row["high_ms"]
        step = None if low_ms is None or high_ms is None else ClockStep(low_ms, high_ms)
        first = self._beats.setdefault((_node_key(row), row["incarnation"]), row["beats"])
        return ClockWitness(step, row["beats"] - first, bool(row["knows"]))

    async def _correct(self, database: DirectDatabase, observer: Observer, judgement: StepJudgement) -> None:
        """Correct the time of the mesh as if there had been no step; the first node to do so wins."""
        step_ms = judgement.step_ms
        script = Script(
            Statement(_INCARNATION_GUARD, (*observer.key, observer.incarnation), refusal="replaced"),
            answer=Answer(
                _SQL["correct"],
                (self._epoch, step_ms, self._clock.now_ms),
                ("correction_ms",),
            ),
            repeatable=True,
        )
        rows = (await database.apply(script)).rows
        if rows:
            correction_ms: int = rows.value
            self.unrecorded.append(ConfirmedStep(step_ms, correction_ms, judgement.witnesses))
            _log.error(
                "database clock corrected: step_s=%+.1f correction_s=%+.1f",
                step_ms / 1_000,
                correction_ms / 1_000,
            )


def hear_first(clock: MeshClock, row: Row, started: float) -> None:
    """Set a clock by the answer to `FIRST_READ`, unless it was set meanwhile.

    A node that starts during a step expects the time that the others do, and decides with them. It knows the
    step no better than its witness: it expects the earliest time within the bounds, so that no lease expires
    too soon, and its own testimony has the same bounds. If none has noticed the step yet, heartbeats ahead of
    the database's clock show that it was set back: the node then continues from the newest, and testifies
    that it does not know how much time has passed since.

    Raises `DatabaseClockJumped` while it can't be known whether a recorded step still stands.
    """
    now_ms, newest_ms, correction_ms = row["now_ms"], row["newest_ms"], row["correction_ms"]
    if type(newest_ms) is not int:
        newest_ms = None  # no node wrote that heartbeat
    step = None if row["low_ms"] is None else ClockStep(row["low_ms"], row["high_ms"])
    if not clock.is_set and step is not None and _still_stands(row):
        clock.heard(now_ms - step.high_ms, started, correction_ms, step.width_ms)
    elif not clock.is_set and newest_ms is not None:
        _log.error("heartbeats ahead of the database's clock: ahead_s=%.1f", (newest_ms - now_ms) / 1_000)
        clock.heard(newest_ms, started, correction_ms, _MAX_SILENCE_MS)
    elif not clock.is_set and step is not None:
        raise jumped_error(step.low_ms)
    clock.heard(now_ms, started, correction_ms)


def _still_stands(row: Row) -> bool:
    """Return whether a recorded step is recent, or confirmed by heartbeats ahead of the clock."""
    return row["step_age_ms"] <= _RECENT_STEP_MS or row["newest_ms"] is not None


def _node_key(row: Row) -> NodeKey:
    return row["scope_id"], row["repository_id"], row["node_id"]
