"""Nodes of the mesh, their roles, and the routes of job kinds to them."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from vox_mesh.errors import NotKnown
from vox_mesh.http.api.operations import Operations, Text
from vox_mesh.http.api.pages import Page, PageQuery
from vox_mesh.http.principals.needs import writes
from vox_mesh.model.nodes.liveness import REMOVE_NODE, STALE_MS
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.nodes import NodeView, RemovedNodeView, with_standings
from vox_mesh.views.roles import RolesView, RouteView, roles_of, routes_of

NODES: Final = Operations("nodes")

_MAX_MS: Final = 2**53


class NodesQuery(PageQuery):
    """The filter of a list of nodes."""

    stale_ms: Annotated[int, Field(ge=0, le=_MAX_MS)] = STALE_MS
    all: bool = False


@NODES.get("/v1/nodes")
async def list_nodes(mesh: MeshServices, query: NodesQuery) -> Page[NodeView]:
    """List the live nodes, or all that ever joined."""
    found = await (mesh.nodes.all() if query.all else mesh.nodes.live_nodes_from_db(query.stale_ms))
    views = [NodeView.of(*each) for each in await with_standings(mesh, found)]
    return query.page_of(views, lambda view: view.node_id)


@NODES.get("/v1/nodes/{node_id}")
async def show_node(mesh: MeshServices, node_id: Text) -> NodeView:
    """Show a node."""
    node = await mesh.nodes.find(node_id)
    if node is None:
        raise NotKnown(f"node {node_id!r} not found", hint="see GET /v1/nodes?all=true")
    (found,) = await with_standings(mesh, [node])
    return NodeView.of(*found)


@NODES.delete("/v1/nodes/{node_id}", needs=writes(REMOVE_NODE))
async def remove_node(mesh: MeshServices, node_id: Text) -> RemovedNodeView:
    """Remove a node that has died or left."""
    return RemovedNodeView(await mesh.nodes.remove(node_id), node_id)


ROLES: Final = Operations("roles")


@ROLES.get("/v1/roles")
async def show_roles(mesh: MeshServices) -> RolesView:
    """Show the owner, the coordinator and the routes."""
    return await roles_of(mesh)


@ROLES.get("/v1/routes")
async def list_routes(mesh: MeshServices, query: PageQuery) -> Page[RouteView]:
    """List the routes and the states of their nodes."""
    return query.page_of(await routes_of(mesh), lambda view: view.kind)


OWNER_COMMANDS: Final = (
    ("PUT", "/v1/roles/coordinator", "vox-mesh roles designate-coordinator NODE"),
    ("PUT", "/v1/routes/{kind}", "vox-mesh route set KIND NODE"),
    ("DELETE", "/v1/routes/{kind}", "vox-mesh route clear KIND"),
    ("POST", "/v1/nodes/{node_id}/rekey", "vox-mesh nodes rekey NODE"),
    ("POST", "/v1/nodes/{node_id}/admit", "vox-mesh nodes admit NODE"),
    ("POST", "/v1/agents/{agent_id}/admit", "vox-mesh agents admit AGENT"),
    ("POST", "/v1/grants/issue", "vox-mesh grant issue AGENT CAPABILITIES"),
    ("POST", "/v1/grants/{grant_id}/revoke", "vox-mesh grant revoke GRANT"),
    ("PUT", "/v1/strict", "vox-mesh grant strict on"),
)
"""What is done with the owner's key only: method, path and the command."""
