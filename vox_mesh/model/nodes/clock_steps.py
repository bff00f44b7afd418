"""Steps of the database's clock: what each node has noticed, and what follows from all of it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from statistics import median_low
from typing import Final, NamedTuple

_APART_MS: Final = 1_000
_TWICE: Final = 2


class ClockStep(NamedTuple):
    """A step of the database's clock, known to lie between two bounds: an answer takes its time."""

    low_ms: int
    high_ms: int

    @property
    def width_ms(self) -> int:
        """How far apart the bounds lie."""
        return self.high_ms - self.low_ms

    def agrees_with(self, other: ClockStep) -> bool:
        """Whether both can be the same step, give or take a second."""
        return self.low_ms <= other.high_ms + _APART_MS and other.low_ms <= self.high_ms + _APART_MS


class ClockWitness(NamedTuple):
    """A live node. `beats`: how often it has written its heartbeat since the step was first noticed here."""

    step: ClockStep | None
    beats: int
    knows_correction: bool

    @property
    def goes_by_database(self) -> bool:
        """Whether it writes as ever: its second heartbeat was made after the answer to the first."""
        return self.step is None and self.beats >= _TWICE


class StepDecision(StrEnum):
    """What to do about a step."""

    WAIT = "wait"
    CORRECT = "correct"
    ACCEPT = "accept"


class StepJudgement(NamedTuple):
    """What the nodes agree on: `step_ms` is the step to correct, `witnesses` how many have noticed it."""

    decision: StepDecision
    step_ms: int = 0
    witnesses: int = 0


def judge(
    own: ClockStep,
    others: Sequence[ClockWitness],
    *,
    own_clock_stepped_too: bool,
    has_come_right: bool = False,
    is_overdue: bool = False,
) -> StepJudgement:
    """Decide whose clock is wrong.

    The database's, if most live nodes have noticed the same step; our own, if others that go by the database
    are as many as those that agree with us. A node that is alone believes itself, unless its machine's clock
    has stepped together with the database's: then its machine has stood still. Nodes of an older version go
    by the database's clock as it is: while one is alive, the step is accepted. So is a step after which the
    database's clock agrees with the machine's own, where it was far from that before (`has_come_right`).

    Nodes that expect different times, since each has missed another step, never agree. When a decision is
    overdue, the one in the middle is right: the others then find that it goes by the database.
    """
    if has_come_right or not all(other.knows_correction for other in others):
        return StepJudgement(StepDecision.ACCEPT)
    if not others and own_clock_stepped_too:
        return StepJudgement(StepDecision.ACCEPT)
    agreeing = [own, *(other.step for other in others if other.step and other.step.agrees_with(own))]
    if 2 * len(agreeing) > 1 + len(others):
        return StepJudgement(StepDecision.CORRECT, _agreed_ms(agreeing), len(agreeing))
    if sum(other.goes_by_database for other in others) >= len(agreeing):
        return StepJudgement(StepDecision.ACCEPT)
    if is_overdue:
        noticed = [own, *(other.step for other in others if other.step)]
        return StepJudgement(StepDecision.CORRECT, _agreed_ms(noticed), len(noticed))
    return StepJudgement(StepDecision.WAIT)


def _agreed_ms(steps: Sequence[ClockStep]) -> int:
    """Return the step in the middle of those that are known about as exactly as the best of them.

    Of its bounds the upper one counts: the time of the mesh is then not ahead, and no lease ends too soon.
    """
    least_ms = min(step.width_ms for step in steps)
    return median_low(step.high_ms for step in steps if step.width_ms <= least_ms + _APART_MS)


def is_followed(nodes: Sequence[ClockWitness]) -> bool:
    """Return whether most live nodes go by the database's clock as it is now: then a command does so, too."""
    return 2 * sum(node.goes_by_database for node in nodes) > len(nodes)
