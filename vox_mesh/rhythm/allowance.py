"""What budgets leave to a phrase, and to those that follow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vox_mesh.model.rhythm.budgets import Budget, Verdict, account_of, agent_of
from vox_mesh.model.rhythm.tempo import Timeline
from vox_mesh.rhythm.budgets import Budgets, Standing

_NOTHING_NEW = (Verdict.NO_CLAIMS, Verdict.STOP)


@dataclass(slots=True)
class Allowance:
    """A task's own budget, with those of its agent and of its account. Retries share it."""

    budget: Budget
    agent: str
    spent: float = 0.0
    since_ms: int | None = None
    standings: Sequence[Standing] = field(default=())

    async def look(self, budgets: Budgets) -> None:
        """Learn how the budgets of the agent and the account stand."""
        subjects = [agent_of(self.agent), *([account_of(self.account)] if self.account else [])]
        found = await budgets.standings()
        self.standings = [found[each] for each in subjects if each in found]

    @property
    def account(self) -> str:
        """Who is charged."""
        return self.budget.charge_to or ""

    def is_exhausted(self, timeline: Timeline, now_ms: int) -> bool:
        """Whether nothing new is to be begun for the agent or the account."""
        return any(each.verdict(timeline, now_ms) in _NOTHING_NEW for each in self.standings)

    def ends_ms(self, timeline: Timeline, began_ms: int) -> int | None:
        """When all is spent by a phrase that began then, if it goes on so long."""
        if self.since_ms is None:
            self.since_ms = began_ms
        ends = [self.budget.hard_end_ms(timeline, self.since_ms)]
        left = [] if self.budget.max_bu is None else [self.budget.max_bu - self.spent]
        for each in self.standings:
            ends.append(each.budget.hard_end_ms(timeline, each.since_ms))
            if each.budget.max_bu is not None:
                left.append(each.budget.thresholds.work * each.budget.max_bu - each.bu)
        if left:
            ends.append(timeline.after(began_ms, max(0.0, min(left))))
        return min((end_ms for end_ms in ends if end_ms is not None), default=None)
