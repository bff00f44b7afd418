"""Nodes of the mesh."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from vox_mesh.errors import NotKnown
from vox_mesh.http.api.operations import Operations, Text
from vox_mesh.http.api.pages import Page, PageAsked
from vox_mesh.nodes.nodes import STALE_MS
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.nodes import NodeView, with_roles

NODES: Final = Operations("nodes")

_MAX_MS: Final = 2**53


class NodesAsked(PageAsked):
    """The filter of a list of nodes."""

    stale_ms: Annotated[int, Field(ge=0, le=_MAX_MS)] = STALE_MS
    all: bool = False


@NODES.get("/v1/nodes")
async def list_nodes(mesh: MeshServices, query: NodesAsked) -> Page[NodeView]:
    """List the live nodes, or all that ever were here."""
    found = await (mesh.nodes.all() if query.all else mesh.nodes.live_nodes_from_db(query.stale_ms))
    views = [NodeView.of(*each) for each in await with_roles(mesh, found)]
    return query.page_of(views, lambda view: view.node_id)


@NODES.get("/v1/nodes/{node_id}")
async def show_node(mesh: MeshServices, node_id: Text) -> NodeView:
    """Show a node."""
    node = await mesh.nodes.find(node_id)
    if node is None:
        raise NotKnown(f"no node {node_id!r} was ever here", hint="GET /v1/nodes?all=true lists them")
    ((node, role),) = await with_roles(mesh, [node])
    return NodeView.of(node, role)
