"""Targets of the archive: a folder, or a bucket of an S3-compatible service."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

from vox_mesh.errors import ArchiveFailed
from vox_mesh.store.files import make_private, publish
from vox_mesh.store.script import new_key


class ArchiveTarget(Protocol):
    """Keeps files by name. A name is derived from the content, so a file is never replaced by another one."""

    async def put(self, name: str, file: Path) -> None:
        """Store a file durably. Raises `ArchiveFailed`."""

    def get(self, name: str, size: int) -> AbstractAsyncContextManager[Path]:
        """Open a stored file of this size for reading, until the end of the block. Raises `ArchiveFailed`."""


class FolderTarget:
    """A folder, such as a mounted volume."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    async def put(self, name: str, file: Path) -> None:
        """Copy a file into the folder; it gets its name when it is complete."""
        try:
            await asyncio.to_thread(self._copy, name, file)
        except OSError as error:
            raise ArchiveFailed(
                f"{self._folder / name} can't be written: {error.strerror}",
                hint="check the folder that VOX_ARCHIVE_DIR names",
            ) from None

    def _copy(self, name: str, file: Path) -> None:
        make_private(self._folder)
        draft = self._folder / f".{name}.{new_key()}"
        try:
            shutil.copyfile(file, draft)
            draft.chmod(0o600)
            publish(draft, self._folder / name)
        finally:
            draft.unlink(missing_ok=True)

    @asynccontextmanager
    async def get(self, name: str, size: int) -> AsyncIterator[Path]:
        """Return the path of the file."""
        path = self._folder / name
        if not await asyncio.to_thread(path.is_file):
            raise ArchiveFailed(
                f"{path} is missing in the archive",
                hint="check VOX_ARCHIVE_DIR, and restore the file if it is gone",
            )
        yield path
