"""Grants of agents. They are issued and revoked with the owner's key, and not over HTTP."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Final

from pydantic import Field

from vox_mesh.http.access import Scope
from vox_mesh.http.admission import Load
from vox_mesh.http.api.operations import AgentName, Operations, RequestModel, Text
from vox_mesh.http.api.pages import Page, PageQuery
from vox_mesh.http.principals.needs import NOTHING, reads_of_others
from vox_mesh.model.grants.grant import MAX_BYTES, SignedGrant
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.grants.grants import GrantCheckView, GrantView, grants_of

GRANTS: Final = Operations("grants")


class GrantsQuery(PageQuery):
    """The filter of a list of grants."""

    agent: AgentName | None = None


class GrantCheck(RequestModel):
    """An agent, and what it would do, such as `lock.acquire on file:src/a`."""

    agent: AgentName
    act: Text


class Delegation(RequestModel):
    """A grant as canonical JSON, and its signature by the agent that has the parent."""

    grant: Annotated[str, Field(min_length=2, max_length=MAX_BYTES)]
    signature: Text


@GRANTS.get("/v1/grants", needs=reads_of_others("agent", "query"))
async def list_grants(mesh: MeshServices, query: GrantsQuery) -> Page[GrantView]:
    """List the grants in force, with the implicit one unless the mesh is strict."""
    return query.page_of(await grants_of(mesh, query.agent), lambda view: view.grant_id or "")


@GRANTS.post("/v1/grants/check", needs=reads_of_others("agent", "body"), scope=Scope.READ, load=Load.READ)
async def check_grant(mesh: MeshServices, body: GrantCheck) -> GrantCheckView:
    """Show whether an agent may do something, by which grant, or why not."""
    return GrantCheckView(*await mesh.grants.check(body.agent, body.act))


@GRANTS.post("/v1/grants/delegate", needs=NOTHING, status=HTTPStatus.CREATED)
async def delegate_grant(mesh: MeshServices, body: Delegation) -> GrantView:
    """Record a delegation that the agent who has the parent has signed."""
    grant = await mesh.grants.record_delegation(SignedGrant(body.grant, body.signature))
    return GrantView.of(await mesh.grants.find(grant.grant_id))


@GRANTS.get("/v1/grants/{grant_id}")
async def show_grant(mesh: MeshServices, grant_id: Text) -> GrantView:
    """Show a grant, also one that has ended."""
    return GrantView.of(await mesh.grants.find(grant_id))
