"""Agents of the mesh: whether they are alive, and what they hold, run and wait for."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from vox_mesh.http.api.operations import AgentName, Operations, Text
from vox_mesh.http.api.pages import Page, PageQuery
from vox_mesh.nodes.agents import MAX_AGENTS
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.agents import ListedAgentView, with_grants
from vox_mesh.views.locks import HeartbeatView

AGENTS: Final = Operations("agents")


class AgentsQuery(PageQuery):
    """The filter of a list of agents."""

    limit: Annotated[int, Field(ge=1, le=MAX_AGENTS)] = 100
    all: bool = False


@AGENTS.get("/v1/agents")
async def list_agents(mesh: MeshServices, query: AgentsQuery) -> Page[ListedAgentView]:
    """List the agents seen within an hour or active, or all seen within a month."""
    found = await mesh.agents.listed(after=query.text or "", limit=query.limit, with_gone=query.all)
    return query.page(await with_grants(mesh, found), lambda view: view.agent_id)


@AGENTS.get("/v1/agents/{agent_id}")
async def show_agent(mesh: MeshServices, agent_id: Text) -> ListedAgentView:
    """Show one agent."""
    (view,) = await with_grants(mesh, [await mesh.agents.find(agent_id)])
    return view


@AGENTS.post("/v1/agents/{agent_id}/heartbeat")
async def send_heartbeat(mesh: MeshServices, agent_id: AgentName) -> HeartbeatView:
    """Report an agent of this node alive, and renew its locks with the session `heartbeats`."""
    return HeartbeatView.of(agent_id, await mesh.locks.heartbeat(agent=agent_id))
