"""Stored backups, and the indexes of them that are stored next to them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import ArchiveFailed
from vox_mesh.runtime.backups.backup_mesh import BackupMesh, mesh_in
from vox_mesh.store.targets.target import FileTarget

CHUNKED: Final = ".json"
WHOLE: Final = ".db"
"""How the name of a backup ends: one in chunks has that of its manifest, an earlier one that of its file."""

_MAX_BYTES: Final = 2**22
_PREFIX: Final = "vox-mesh-"
_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999."""


class StoredBackup(NamedTuple):
    """A stored backup."""

    name: str
    at_ms: int
    """The time of the mesh when it was begun."""
    bytes: int
    sha256: str
    """The digest of the file of this name."""
    node_id: str
    """The node that made it."""


class Listing(NamedTuple):
    """The content of an index."""

    backups: Sequence[StoredBackup] = ()
    unfinished: Sequence[str] = ()
    """Names of backups that do not count: they are not complete yet, or are being deleted."""
    mesh: BackupMesh | None = None
    """The mesh that they are of; `None`: an earlier version wrote the index."""
    fence_token: int = 0
    """The fencing token of the node that wrote the index."""


class BackupIndex:
    """An index: a backup counts once it is listed."""

    def __init__(self, target: FileTarget, name: str, suffix: str) -> None:
        """`suffix` is how the names of its backups end."""
        self._target = target
        self._name = name
        self._suffix = suffix

    async def read(self) -> Listing:
        """Return what is listed. Raises `ArchiveFailed`."""
        content = await self._target.read(self._name, _MAX_BYTES)
        if content is None:
            return Listing()
        try:
            document = orjson.loads(content)
            return Listing(
                [self._backup_of(each) for each in document["backups"]],
                [self._checked(each) for each in document.get("unfinished", ())],
                mesh_in(document.get("mesh")),
                _number_in(document.get("fence_token", 0)),
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ArchiveFailed(
                f"{self._target}/{self._name} is not an index of backups",
                hint="restore it, or move it away: its backups are then no longer listed or removed",
            ) from None

    async def write(self, listing: Listing) -> None:
        """Replace the index."""
        document: dict[str, Any] = {"backups": [each._asdict() for each in listing.backups]}
        if listing.mesh is not None:
            document |= {"mesh": listing.mesh.document, "fence_token": listing.fence_token}
        if listing.unfinished:
            document["unfinished"] = list(listing.unfinished)
        await store_content(self._target, self._name, orjson.dumps(document, option=orjson.OPT_INDENT_2))

    def _backup_of(self, document: dict[str, Any]) -> StoredBackup:
        """Return a backup of the index. Raises `ValueError` if no node can have written it."""
        backup = StoredBackup(**document)
        self._checked(backup.name)
        if not 0 <= _number_in(backup.at_ms) <= _LAST_MS or _number_in(backup.bytes) < 0:
            raise ValueError(backup.name)
        return backup

    def _checked(self, name: str) -> str:
        if not name.startswith(_PREFIX) or not name.endswith(self._suffix) or "/" in name:
            raise ValueError(name)
        return name


def _number_in(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(value)
    return value


async def store_content(target: FileTarget, name: str, content: bytes) -> None:
    """Store a small file."""
    with tempfile.TemporaryDirectory(prefix="vox-mesh-") as folder:
        file = Path(folder) / name
        file.write_bytes(content)
        await target.put(name, file)


def backup_name(at_ms: int, unique: str) -> str:
    """Return the name of a backup of this time of the mesh."""
    time = datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y%m%dT%H%M%SZ")
    return f"{_PREFIX}{time}-{unique}{CHUNKED}"
