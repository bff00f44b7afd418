"""Views of the roles of nodes, and of the routes to them."""

from __future__ import annotations

from dataclasses import dataclass

from vox_mesh.model.oplog.authorship import Owner
from vox_mesh.oplog.roles import Coordinator
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.record_view import RecordView


@dataclass(frozen=True)
class OwnerView(RecordView, record=Owner):
    """The owner of the mesh."""


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
class OfferView:
    """The ownership was offered to a node, by this op; the node has not accepted it yet."""

    op_id: str
    node_id: str
    role: str = "owner"
    accepted: bool = False


@dataclass(frozen=True)
class RecoveryKeyView:
    """A new recovery key is in force, by this op; it is in this file, or was shown."""

    op_id: str
    recovery_key_file: str | None


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


async def roles_of(mesh: MeshServices) -> RolesView:
    """Return all roles."""
    owner, coordinator = await mesh.roles.owner(), await mesh.roles.coordinator()
    return RolesView(
        None if owner is None else OwnerView.from_record(owner),
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
