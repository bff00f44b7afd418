"""Steps of the database's clock: what each node has noticed, and the decision that follows."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

_TOLERANCE_MS: Final = 1_000
_MIN_BEATS: Final = 2


class ClockStep(NamedTuple):
    """A step of the database's clock, known within bounds since answers take time."""

    low_ms: int
    high_ms: int

    @property
    def width_ms(self) -> int:
        """Return the distance of the bounds."""
        return self.high_ms - self.low_ms

    def agrees_with(self, other: ClockStep) -> bool:
        """Return whether both can be the same step, within a second."""
        return self.low_ms <= other.high_ms + _TOLERANCE_MS and other.low_ms <= self.high_ms + _TOLERANCE_MS


class ClockWitness(NamedTuple):
    """A live node. `beats`: how often it has written its heartbeat since the step was noticed here."""

    step: ClockStep | None
    beats: int
    knows_correction: bool

    @property
    def goes_by_database(self) -> bool:
        """Return whether it follows the database's clock: its second heartbeat followed an answer."""
        return self.step is None and self.beats >= _MIN_BEATS


class StepDecision(StrEnum):
    """What to do about a step."""

    WAIT = "wait"
    CORRECT = "correct"
    ACCEPT = "accept"


class StepJudgement(NamedTuple):
    """The decision of the nodes: `step_ms` is the step to correct, noticed by `witnesses` nodes."""

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

    The database's, if most live nodes have noticed the same step; our own, if at least as many nodes follow
    the database as agree with us. A node that is alone trusts itself, unless its machine's clock has stepped
    together with the database's: then its machine has stood still. Nodes of an older version follow the
    database's clock without correction: while one is alive, the step is accepted. So is a step after which
    the database's clock agrees with the machine's own, where it was far off before (`has_come_right`).

    Nodes that expect different times, since each has missed another step, never agree. When a decision is
    overdue, the median is right: the others then find that it follows the database.
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
    """Return the median of the steps that are known about as exactly as the best one.

    The upper bound is used: then the time of the mesh is not ahead, and no lease expires too soon.
    """
    least_ms = min(step.width_ms for step in steps)
    exact = sorted(step.high_ms for step in steps if step.width_ms <= least_ms + _TOLERANCE_MS)
    return exact[(len(exact) - 1) // 2]


def is_followed(nodes: Sequence[ClockWitness]) -> bool:
    """Return whether most live nodes follow the database's clock now: then a command does so too."""
    return 2 * sum(node.goes_by_database for node in nodes) > len(nodes)
