"""The backups in a folder or a bucket, and the index of them that is stored there."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import ArchiveFailed, BackupRefused
from vox_mesh.store.files import publish
from vox_mesh.store.targets.content import file_digest
from vox_mesh.store.targets.target import FileTarget

INDEX: Final = "vox-mesh-backups.json"
_MAX_INDEX_BYTES: Final = 2**22
_PREFIX: Final = "vox-mesh-"


class StoredBackup(NamedTuple):
    """A stored backup, an ordinary SQLite file."""

    name: str
    at_ms: int
    """The time of the mesh when it was begun."""
    bytes: int
    sha256: str
    node_id: str
    """The node that made it."""


class StoredBackups:
    """Lists, adds, removes and fetches backups. Only one process may change them at a time."""

    def __init__(self, target: FileTarget) -> None:
        self._target = target

    def __str__(self) -> str:
        return str(self._target)

    async def listed(self) -> list[StoredBackup]:
        """Return the backups, the oldest first. Raises `ArchiveFailed`."""
        content = await self._target.read(INDEX, _MAX_INDEX_BYTES)
        if content is None:
            return []
        try:
            return [_backup_of(each) for each in orjson.loads(content)["backups"]]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ArchiveFailed(
                f"{self._target}/{INDEX} is not an index of backups",
                hint="restore it, or move it away: its backups are then no longer listed or removed",
            ) from None

    async def add(self, backup: StoredBackup, file: Path, keep: int) -> None:
        """Store a backup, read it back, and remove the oldest ones beyond the number to keep.

        Raises:
            ArchiveFailed: It can't be stored, or what is read back is not what was stored.
        """
        await self._target.put(backup.name, file)
        await self._verify(backup)
        stored = [*await self.listed(), backup]
        kept, dropped = stored[-keep:], stored[:-keep]
        await self._write_index(kept)
        for each in dropped:
            await self._target.remove(each.name)

    async def fetch(self, name: str, path: Path) -> StoredBackup:
        """Copy a backup to a new file, and verify it. Raises `ArchiveFailed` and `BackupRefused`."""
        found = {each.name: each for each in await self.listed()}
        if name not in found:
            raise BackupRefused(f"there is no backup {name!r}", hint="run `vox-mesh db backups` to list them")
        if await asyncio.to_thread(path.exists):
            raise BackupRefused(f"{path} exists already", hint="choose a name that is free")
        backup = found[name]
        async with self._target.get(name, backup.bytes) as source:
            with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
                draft = Path(folder) / "draft"
                await asyncio.to_thread(_copy, source, draft)
                await self._compare(backup, draft)
                await asyncio.to_thread(publish, draft, path)
        return backup

    async def _verify(self, backup: StoredBackup) -> None:
        async with self._target.get(backup.name, backup.bytes) as source:
            await self._compare(backup, source)

    async def _compare(self, backup: StoredBackup, file: Path) -> None:
        if await asyncio.to_thread(file_digest, file) != backup.sha256:
            raise ArchiveFailed(
                f"backup {backup.name} at {self._target} is not what was stored",
                hint="use another one; check who can write there, and the disk",
            )

    async def _write_index(self, backups: Sequence[StoredBackup]) -> None:
        document = {"backups": [each._asdict() for each in backups]}
        with tempfile.TemporaryDirectory(prefix="vox-mesh-") as folder:
            file = Path(folder) / INDEX
            file.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
            await self._target.put(INDEX, file)


def _copy(source: Path, draft: Path) -> None:
    shutil.copyfile(source, draft)
    draft.chmod(0o600)


def _backup_of(document: dict[str, Any]) -> StoredBackup:
    """Return a backup of the index. Raises `ValueError` if no node can have written it."""
    backup = StoredBackup(**document)
    name = backup.name
    is_plain = name.startswith(_PREFIX) and name.endswith(".db") and "/" not in name
    if not is_plain or {type(backup.at_ms), type(backup.bytes)} != {int}:
        raise ValueError(name)
    return backup


def backup_name(at_ms: int, unique: str) -> str:
    """Return the name of a backup of this time of the mesh."""
    time = datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y%m%dT%H%M%SZ")
    return f"{_PREFIX}{time}-{unique}.db"
