"""What the limits of an attempt share with its worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, Protocol

from vox_mesh.errors import OverBudget
from vox_mesh.jobs.worker.attempt_result import AttemptResult
from vox_mesh.jobs.worker.limit_watch import LimitWatch
from vox_mesh.jobs.worker.metering import Shares
from vox_mesh.model.jobs.records import JobState
from vox_mesh.model.rhythm.budgets import Budget
from vox_mesh.model.rhythm.costs import PhraseOutcome
from vox_mesh.rhythm.budgets import Budgets, BudgetStanding
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.rhythm.phrases.spec import PhraseParts

NO_BUDGET: Final = Budget()
"""The budget of a job without one."""

Work = Callable[[], Awaitable[AttemptResult]]
"""The work of an attempt: it runs a handler or a command."""


class BegunPhrase(NamedTuple):
    """The phrase of an attempt that has begun."""

    phrase_id: str
    began_ms: int


class LimitServices(Protocol):
    """The services of a worker that the limits of its attempts use."""

    parts: PhraseParts
    rhythm: RhythmContext
    budgets: Budgets
    shares: Shares
    watch: LimitWatch

    @property
    def agent(self) -> str:
        """Return the agent that is charged."""


def caps_of(budget: Budget) -> Budget:
    """Return the caps of a budget: its total is checked by the worker."""
    return budget.model_copy(update={"max_bu": None, "hard_end": None})


def spend_error(subject: str, standing: BudgetStanding, used: Mapping[str, int]) -> OverBudget | None:
    """Return why an attempt must stop because of the tokens and money it has used, or `None`."""
    for name, limit in standing.budget.spend_limits.items():
        spent = standing.spent.get(name, 0) + used.get(name, 0)
        if used.get(name) and spent >= standing.budget.thresholds.work * limit.most:
            return OverBudget(f"{spent} of {limit.most} {name} of the budget of {subject} are used")
    return None


def hard_end_reason(subject: str, budget: Budget) -> str:
    """Return why a budget has ended by its time."""
    return f"the budget of {subject} has its hard end: {budget.hard_end}"


def outcome_of(result: AttemptResult | None) -> PhraseOutcome:
    """Return the outcome of an attempt; without a result it was stopped."""
    if result is None or result.is_requeued:
        return PhraseOutcome.DEFERRED
    return PhraseOutcome.DONE if result.state is JobState.SUCCEEDED else PhraseOutcome.FAILED
