"""The page of an agent: what it may do, what it holds, what it has spent, and what it has done last."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from vox_mesh.model.rhythm.budgets import agent_of
from vox_mesh.nodes.agents import AgentAction, JobOfAgent, LockOfAgent
from vox_mesh.oplog.grants.usage import LimitUse, uses_of
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.agents.agents import ListedAgentView, with_grants
from vox_mesh.views.grants.grants import GrantView, grants_of
from vox_mesh.views.record_view import RecordView
from vox_mesh.views.tokens import LimitView, ModelSpendView, tokens_text

_MAX_GRANTS: Final = 20


@dataclass(frozen=True)
class LockOfAgentView(RecordView, record=LockOfAgent):
    """A lock that the agent holds, and until when."""


@dataclass(frozen=True)
class JobOfAgentView(RecordView, record=JobOfAgent):
    """A job that the agent has taken or scheduled."""


@dataclass(frozen=True)
class AgentActionView(RecordView, record=AgentAction):
    """An entry of the log by which the agent acted; one that is not accepted says why."""


@dataclass(frozen=True)
class LimitUseView(RecordView, record=LimitUse):
    """How much of a limit of a grant is used: within its period, open now, or of its budget in beats."""


@dataclass(frozen=True)
class AgentPageView(ListedAgentView):
    """An agent with all that concerns it. The lists have at most 20 items.

    `grant_use` is the use of the limits of its grants, `budget` are the limits on tokens and money, `spend`
    the tokens of today and of this month by model.
    """

    granted: list[GrantView]
    grant_use: list[LimitUseView]
    budget: list[LimitView]
    spend: list[ModelSpendView]
    held_locks: list[LockOfAgentView]
    taken: list[JobOfAgentView]
    scheduled: list[JobOfAgentView]
    unacknowledged: int
    awaiting_acknowledgement: int
    last_actions: list[AgentActionView]

    @property
    def texts(self) -> dict[str, object]:
        """Return the lists as text, for people."""
        return {
            "locks": ", ".join(self.locks),
            "waits_for": ", ".join(self.waits_for),
            "jobs": ", ".join(f"{job.kind} {job.job_id[:8]}" for job in self.jobs),
            "granted": [{**each.line, "until": each.valid_until or "-"} for each in self.granted],
            "budget": [vars(each) for each in self.budget],
            "spend": [
                {"model": each.model, "today": tokens_text(each.today), "month": tokens_text(each.month)}
                for each in self.spend
            ],
            **{
                name: [vars(each) for each in getattr(self, name)]
                for name in ("grant_use", "held_locks", "taken", "scheduled", "last_actions")
            },
        }


async def page_of(mesh: MeshServices, agent: str) -> AgentPageView:
    """Return the page of an agent. Raises `NotKnown` if it has not acted within a month."""
    (listed,) = await with_grants(mesh, [await mesh.agents.find(agent)])
    details = await mesh.agents.details(agent)
    now = datetime.fromtimestamp(mesh.clock.now_ms / 1_000, UTC)
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    spend = await mesh.rhythm.tokens.of_agent(agent, round(month.timestamp() * 1_000))
    grants = [each.grant for each in await mesh.grants.in_force(agent)][:_MAX_GRANTS]
    uses = await uses_of(mesh.store, grants)
    return AgentPageView(
        **vars(listed),
        granted=(await grants_of(mesh, agent))[:_MAX_GRANTS],
        grant_use=[LimitUseView.from_record(each) for each in uses[:_MAX_GRANTS]],
        budget=[LimitView.of(each) for each in await mesh.rhythm.tokens.limits(agent_of(agent))],
        spend=[ModelSpendView.of(each) for each in spend],
        held_locks=[LockOfAgentView.from_record(each) for each in details.locks],
        taken=[JobOfAgentView.from_record(each) for each in details.taken],
        scheduled=[JobOfAgentView.from_record(each) for each in details.scheduled],
        unacknowledged=details.unacknowledged,
        awaiting_acknowledgement=details.awaiting,
        last_actions=[AgentActionView.from_record(each) for each in details.last_actions],
    )
