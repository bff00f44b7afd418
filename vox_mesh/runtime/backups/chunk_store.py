"""The chunks and manifests in a folder or a bucket: stored, read back, and removed."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from vox_mesh.errors import ArchiveFailed, BadValue
from vox_mesh.runtime.backups.backup_index import Listing, StoredBackup
from vox_mesh.runtime.backups.backup_manifest import MAX_BYTES, BackupManifest, read_manifest
from vox_mesh.runtime.backups.chunks import Chunk
from vox_mesh.store.targets.target import FileTarget

_log = logging.getLogger(__name__)

_READ_AGAIN: Final = 1 / 8
"""The part of the reused chunks that a backup reads back: each about once in eight backups."""


class ChunkStore:
    """Stores and returns chunks and manifests, and trusts none that is not what was stored."""

    def __init__(self, target: FileTarget) -> None:
        self._target = target

    async def manifest(self, name: str, sha256: str | None = None) -> BackupManifest:
        """Return a manifest, with this digest if it is known. Raises `ArchiveFailed`."""
        content = await self._target.read(name, MAX_BYTES)
        if content is None:
            raise self._failed(f"{name} is missing")
        if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
            raise self._failed(f"{name} is not what was stored")
        try:
            return read_manifest(content)
        except BadValue as error:
            raise self._failed(f"{name}: {error}") from None

    async def lines(self, backup: str, chunk: Chunk) -> bytes:
        """Return the lines of a chunk. Raises `ArchiveFailed`."""
        stored = await self._target.read(chunk.file_name, chunk.most_stored_bytes)
        if stored is None:
            raise self._failed(f"{chunk.file_name}, a part of {backup}, is missing")
        try:
            return await asyncio.to_thread(chunk.unpack, stored)
        except BadValue as error:
            raise self._failed(f"{chunk.file_name}, a part of {backup}, is damaged: {error}") from None

    async def put(self, backup: str, chunk: Chunk, file: Path) -> None:
        """Store a chunk, and read it back. Raises `ArchiveFailed`."""
        await self._target.put(chunk.file_name, file)
        await self.lines(backup, chunk)

    async def intact(self, listing: Listing, chance: Callable[[], float]) -> set[Chunk]:
        """Return the stored chunks, without missing and damaged ones.

        `chance` draws which ones of the backups are read back: all of them after the first fault. Those of
        unfinished backups all are.
        """
        trusted, others = set[Chunk](), set[Chunk]()
        is_faulty = False
        for backup in listing.backups:
            try:
                trusted.update((await self.manifest(backup.name, backup.sha256)).chunks)
            except ArchiveFailed as error:
                _log.warning("backup damaged: %s", error.line)
                is_faulty = True
        for name in listing.unfinished:
            with suppress(ArchiveFailed):
                others.update((await self.manifest(name)).chunks)
        missing = await self._missing(trusted | others)
        for chunk in sorted(missing & trusted):
            _log.warning("chunk of a backup missing, it is stored again if it is still needed: %s", chunk)
            is_faulty = True
        trusted -= missing
        drawn = {each for each in sorted(trusted) if chance() < _READ_AGAIN}
        damaged = await self._damaged(drawn)
        if damaged or is_faulty:  # where one is lost, more may be
            damaged |= await self._damaged(trusted - drawn)
        return (trusted - damaged) | {
            each for each in others - missing - trusted if await self._is_intact(each)
        }

    async def refuse_if_missing(self, backup: str, chunks: Iterable[Chunk]) -> None:
        """Raise `ArchiveFailed` unless all chunks of a backup are there."""
        for chunk in await self._missing(set(chunks)):
            raise self._failed(f"{chunk.file_name}, a part of {backup}, is missing")

    async def _missing(self, chunks: set[Chunk]) -> set[Chunk]:
        """Return the chunks that are not there, or whose size no chunk has."""
        sizes = await self._target.sizes([each.file_name for each in chunks])
        return {each for each in chunks if not 0 < sizes.get(each.file_name, 0) <= each.most_stored_bytes}

    async def _damaged(self, chunks: Iterable[Chunk]) -> set[Chunk]:
        found = set[Chunk]()
        for chunk in sorted(chunks):
            if not await self._is_intact(chunk):
                _log.warning("chunk of a backup damaged, it is stored again if it is still needed: %s", chunk)
                found.add(chunk)
        return found

    async def _is_intact(self, chunk: Chunk) -> bool:
        try:
            await self.lines("an earlier backup", chunk)
        except ArchiveFailed:
            return False
        return True

    async def remove(
        self, names: Iterable[str], kept: Iterable[StoredBackup], check: Callable[[], None]
    ) -> bool:
        """Remove backups, with the chunks that none of the kept ones needs. Return whether it could be done.

        While a kept one can't be read, nothing is known of what it needs, and nothing is removed. `check`
        raises if another process may have begun to change the backups.
        """
        try:
            manifests = [await self.manifest(each.name, each.sha256) for each in kept]
        except ArchiveFailed as error:
            _log.warning("old backups not removed: %s", error.line)
            return False
        needed = {chunk for manifest in manifests for chunk in manifest.chunks}
        for name in names:
            if await self._target.read(name, MAX_BYTES) is None:
                continue  # it was removed already, after its chunks
            try:
                found = await self.manifest(name)
            except ArchiveFailed as error:
                _log.warning("old backup removed without its chunks: %s", error.line)
            else:
                for chunk in found.chunks:
                    if chunk not in needed:
                        check()
                        await self._target.remove(chunk.file_name)
            check()
            await self._target.remove(name)
        return True

    def _failed(self, what: str) -> ArchiveFailed:
        return ArchiveFailed(
            f"a backup at {self._target} can't be used: {what}",
            hint="use another one; check who can write there, and the disk",
        )
