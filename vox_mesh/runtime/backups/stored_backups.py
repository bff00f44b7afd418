"""The backups in a folder or a bucket: in chunks, or as whole files that earlier versions have made."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from vox_mesh.errors import ArchiveFailed, BackupRefused, BadValue
from vox_mesh.runtime.backups.backup_index import (
    CHUNKED,
    WHOLE,
    BackupIndex,
    StoredBackup,
    store_content,
)
from vox_mesh.runtime.backups.backup_manifest import BackupManifest
from vox_mesh.runtime.backups.chunk_store import ChunkStore
from vox_mesh.runtime.backups.chunks import ChunkWriter
from vox_mesh.store.engines.thread import SerialThread
from vox_mesh.store.files import publish
from vox_mesh.store.schema.database_file import DatabaseFile
from vox_mesh.store.schema.row_lines import RowLineReader
from vox_mesh.store.targets.content import file_digest
from vox_mesh.store.targets.target import FileTarget

INDEX: Final = "vox-mesh-chunked-backups.json"
WHOLE_INDEX: Final = "vox-mesh-backups.json"
"""The index of the backups that earlier versions have made. They would not understand a backup in chunks."""


class BackupOrigin(NamedTuple):
    """The name of a new backup, its time, and the node that makes it."""

    name: str
    at_ms: int
    node_id: str


class StoredBackups:
    """Lists, adds, removes and fetches backups. Only one process may change them at a time."""

    def __init__(self, target: FileTarget) -> None:
        self._target = target
        self._chunks = ChunkStore(target)
        self._index = BackupIndex(target, INDEX, CHUNKED)
        self._whole = BackupIndex(target, WHOLE_INDEX, WHOLE)

    def __str__(self) -> str:
        return str(self._target)

    async def listed(self) -> list[StoredBackup]:
        """Return the backups, the oldest first. Raises `ArchiveFailed`."""
        found = [*(await self._whole.read()).backups, *(await self._index.read()).backups]
        return sorted(found, key=lambda each: each.at_ms)

    async def begin(self, folder: Path, chance: Callable[[], float]) -> ChunkWriter:
        """Return what cuts a new backup into chunks; it keeps new ones in the folder.

        Some of the chunks that are stored are read back: `chance` draws them. A damaged one is stored again.
        """
        return ChunkWriter(folder, await self._chunks.intact(await self._index.read(), chance))

    async def add(
        self,
        origin: BackupOrigin,
        chunks: ChunkWriter,
        keep: int,
        is_allowed: Callable[[], Awaitable[object]],
    ) -> StoredBackup:
        """Store a backup, read it back, and remove the oldest ones beyond the number to keep.

        It can be stopped at any point: what does not count is listed as unfinished, and the next call removes
        it. `is_allowed` raises if another process may have begun to change the backups.

        Raises:
            ArchiveFailed: It can't be stored, or what is read back is not what was stored.
        """
        name, manifest = origin.name, BackupManifest(chunks.chunks)
        sha256 = hashlib.sha256(manifest.content).hexdigest()
        backup = StoredBackup(name, origin.at_ms, manifest.size, sha256, origin.node_id)
        await is_allowed()
        before = await self._index.read()
        await self._index.write(before.backups, [*before.unfinished, name])
        await store_content(self._target, name, manifest.content)
        await self._chunks.manifest(name, sha256)
        for chunk, file in chunks.new.items():
            await self._chunks.put(name, chunk, file)
        await is_allowed()
        await self._keep([*before.backups, backup], before.unfinished, keep)
        return backup

    async def _keep(self, backups: list[StoredBackup], unfinished: Sequence[str], keep: int) -> None:
        """List the newest ones, of both forms, and remove all others."""
        whole = (await self._whole.read()).backups
        newest = sorted([*whole, *backups], key=lambda each: each.at_ms)[-keep:]
        kept = [each for each in backups if each in newest]
        dropped = [*unfinished, *(each.name for each in backups if each not in newest)]
        await self._index.write(kept, dropped)
        if dropped and await self._chunks.remove(dropped, kept):
            await self._index.write(kept)
        if old := [each for each in whole if each not in newest]:
            await self._whole.write(each for each in whole if each in newest)
            for each in old:
                await self._target.remove(each.name)

    async def fetch(self, name: str, path: Path) -> StoredBackup:
        """Copy a backup to a new file, and verify it. Raises `ArchiveFailed` and `BackupRefused`."""
        found = {each.name: each for each in await self.listed()}
        if name not in found:
            raise BackupRefused(f"there is no backup {name!r}", hint="run `vox-mesh db backups` to list them")
        if await asyncio.to_thread(path.exists):
            raise BackupRefused(f"{path} exists already", hint="choose a name that is free")
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            draft = Path(folder) / "draft"
            copy = self._copy_whole if name.endswith(WHOLE) else self._fill
            await copy(found[name], draft)
            await asyncio.to_thread(publish, draft, path)
        return found[name]

    async def _copy_whole(self, backup: StoredBackup, draft: Path) -> None:
        async with self._target.get(backup.name, backup.bytes) as source:
            await asyncio.to_thread(_copy, source, draft)
        if await asyncio.to_thread(file_digest, draft) != backup.sha256:
            raise ArchiveFailed(
                f"backup {backup.name} at {self._target} is not what was stored",
                hint="use another one; check who can write there, and the disk",
            )

    async def _fill(self, backup: StoredBackup, draft: Path) -> None:
        manifest = await self._chunks.manifest(backup.name, backup.sha256)
        disk = SerialThread("vox-mesh-fetch")
        try:
            file = await disk.do(lambda: DatabaseFile(draft))
            try:
                reader = RowLineReader(file)
                for chunk in manifest.chunks:
                    lines = await self._chunks.lines(backup.name, chunk)
                    await disk.do(lambda lines=lines: reader.read(lines))  # type: ignore[misc]
            finally:
                await disk.do(file.close)
        except (BadValue, sqlite3.Error) as error:
            raise ArchiveFailed(
                f"backup {backup.name} at {self._target} holds what no node stores: {error}",
                hint="use another one; check who can write there",
            ) from None
        finally:
            await disk.stop()
        if not reader.is_complete:
            raise ArchiveFailed(f"backup {backup.name} at {self._target} is cut off", hint="use another one")


def _copy(source: Path, draft: Path) -> None:
    shutil.copyfile(source, draft)
    draft.chmod(0o600)
