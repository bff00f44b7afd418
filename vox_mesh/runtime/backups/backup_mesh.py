"""The mesh that stored backups are of: the backups of another one are never taken for its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from vox_mesh.store.rows import Rows
from vox_mesh.store.schema.statements import named

_SQL: Final = named("backups")
_MAX_LISTED: Final = 3


@dataclass(frozen=True, slots=True)
class BackupMesh:
    """A mesh: its names, and the id of its database if that is known."""

    scope_id: str
    repository_id: str
    database_id: str = ""

    def __str__(self) -> str:
        database = f", database {self.database_id}" if self.database_id else ""
        return f"scope {self.scope_id!r}, repository {self.repository_id!r}{database}"

    @property
    def document(self) -> dict[str, str]:
        """Return what an index records."""
        return {
            "scope_id": self.scope_id,
            "repository_id": self.repository_id,
            "database_id": self.database_id,
        }

    def is_same(self, other: BackupMesh) -> bool:
        """Return whether it is the same mesh, as far as both are known."""
        is_named_alike = (self.scope_id, self.repository_id) == (other.scope_id, other.repository_id)
        return is_named_alike and (
            not self.database_id or not other.database_id or self.database_id == other.database_id
        )


def mesh_in(document: Any) -> BackupMesh | None:
    """Return the mesh that an index records; `None` if an earlier version wrote it.

    Raises `ValueError` if no node can have written it.
    """
    if document is None:
        return None
    found = BackupMesh(**document)
    if not all(isinstance(each, str) for each in found.document.values()):
        raise ValueError("the mesh is no text")
    return found


@dataclass(frozen=True, slots=True)
class BackupOwner:
    """The mesh whose backups these are, and its nodes: an index that names no mesh is theirs."""

    mesh: BackupMesh
    nodes: Collection[str] | None = None
    """All nodes that the mesh ever had; `None`: not known, such as to a command without the database."""

    def strangers(self, node_ids: Iterable[str]) -> str:
        """Return which of these nodes are not known, as text; empty: none."""
        found = sorted(set(node_ids) - set(self.nodes)) if self.nodes is not None else []
        more = f" and {len(found) - _MAX_LISTED} more" if len(found) > _MAX_LISTED else ""
        return ", ".join(found[:_MAX_LISTED]) + more


async def owner_at(
    read: Callable[[str, tuple[str, str]], Awaitable[Rows]], mesh_id: tuple[str, str]
) -> BackupOwner | None:
    """Return the mesh in a database, which `read` asks; `None` if no node has ever joined it."""
    rows = await read(_SQL["database"], mesh_id)
    if not rows:
        return None
    nodes = await read(_SQL["nodes"], mesh_id)
    return BackupOwner(BackupMesh(*mesh_id, str(rows[0][0])), {str(row[0]) for row in nodes})
