"""The database's clock: noticing that it was set, agreeing on that, and correcting the time of the mesh.

A node that notices a step says so in `clock_witnesses`. When most live nodes have noticed the same step, one
of them changes the correction in `database_clock`, by compare and swap, so that the time of the mesh goes on
without a step. Until then nothing is granted or expires: every request says which time it expects.
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
from vox_mesh.nodes.clock import MAX_STEP_MS, MeshClock
from vox_mesh.store.rows import Row
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Script, Statement
from vox_mesh.store.write.journal import DirectDatabase

_log = logging.getLogger(__name__)

_SQL: Final = named("database_clock")
_REFUSE_OTHERS: Final = named("nodes")["refuse_unless_incarnation"]
_VERSION: Final = 10
"""The schema version since which nodes know the correction."""

_OVERDUE_S: Final = 30.0
"""How long nodes that do not agree on a step wait for each other."""

_SILENT_MS: Final = 30_000
"""How long before a node starts the newest heartbeat of the others may have been written."""

_WITNESSES: Final = (
    *("scope_id", "repository_id", "node_id", "incarnation", "beats", "knows", "low_ms", "high_ms"),
)

FIRST_LOOK: Final = Statement(_SQL["first_look"], (MAX_STEP_MS,))
"""Asks for the time, and for what tells a process that starts that the database's clock was set."""

NodeKey = tuple[str, str, str]
"""A node of any mesh in the database: its scope, its repository and its name."""


class Observer(NamedTuple):
    """The node that looks at the database's clock, in its present incarnation."""

    key: NodeKey
    incarnation: int


class ConfirmedStep(NamedTuple):
    """A step that the nodes agreed on."""

    step_ms: int
    correction_ms: int
    witnesses: int


class DatabaseClock:
    """Looks at the database's clock for one process; called for one request after another."""

    def __init__(self, clock: MeshClock) -> None:
        self._clock = clock
        self._epoch = 0
        self._beats: dict[tuple[NodeKey, int], int] = {}  # of their incarnations, when it was first noticed
        self._beats_at = (0, 0)  # the epoch and the count of steps that they belong to
        self._noticed_at = 0.0
        self._has_testified = False
        self.unrecorded: list[ConfirmedStep] = []
        """Steps that this node has corrected and that are not in the op log yet."""

    async def first_look(self, desk: DirectDatabase) -> None:
        """Ask for the time when a node starts, unless it is known."""
        if not self._clock.is_set:
            await self._hear(desk)

    async def look(self, desk: DirectDatabase, observer: Observer | None) -> None:
        """Ask for the time; raise `DatabaseClockJumped` while a step is not confirmed.

        A node takes part in confirming it; a command (`None`) only waits for that, and follows the nodes.
        """
        await self._hear(desk)
        if observer is None:
            await self._follow(desk)
        elif self._clock.step is not None:
            await self._decide(desk, observer)
        elif self._has_testified:
            await self._testify(desk, observer, None)
        if self._clock.step is not None:
            raise self._clock.jumped()

    async def _hear(self, desk: DirectDatabase) -> None:
        is_first, started = not self._clock.is_set, self._clock.started()
        row = (await desk.ask(FIRST_LOOK if is_first else Statement(_SQL["look"])))[0]
        self._epoch = row["epoch"]
        if is_first:
            hear_first(self._clock, row, started)
        else:
            self._clock.heard(row["now_ms"], started, row["correction_ms"])

    async def _follow(self, desk: DirectDatabase) -> None:
        """Believe the database if most nodes do: then they have accepted the step."""
        if self._clock.step is None:
            self._beats.clear()
            return
        values = (self._clock.now_ms, DEAD_AFTER_TICKS, self._epoch, _VERSION)
        found = await desk.ask(Statement(_SQL["witnesses"], values))
        if is_followed([self._witness(row) for row in found]):
            self._clock.accept()
            await self._hear(desk)

    async def _decide(self, desk: DirectDatabase, observer: Observer) -> None:
        step = self._clock.step
        assert step is not None
        noticed = (self._epoch, self._clock.jumps)
        if self._beats_at != noticed:  # an earlier step may have been corrected by another node
            self._beats.clear()
            self._beats_at, self._noticed_at = noticed, self._clock.started()
        found = await self._testify(desk, observer, step)
        others = [self._witness(row) for row in found if _key_of(row) != observer.key]
        judgement = judge(
            step,
            others,
            own_clock_stepped_too=self._clock.has_own_stepped_too,
            has_come_right=self._clock.has_come_right,
            is_overdue=self._clock.started() - self._noticed_at > _OVERDUE_S,
        )
        if judgement.decision is StepDecision.CORRECT:
            await self._correct(desk, observer, judgement)
        elif judgement.decision is StepDecision.ACCEPT:
            _log.error("the step of %+.1f s is accepted as the time of the mesh", step.low_ms / 1_000)
            self._clock.accept()
        if judgement.decision is not StepDecision.WAIT:
            await self._hear(desk)
        if self._clock.step is None:
            await self._testify(desk, observer, None)

    async def _testify(self, desk: DirectDatabase, observer: Observer, step: ClockStep | None) -> Any:
        """Say what this node has noticed; what all live nodes say."""
        low_ms, high_ms = (None, None) if step is None else step
        now_ms = self._clock.now_ms
        script = Script(
            Statement(_REFUSE_OTHERS, (*observer.key, observer.incarnation), refusal="replaced"),
            Statement(
                _SQL["testify"],
                (*observer.key, observer.incarnation, self._epoch, low_ms, high_ms, now_ms),
            ),
            answer=Answer(_SQL["witnesses"], (now_ms, DEAD_AFTER_TICKS, self._epoch, _VERSION), _WITNESSES),
            repeatable=True,
        )
        found = (await desk.apply(script)).rows
        self._has_testified = step is not None
        return found

    def _witness(self, row: Row) -> ClockWitness:
        low_ms, high_ms = row["low_ms"], row["high_ms"]
        step = None if low_ms is None or high_ms is None else ClockStep(low_ms, high_ms)
        first = self._beats.setdefault((_key_of(row), row["incarnation"]), row["beats"])
        return ClockWitness(step, row["beats"] - first, bool(row["knows"]))

    async def _correct(self, desk: DirectDatabase, observer: Observer, judgement: StepJudgement) -> None:
        """Have the time of the mesh go on as if there had been no step; the first to say so is heard."""
        step_ms = judgement.step_ms
        script = Script(
            Statement(_REFUSE_OTHERS, (*observer.key, observer.incarnation), refusal="replaced"),
            answer=Answer(
                _SQL["correct"],
                (self._epoch, step_ms, self._clock.now_ms),
                ("correction_ms",),
            ),
            repeatable=True,
        )
        rows = (await desk.apply(script)).rows
        if rows:
            correction_ms: int = rows.value
            self.unrecorded.append(ConfirmedStep(step_ms, correction_ms, judgement.witnesses))
            _log.error(
                "the database's clock was set by %+.1f s: the time of the mesh is corrected by %+.1f s",
                step_ms / 1_000,
                correction_ms / 1_000,
            )


def hear_first(clock: MeshClock, row: Row, started: float) -> None:
    """Set a clock by the answer to `FIRST_LOOK`, unless it was set meanwhile.

    A node that starts in the middle of a step expects what the others do, and decides with them. If none has
    noticed the step yet, heartbeats ahead of the database's clock show that it was set back: the node then
    goes on from the newest, and testifies that it does not know how much time has passed since.
    """
    now_ms, step_ms, newest_ms = row["now_ms"], row["step_ms"], row["newest_ms"]
    if not clock.is_set and step_ms is not None:
        clock.heard(now_ms - step_ms, started, row["correction_ms"])
    elif not clock.is_set and newest_ms is not None:
        _log.error("heartbeats ahead of the database's clock: ahead_s=%.1f", (newest_ms - now_ms) / 1_000)
        clock.heard(newest_ms, started, row["correction_ms"], _SILENT_MS)
    clock.heard(now_ms, started, row["correction_ms"])


def _key_of(row: Row) -> NodeKey:
    return row["scope_id"], row["repository_id"], row["node_id"]
