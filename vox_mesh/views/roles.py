"""Views of roles and routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from vox_mesh.errors import NotKnown, Refused
from vox_mesh.oplog.roles import Coordinator, Owner
from vox_mesh.runtime.services import MeshServices


@dataclass(frozen=True)
class OwnerView:
    """The owner of the mesh."""

    node_id: str
    public_key: str
    op_id: str

    @classmethod
    def of(cls, owner: Owner) -> OwnerView:
        """Return the view of the owner."""
        return cls(*owner)


@dataclass(frozen=True)
class CoordinatorView:
    """Who is designated, and whether it drifts: it has died or left, and has no successor."""

    node_id: str
    state: str
    drift: bool
    op_id: str
    hlc: str

    @classmethod
    def of(cls, coordinator: Coordinator) -> CoordinatorView:
        """Return the view of the coordinator."""
        state = "unknown" if coordinator.node is None else coordinator.node.state.value
        return cls(coordinator.node_id, state, coordinator.is_drifting, coordinator.op_id, coordinator.hlc)


@dataclass(frozen=True)
class RolesView:
    """Who owns the mesh, and whom the owner has put in charge of what."""

    owner: OwnerView | None
    coordinator: CoordinatorView | None
    routes: dict[str, str]


@dataclass(frozen=True)
class DesignatedView:
    """A node was put in charge, by this op."""

    op_id: str
    node_id: str
    role: str = "coordinator"


@dataclass(frozen=True)
class RouteView:
    """A kind of job that goes to one node only, and how that node stands."""

    kind: str
    node_id: str
    state: str


@dataclass(frozen=True)
class RoutedView:
    """Jobs of a kind go to this node only, or anywhere again, by this op."""

    op_id: str
    kind: str
    node_id: str | None


@dataclass(frozen=True)
class KeyView:
    """A new key was accepted for a node, by this op; `host` and `pid` are of the process that presented it."""

    node_id: str
    public_key: str
    host: str | None
    pid: int | None
    op_id: str


async def roles_of(mesh: MeshServices) -> RolesView:
    """Return all roles."""
    owner, coordinator = await mesh.roles.owner(), await mesh.roles.coordinator()
    return RolesView(
        None if owner is None else OwnerView.of(owner),
        None if coordinator is None else CoordinatorView.of(coordinator),
        await mesh.roles.routes(),
    )


async def routes_of(mesh: MeshServices) -> list[RouteView]:
    """Return all routes."""
    states = {node.node_id: node.state.value for node in await mesh.nodes.all()}
    return [
        RouteView(kind, node_id, states.get(node_id, "unknown"))
        for kind, node_id in (await mesh.roles.routes()).items()
    ]


async def route(mesh: MeshServices, kind: str, node_id: str) -> RoutedView:
    """Route jobs of a kind to one node."""
    if await mesh.nodes.find(node_id) is None:
        raise NotKnown(f"no node {node_id!r} was ever here", hint="see `vox-mesh nodes --all`")
    return await _set_route(mesh, kind, node_id)


async def clear_route(mesh: MeshServices, kind: str) -> RoutedView:
    """Remove the route of a kind."""
    if kind not in await mesh.roles.routes():
        raise NotKnown(f"there is no route for {kind}", hint="see `vox-mesh route list`")
    return await _set_route(mesh, kind, None)


async def _set_route(mesh: MeshServices, kind: str, node_id: str | None) -> RoutedView:
    async with explain_refusals(mesh):
        op = await mesh.roles.route_kind(kind, node_id)
    return RoutedView(op.key, kind, node_id)


async def rekey(mesh: MeshServices, node_id: str, key: str | None) -> KeyView:
    """Accept a new key for a node; by default, the key that was rejected."""
    async with explain_refusals(mesh):
        request = await mesh.roles.key_request(node_id)
        asked = None if request is None else request.public_key
        accepted, op = await mesh.roles.rekey(node_id, key or asked)
    is_asked = request is not None and accepted == asked
    host, pid = (request.host, request.pid) if request is not None and is_asked else (None, None)
    return KeyView(node_id, accepted, host, pid, op.key)


@asynccontextmanager
async def explain_refusals(mesh: MeshServices) -> AsyncIterator[None]:
    """Add a hint to refusals of actions that only the owner may take."""
    try:
        yield
    except Refused as refused:
        owner = await mesh.roles.owner()
        if refused.reason == "the_owner_keeps_its_key":
            refused.hint = "put the owner's key.pem back: its key is what the mesh knows it by"
        elif refused.reason != "not_the_owner":
            refused.hint = "stop that node first"
        elif owner is None:
            refused.hint = "the mesh has no owner yet: the first node that is started becomes it"
        else:
            refused.hint = f"the owner of the mesh is {owner.node_id}: run this there, with its key"
        raise
