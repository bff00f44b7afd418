"""Views of budgets and spending."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vox_mesh.rhythm.budgets import SetBudget, Spending


@dataclass(frozen=True)
class BudgetView:
    """A budget that is set. `budget` is as it was written."""

    subject: str
    since_ms: int
    budget: dict[str, Any]

    @classmethod
    def of(cls, found: SetBudget) -> BudgetView:
        """Return the view of a budget."""
        return cls(found.subject, found.since_ms, found.budget.document())


@dataclass(frozen=True)
class SpendingView:
    """What an agent or account has spent. Resources that no system told are absent."""

    subject: str
    phrases: int
    bu: float
    cost: float
    resources: dict[str, Any]
    max_bu: float | None
    since_ms: int | None
    verdict: str

    @classmethod
    def of(cls, found: Spending) -> SpendingView:
        """Return the view of a subject's spending."""
        return cls(
            found.subject,
            found.phrases,
            found.bu,
            found.cost,
            found.resources.as_json(),
            None if found.budget is None else found.budget.max_bu,
            found.since_ms,
            found.verdict.value,
        )
