"""The budgets that apply to a phrase and to its retries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vox_mesh.model.rhythm.budgets import Budget, Verdict, account_of, agent_of, capped, capped_waits
from vox_mesh.model.rhythm.tempo import Timeline
from vox_mesh.rhythm.budgets.budgets import Budgets, BudgetStanding

_BLOCKING_VERDICTS = (Verdict.NO_CLAIMS, Verdict.STOP)


@dataclass(slots=True)
class Allowance:
    """The budgets of a task, its agent and its account. Retries share it."""

    budget: Budget
    agent: str
    spent: float = 0.0
    since_ms: int | None = None
    standings: Sequence[BudgetStanding] = field(default=())
    """The standings of the agent and the account when last read."""

    async def look(self, budgets: Budgets) -> None:
        """Read the standings of the agent and the account."""
        subjects = [agent_of(self.agent), *([account_of(self.account)] if self.account else [])]
        standings = await budgets.standings()
        self.standings = [standings[each] for each in subjects if each in standings]

    @property
    def account(self) -> str:
        """The account that is charged."""
        return self.budget.charge_to or ""

    def capped(self, beats: Mapping[str, float]) -> dict[str, float]:
        """Return the beats of phases, capped by all budgets."""
        return capped(beats, self._budgets)

    def capped_waits(self, beats: Mapping[str, float]) -> dict[str, float]:
        """Return the beats of waits, capped by all budgets."""
        return capped_waits(beats, self._budgets)

    @property
    def _budgets(self) -> list[Budget]:
        return [self.budget, *(each.budget for each in self.standings)]

    def is_exhausted(self, timeline: Timeline, now_ms: int) -> bool:
        """Return whether the budget of the task, the agent or the account forbids new work."""
        return any(
            each.verdict(timeline, now_ms) in _BLOCKING_VERDICTS for each in self._all_standings(now_ms)
        )

    def ends_ms(self, timeline: Timeline, began_ms: int) -> int | None:
        """Return when a phrase that began then has used up the budgets, or `None`."""
        ends, left = [], []
        for each in self._all_standings(began_ms):
            ends.append(each.budget.hard_end_ms(timeline, each.since_ms))
            if each.budget.max_bu is not None:
                left.append(each.budget.thresholds.work * each.budget.max_bu - each.bu)
        if left:
            ends.append(timeline.after(began_ms, max(0.0, min(left))))
        return min((end_ms for end_ms in ends if end_ms is not None), default=None)

    def _all_standings(self, now_ms: int) -> list[BudgetStanding]:
        """Return all standings; the task's counts from the first call."""
        if self.since_ms is None:
            self.since_ms = now_ms
        return [BudgetStanding(self.budget, self.since_ms, self.spent), *self.standings]
