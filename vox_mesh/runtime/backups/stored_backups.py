"""The backups in a folder or a bucket: in chunks, or as whole files that earlier versions have made."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from vox_mesh.errors import ArchiveFailed, BackupRefused, BadValue, StaleFence
from vox_mesh.runtime.backups.backup_index import (
    CHUNKED,
    WHOLE,
    BackupIndex,
    Listing,
    StoredBackup,
    store_content,
)
from vox_mesh.runtime.backups.backup_manifest import BackupManifest
from vox_mesh.runtime.backups.backup_mesh import BackupOwner
from vox_mesh.runtime.backups.chunk_store import ChunkStore
from vox_mesh.runtime.backups.chunks import ChunkWriter
from vox_mesh.runtime.backups.term import BackupTerm
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
    """The name of a new backup, its time, the node that makes it, and the term in which it does."""

    name: str
    at_ms: int
    node_id: str
    term: BackupTerm


class StoredBackups:
    """Lists, adds, removes and fetches the backups of a mesh. Only one process may change them at a time."""

    def __init__(self, target: FileTarget, owner: BackupOwner) -> None:
        self._target = target
        self._owner = owner
        self._chunks = ChunkStore(target)
        self._index = BackupIndex(target, INDEX, CHUNKED)
        self._whole = BackupIndex(target, WHOLE_INDEX, WHOLE)

    def __str__(self) -> str:
        return str(self._target)

    async def listed(self) -> list[StoredBackup]:
        """Return the backups, the oldest first. Raises `ArchiveFailed`, also if they are another mesh's."""
        whole, listing = await self._read()
        return sorted([*whole, *listing.backups], key=lambda each: each.at_ms)

    async def _read(self) -> tuple[Sequence[StoredBackup], Listing]:
        """Return the whole backups, and the index of the others. Raises `ArchiveFailed`."""
        whole, listing = (await self._whole.read()).backups, await self._index.read()
        mesh = self._owner.mesh
        if listing.mesh is not None and not mesh.is_same(listing.mesh):
            raise ArchiveFailed(
                f"the backups at {self._target} are of another mesh: {listing.mesh}; this one is {mesh}",
                hint="give each mesh a folder or prefix of its own: set VOX_BACKUP_DIR or VOX_BACKUP_URL",
            )
        if listing.mesh is None and (
            strangers := self._owner.strangers(each.node_id for each in (*whole, *listing.backups))
        ):
            raise ArchiveFailed(
                f"the backups at {self._target} may be of another mesh: they name none, and this one has no "
                f"node {strangers}",
                hint="set VOX_BACKUP_DIR or VOX_BACKUP_URL to a new folder or prefix, and keep the old one",
            )
        return whole, listing

    async def begin(self, folder: Path, chance: Callable[[], float]) -> ChunkWriter:
        """Return what cuts a new backup into chunks; it keeps new ones in the folder.

        Some of the chunks that are stored are read back: `chance` draws them. A damaged one is stored again.
        """
        _, listing = await self._read()
        return ChunkWriter(folder, await self._chunks.intact(listing, chance))

    async def add(self, origin: BackupOrigin, chunks: ChunkWriter, keep: int) -> StoredBackup:
        """Store a backup, read it back, and remove the oldest ones beyond the number to keep.

        It can be stopped at any point: what does not count is listed as unfinished, and the next call removes
        it.

        Raises:
            ArchiveFailed: It can't be stored, or what is read back is not what was stored.
            StaleFence: The term is over: another process may have begun to change the backups.
        """
        name, manifest = origin.name, BackupManifest(chunks.chunks)
        sha256 = hashlib.sha256(manifest.content).hexdigest()
        backup = StoredBackup(name, origin.at_ms, manifest.size, sha256, origin.node_id)
        before = await self._confirmed(origin)
        await self._write(origin, before.backups, [*before.unfinished, name])
        await store_content(self._target, name, manifest.content)
        await self._chunks.manifest(name, sha256)
        for chunk, file in chunks.new.items():
            origin.term.check()
            await self._chunks.put(name, chunk, file)
        await origin.term.confirm()  # a later leader would have removed them
        await self._chunks.refuse_if_missing(name, chunks.chunks)
        before = await self._confirmed(origin)
        if name not in before.unfinished:
            raise StaleFence  # another process has removed it
        others = [each for each in before.unfinished if each != name]
        await self._keep(origin, [*before.backups, backup], others, keep)
        return backup

    async def _confirmed(self, origin: BackupOrigin) -> Listing:
        """Return the index, for a node that may replace it.

        Raises `StaleFence` if its term is over, and `ArchiveFailed` if a later one has written the index.
        """
        await origin.term.confirm()
        _, listing = await self._read()
        if listing.fence_token > origin.term.fence_token:
            raise ArchiveFailed(
                f"the index at {self._target} has the fencing token {listing.fence_token}: later than "
                f"{origin.term.fence_token}, which this node has",
                hint="check whether a copy of this mesh backs up there, and give it another folder or prefix",
            )
        return listing

    async def _write(
        self, origin: BackupOrigin, backups: Sequence[StoredBackup], unfinished: Sequence[str] = ()
    ) -> None:
        await self._index.write(Listing(backups, unfinished, self._owner.mesh, origin.term.fence_token))

    async def _keep(
        self, origin: BackupOrigin, backups: list[StoredBackup], unfinished: Sequence[str], keep: int
    ) -> None:
        """List the newest ones, of both forms, and remove all others. One from the future is no newer."""
        whole = (await self._whole.read()).backups
        newest = sorted([*whole, *backups], key=lambda each: (each.at_ms <= origin.at_ms, each.at_ms))[-keep:]
        kept = [each for each in backups if each in newest]
        dropped = [*unfinished, *(each.name for each in backups if each not in newest)]
        await self._write(origin, kept, dropped)
        if dropped and await self._chunks.remove(dropped, kept, origin.term.check):
            await self._confirmed(origin)
            await self._write(origin, kept)
        if old := [each for each in whole if each not in newest]:
            origin.term.check()
            await self._whole.write(Listing([each for each in whole if each in newest]))
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
