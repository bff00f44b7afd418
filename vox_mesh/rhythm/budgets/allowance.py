"""What budgets leave to a phrase, and to those that follow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vox_mesh.model.rhythm.budgets import Budget, Verdict, account_of, agent_of, capped, capped_waits
from vox_mesh.model.rhythm.tempo import Timeline
from vox_mesh.rhythm.budgets.budgets import Budgets, BudgetStanding

_NOTHING_NEW = (Verdict.NO_CLAIMS, Verdict.STOP)


@dataclass(slots=True)
class Allowance:
    """A task's own budget, with those of its agent and of its account. Retries share it."""

    budget: Budget
    agent: str
    spent: float = 0.0
    since_ms: int | None = None
    standings: Sequence[BudgetStanding] = field(default=())
    """Those of the agent and the account, as they were when it was last looked."""

    async def look(self, budgets: Budgets) -> None:
        """Learn how the budgets of the agent and the account stand."""
        subjects = [agent_of(self.agent), *([account_of(self.account)] if self.account else [])]
        found = await budgets.standings()
        self.standings = [found[each] for each in subjects if each in found]

    @property
    def account(self) -> str:
        """Who is charged."""
        return self.budget.charge_to or ""

    def capped(self, beats: Mapping[str, float]) -> dict[str, float]:
        """The beats of phases, none more than any of the budgets allows."""
        return capped(beats, self._budgets)

    def capped_waits(self, beats: Mapping[str, float]) -> dict[str, float]:
        """The same of beats that may be waited."""
        return capped_waits(beats, self._budgets)

    @property
    def _budgets(self) -> list[Budget]:
        return [self.budget, *(each.budget for each in self.standings)]

    def is_exhausted(self, timeline: Timeline, now_ms: int) -> bool:
        """Whether nothing new is to be begun: for the task, for the agent or for the account."""
        return any(each.verdict(timeline, now_ms) in _NOTHING_NEW for each in self._all(now_ms))

    def ends_ms(self, timeline: Timeline, began_ms: int) -> int | None:
        """When all is spent by a phrase that began then, if it goes on so long."""
        ends, left = [], []
        for each in self._all(began_ms):
            ends.append(each.budget.hard_end_ms(timeline, each.since_ms))
            if each.budget.max_bu is not None:
                left.append(each.budget.thresholds.work * each.budget.max_bu - each.bu)
        if left:
            ends.append(timeline.after(began_ms, max(0.0, min(left))))
        return min((end_ms for end_ms in ends if end_ms is not None), default=None)

    def _all(self, now_ms: int) -> list[BudgetStanding]:
        """How all of them stand; that of the task counts from when this is first asked."""
        if self.since_ms is None:
            self.since_ms = now_ms
        return [BudgetStanding(self.budget, self.since_ms, self.spent), *self.standings]
