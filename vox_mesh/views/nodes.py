"""Views of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import orjson

from vox_mesh.model.nodes.features import waiting_features
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.nodes.nodes import Node
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.record_view import RecordView

_OWNER: Final = "owner"
_COORDINATOR: Final = "coordinator"
_MIXED: Final = 2


class NodeStanding(NamedTuple):
    """The role of a node, and whether the owner has admitted it."""

    role: str
    is_admitted: bool


@dataclass(frozen=True)
class NodeView(RecordView, record=Node, without=("now_ms",)):
    """A node by column, with its role, its admission and the state that its last heartbeat implies."""

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
    admitted: bool

    @classmethod
    def of(cls, node: Node, standing: NodeStanding) -> NodeView:
        """Return the view of a node with its standing."""
        return cls.from_record(
            node,
            kinds=kinds_of(node),
            policy_roots=policy_roots_of(node),
            faults=faults_of(node),
            state=node.state.value,
            role=standing.role,
            admitted=standing.is_admitted,
            age_ms=node.age_ms,
            missed=node.missed,
            consuming=node.is_consuming,
            progressing=node.is_progressing,
        )


@dataclass(frozen=True)
class AdmittedNodeView:
    """A node that the owner has admitted, with this key."""

    node_id: str
    public_key: str


@dataclass(frozen=True)
class RemovedNodeView:
    """A node that was removed from the membership, by this op."""

    op_id: str
    node_id: str


@dataclass(frozen=True)
class VersionView:
    """A version that live nodes run: of the package, and the schema version that it knows, if announced."""

    version: str
    schema_version: int | None
    nodes: list[str]

    def __str__(self) -> str:
        return version_text(self.version, self.schema_version)


def version_text(version: str, schema_version: int | None) -> str:
    """Return a version as text: of the package, and of the schema."""
    return version if schema_version is None else f"{version} (schema {schema_version})"


def versions_of(nodes: Iterable[NodeView]) -> list[VersionView]:
    """Return the versions that nodes run which have neither left nor died, the newest first."""
    found: dict[tuple[int, str], list[NodeView]] = {}
    for node in nodes:
        if node.state not in (NodeState.DEAD, NodeState.LEFT):
            found.setdefault((node.schema_version or 0, node.version), []).append(node)
    return [
        VersionView(version, schema or None, [node.node_id for node in found[schema, version]])
        for schema, version in sorted(found, reverse=True)
    ]


def mixed_versions(versions: Sequence[VersionView]) -> str | None:
    """Return what a mesh whose nodes run several versions waits for; `None` if they run one."""
    if len(versions) < _MIXED:
        return None
    each = "; ".join(f"{version}: {', '.join(version.nodes)}" for version in versions)
    waiting = waiting_features(min(version.schema_version or 0 for version in versions))
    return f"nodes run several versions: {each}" + (f"; waiting: {', '.join(waiting)}" if waiting else "")


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


async def with_standings(mesh: MeshServices, found: list[Node]) -> list[tuple[Node, NodeStanding]]:
    """Return these nodes, each with its standing."""
    owner, coordinator = await mesh.roles.owner(), await mesh.roles.coordinator()
    admissions = await mesh.trusted_keys.admissions()
    with_standing: list[tuple[Node, NodeStanding]] = []
    for node in found:
        roles = []
        if owner is not None and owner.node_id == node.node_id:
            roles.append(_OWNER)
        if coordinator is not None and coordinator.node_id == node.node_id:
            roles.append(_COORDINATOR)
        role = "+".join(roles) or ("worker" if kinds_of(node) else "peer")
        is_admitted = admissions.has_admitted(node.node_id, [node.public_key])
        with_standing.append((node, NodeStanding(role, is_admitted)))
    return with_standing
