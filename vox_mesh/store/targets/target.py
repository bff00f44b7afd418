"""Targets: a folder, or a bucket of an S3-compatible service."""

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


class FileTarget(Protocol):
    """Keeps files by name."""

    async def put(self, name: str, file: Path) -> None:
        """Store a file durably. Raises `ArchiveFailed`."""

    def get(self, name: str, size: int) -> AbstractAsyncContextManager[Path]:
        """Open a stored file of this size for reading, until the end of the block. Raises `ArchiveFailed`."""

    async def read(self, name: str, limit: int) -> bytes | None:
        """Return the content of a small file; `None` if it is missing. Raises `ArchiveFailed`."""

    async def remove(self, name: str) -> None:
        """Delete a file, if it is there. Raises `ArchiveFailed`."""


class FolderTarget:
    """A folder, such as a mounted volume."""

    def __init__(self, folder: Path, setting: str = "VOX_ARCHIVE_DIR") -> None:
        """`setting` is the name of the setting that chose the folder, for errors."""
        self._folder = folder
        self._setting = setting

    def __str__(self) -> str:
        return str(self._folder)

    async def put(self, name: str, file: Path) -> None:
        """Copy a file into the folder; it gets its name when it is complete."""
        try:
            await asyncio.to_thread(self._copy, name, file)
        except OSError as error:
            raise self._failed(name, "written", error) from None

    async def read(self, name: str, limit: int) -> bytes | None:
        """Return the content of a small file."""
        path = self._folder / name
        try:
            content = await asyncio.to_thread(path.read_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(name, "read", error) from None
        return content[:limit]

    async def remove(self, name: str) -> None:
        """Delete a file."""
        try:
            await asyncio.to_thread((self._folder / name).unlink, missing_ok=True)
        except OSError as error:
            raise self._failed(name, "deleted", error) from None

    def _failed(self, name: str, what: str, error: OSError) -> ArchiveFailed:
        return ArchiveFailed(
            f"{self._folder / name} can't be {what}: {error.strerror}",
            hint=f"check the folder that {self._setting} names",
        )

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
                f"{path} is missing",
                hint=f"check {self._setting}, and restore the file if it is gone",
            )
        yield path
