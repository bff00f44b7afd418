"""Hooks: what an agent's host asks for at a glance. Tokens of agents are accepted here."""

from __future__ import annotations

from typing import Final

from vox_mesh.errors import BadValue
from vox_mesh.http.api.operations import Operations
from vox_mesh.http.principals.needs import NOTHING
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.acting import current_agent
from vox_mesh.views.agents.brief import BriefView, brief_of

HOOKS: Final = Operations("hooks")


@HOOKS.get("/v1/hooks/brief", needs=NOTHING)
async def show_brief(mesh: MeshServices) -> BriefView:
    """Show an agent who it is, its unread messages and locks, the jobs it could take, and the beat."""
    agent = current_agent()
    if agent is None:
        raise BadValue("no agent given", hint="sign the request, or send the header `Vox-Agent: NAME`")
    return await brief_of(mesh, agent)
