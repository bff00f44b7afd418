"""Views of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import orjson

from vox_mesh.nodes.nodes import Node
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.record_view import RecordView

_OWNER: Final = "owner"
_COORDINATOR: Final = "coordinator"


@dataclass(frozen=True)
class NodeView(RecordView, record=Node, without=("now_ms",)):
    """A node by column, with its role and with the state that its last heartbeat implies."""

    node_id: str
    state: str
    role: str
    age_ms: int
    missed: int
    consuming: bool
    progressing: bool
    kinds: list[str]
    policy_roots: list[str] | None
    faults: list[str]

    @classmethod
    def of(cls, node: Node, role: str) -> NodeView:
        """Return the view of a node in its role."""
        return cls.from_record(
            node,
            kinds=kinds_of(node),
            policy_roots=policy_roots_of(node),
            faults=faults_of(node),
            state=node.state.value,
            role=role,
            age_ms=node.age_ms,
            missed=node.missed,
            consuming=node.is_consuming,
            progressing=node.is_progressing,
        )


@dataclass(frozen=True)
class RemovedNodeView:
    """A node that was removed from the membership, by this op."""

    op_id: str
    node_id: str


def kinds_of(node: Node) -> list[str]:
    """Return the job kinds a node announces."""
    return _texts(node.kinds)


def policy_roots_of(node: Node) -> list[str] | None:
    """Return the policy roots of which a node runs jobs, or `None` for any."""
    return None if node.policy_roots is None else _texts(node.policy_roots)


def faults_of(node: Node) -> list[str]:
    """Return the reasons a node reports for not being ready."""
    return _texts(node.faults or "[]")


def _texts(said: str) -> list[str]:
    try:
        texts = orjson.loads(said)
    except orjson.JSONDecodeError:
        return []
    return [str(each) for each in texts] if isinstance(texts, list) else []


async def with_roles(mesh: MeshServices, found: list[Node]) -> list[tuple[Node, str]]:
    """Return these nodes, each with its role."""
    owner, coordinator = await mesh.roles.owner(), await mesh.roles.coordinator()
    with_role: list[tuple[Node, str]] = []
    for node in found:
        roles = []
        if owner is not None and owner.node_id == node.node_id:
            roles.append(_OWNER)
        if coordinator is not None and coordinator.node_id == node.node_id:
            roles.append(_COORDINATOR)
        with_role.append((node, "+".join(roles) or ("worker" if kinds_of(node) else "peer")))
    return with_role
