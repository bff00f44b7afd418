"""Roles and routes. Only the node that owns the mesh may change them."""

from __future__ import annotations

from typing import Final

from vox_mesh.http.api.operations import Asked, Operations, Text
from vox_mesh.http.api.pages import Page, PageAsked
from vox_mesh.oplog.roles import AcceptedKey
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.nodes import (
    DesignatedView,
    RolesView,
    RoutedView,
    RouteView,
    roles_of,
    routes_of,
)

ROLES: Final = Operations("roles")


class ToNode(Asked):
    """The node that is meant."""

    node_id: Text


class Rekeying(Asked):
    """The key that is accepted; none: the one that the node came with."""

    key: Text | None = None


@ROLES.get("/v1/roles")
async def show_roles(mesh: MeshServices) -> RolesView:
    """Show the owner of the mesh, the coordinator and the routes."""
    return await roles_of(mesh)


@ROLES.put("/v1/roles/coordinator")
async def designate_coordinator(mesh: MeshServices, body: ToNode) -> DesignatedView:
    """Make a node the coordinator."""
    op = await mesh.roles.designate_coordinator(body.node_id)
    return DesignatedView(op.key, body.node_id)


@ROLES.get("/v1/routes")
async def list_routes(mesh: MeshServices, query: PageAsked) -> Page[RouteView]:
    """List the routes, and the state of the nodes that they lead to."""
    return query.page_of(await routes_of(mesh), lambda view: view.kind)


@ROLES.put("/v1/routes/{kind}")
async def set_route(mesh: MeshServices, kind: Text, body: ToNode) -> RoutedView:
    """Have jobs of a kind, or of all kinds of a pattern, go to one node only."""
    op = await mesh.roles.set_route(kind, body.node_id)
    return RoutedView(op.key, kind, body.node_id)


@ROLES.delete("/v1/routes/{kind}")
async def clear_route(mesh: MeshServices, kind: Text) -> RoutedView:
    """Have jobs of a kind go anywhere again."""
    op = await mesh.roles.clear_route(kind)
    return RoutedView(op.key, kind, None)


@ROLES.post("/v1/nodes/{node_id}/rekey")
async def rekey_node(mesh: MeshServices, node_id: Text, body: Rekeying) -> AcceptedKey:
    """Accept a new key for a node that is known with another."""
    return await mesh.roles.accept_key(node_id, body.key)
