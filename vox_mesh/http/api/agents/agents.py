"""Agents of the mesh: whether they are alive, and what they hold, run and wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from vox_mesh.http.api.operations import Operations, Text
from vox_mesh.http.api.pages import Page, PageQuery
from vox_mesh.http.principals.needs import NOTHING, SIGNATURE, reads_of_others
from vox_mesh.http.principals.own_names import OwnAgent
from vox_mesh.nodes.agents import MAX_AGENTS
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.agents.agent_page import AgentPageView, page_of
from vox_mesh.views.agents.agents import ListedAgentView, with_grants
from vox_mesh.views.locks import HeartbeatView

AGENTS: Final = Operations("agents")


class AgentsQuery(PageQuery):
    """The filter of a list of agents."""

    limit: Annotated[int, Field(ge=1, le=MAX_AGENTS)] = 100
    all: bool = False


@dataclass(frozen=True)
class BearerView:
    """A bearer, for the header `Authorization: Bearer`, and the time of the mesh at which it is stale."""

    agent_id: str
    bearer: str
    expires_ms: int


@AGENTS.get("/v1/agents")
async def list_agents(mesh: MeshServices, query: AgentsQuery) -> Page[ListedAgentView]:
    """List the agents seen within an hour or active, or all seen within a month."""
    found = await mesh.agents.listed(after=query.text or "", limit=query.limit, with_gone=query.all)
    return query.page(await with_grants(mesh, found), lambda view: view.agent_id)


@AGENTS.get("/v1/agents/{agent_id}", needs=reads_of_others("agent_id"))
async def show_agent(mesh: MeshServices, agent_id: Text) -> AgentPageView:
    """Show one agent: its grants, locks, jobs, messages, spending and last actions."""
    return await page_of(mesh, agent_id)


@AGENTS.post("/v1/agents/{agent_id}/heartbeat", needs=NOTHING)
async def send_heartbeat(mesh: MeshServices, agent_id: OwnAgent) -> HeartbeatView:
    """Report an agent of this node alive, and renew its locks with the session `heartbeats`."""
    return HeartbeatView.of(agent_id, await mesh.locks.heartbeat(agent=agent_id))


@AGENTS.post("/v1/agents/{agent_id}/bearer", needs=SIGNATURE)
async def issue_bearer(mesh: MeshServices, agent_id: OwnAgent) -> BearerView:
    """Issue a bearer to an agent, which stands for its signature at this node until the bar ends."""
    return BearerView(*await mesh.principals.bearers.issue(agent_id))
