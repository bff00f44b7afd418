"""Views of workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vox_mesh.jobs.queries import Situation
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.nodes.nodes import Node
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.nodes import kinds_of

_GONE: Final = (NodeState.DEAD, NodeState.LEFT)


@dataclass(frozen=True)
class WorkerView:
    """A node that works on jobs: on which kinds, for how many it has room, and how many are in hand."""

    node_id: str
    state: str
    kinds: list[str]
    capacity: int
    in_hand: int
    draining: bool

    @classmethod
    def of(cls, node: Node, situation: Situation) -> WorkerView:
        """Return the view of a worker."""
        return cls(
            node_id=node.node_id,
            state=node.state.value,
            kinds=kinds_of(node),
            capacity=node.capacity,
            in_hand=situation.places.get(node.node_id, 0),
            draining=node.node_id in situation.drains,
        )


async def workers(mesh: MeshServices) -> list[WorkerView]:
    """Return all workers; dead nodes only if they have jobs or are drained."""
    situation = await mesh.jobs.roster.situation()
    return [
        WorkerView.of(node, situation)
        for node in await mesh.nodes.all()
        if (node.capacity and node.state not in _GONE)
        or node.node_id in situation.places
        or node.node_id in situation.drains
    ]


async def find_worker(mesh: MeshServices, node_id: str) -> WorkerView:
    """Return a node as a worker."""
    return WorkerView.of(await mesh.nodes.require(node_id), await mesh.jobs.roster.situation())
