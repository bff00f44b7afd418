"""Views of agents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from vox_mesh.model.locks.records import iso_of
from vox_mesh.model.principals.agent_token import AgentToken
from vox_mesh.nodes.agents import Agent
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.record_view import RecordView


@dataclass(frozen=True)
class AgentJobView:
    """A job that an agent has taken, or that runs on its node, and since when."""

    job_id: str
    kind: str
    started_ms: int | None


@dataclass(frozen=True)
class AgentView(RecordView, record=Agent):
    """An agent, with what it holds, runs and waits for."""

    agent_id: str
    state: str
    locks: list[str]
    waits_for: list[str]
    jobs: list[AgentJobView]

    @classmethod
    def of(cls, agent: Agent) -> AgentView:
        """Return the view of an agent."""
        return cls.from_record(
            agent,
            state=agent.state.value,
            locks=list(agent.locks),
            waits_for=list(agent.waits_for),
            jobs=[AgentJobView(*job) for job in agent.jobs],
        )

    @property
    def works_on(self) -> str:
        """The task it claims to work on, or else the kinds of its jobs."""
        if self.task_id is not None:
            return f"{self.task_id} ({self.task_state})"
        return ", ".join(dict.fromkeys(job.kind for job in self.jobs))


@dataclass(frozen=True)
class ListedAgentView(AgentView):
    """An agent, whether the owner has admitted it, with which key, and how many grants it has in force."""

    admitted: bool
    public_key: str | None
    grants: int


async def with_grants(mesh: MeshServices, agents: Sequence[Agent]) -> list[ListedAgentView]:
    """Return the views of agents, with what the owner has said about each."""
    history = await mesh.grants.history()
    grants = Counter(each.grant.agent for each in await mesh.grants.in_force())
    views: list[ListedAgentView] = []
    for agent in agents:
        found = history.admission(agent.agent_id)
        key = None if found is None else found.public_key
        values = vars(AgentView.of(agent))
        views.append(
            ListedAgentView(
                **values, admitted=found is not None, public_key=key, grants=grants[agent.agent_id]
            )
        )
    return views


def some_of(listed: list[str], count: int) -> str:
    """Return the first of several names, and how many more there are."""
    more = count - 1
    return "" if not listed else f"{listed[0]} +{more}" if more > 0 else listed[0]


@dataclass(frozen=True)
class AgentKeyView:
    """An agent and its public key."""

    agent: str
    public_key: str | None


@dataclass(frozen=True)
class AgentTokenView:
    """A token of an agent in force, without its text."""

    token_id: str
    agent_id: str
    valid_until: str

    @classmethod
    def of(cls, token: AgentToken) -> AgentTokenView:
        """Return the view of a token."""
        return cls(token.token_id, token.agent, iso_of(token.until_ms))
