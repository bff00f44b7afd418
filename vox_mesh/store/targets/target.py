"""Targets: a folder, or a bucket of an S3-compatible service."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

from vox_mesh.errors import ArchiveFailed
from vox_mesh.store.files import make_private, publish, read_regular
from vox_mesh.store.script import new_key


class FileTarget(Protocol):
    """Keeps files by name."""

    async def put(self, name: str, file: Path) -> None:
        """Store a file durably. Raises `ArchiveFailed`."""

    def get(self, name: str, size: int) -> AbstractAsyncContextManager[Path]:
        """Open a stored file of this size for reading, until the end of the block. Raises `ArchiveFailed`."""

    async def read(self, name: str, limit: int) -> bytes | None:
        """Return the content of a small file; `None` if it is missing.

        Raises `ArchiveFailed`, also if it is larger than the limit.
        """

    async def sizes(self, names: Collection[str]) -> dict[str, int]:
        """Return the sizes of those of these files that are there. Raises `ArchiveFailed`."""

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        """Return the sizes of all files whose names begin so, by one listing. Raises `ArchiveFailed`."""

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
        try:
            content = await asyncio.to_thread(read_regular, self._folder / name, limit)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(name, "read", error) from None
        if len(content) > limit:
            raise self._too_large(name, limit)
        return content

    async def sizes(self, names: Collection[str]) -> dict[str, int]:
        """Return the sizes of the files that are there."""
        return await asyncio.to_thread(self._sizes, names)

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        """Return the sizes of all files whose names begin so; of a folder that is missing, none."""
        return await asyncio.to_thread(lambda: self._sizes(self._names(prefix)))

    async def remove(self, name: str) -> None:
        """Delete a file."""
        try:
            await asyncio.to_thread((self._folder / name).unlink, missing_ok=True)
        except OSError as error:
            raise self._failed(name, "deleted", error) from None

    def _names(self, prefix: str) -> list[str]:
        try:
            with os.scandir(self._folder) as entries:
                return [each.name for each in entries if each.name.startswith(prefix)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._failed(prefix, "listed", error) from None

    def _sizes(self, names: Collection[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for name in names:
            try:
                status = (self._folder / name).stat()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._failed(name, "read", error) from None
            if stat.S_ISREG(status.st_mode):
                found[name] = status.st_size
        return found

    def _too_large(self, name: str, size: int) -> ArchiveFailed:
        return ArchiveFailed(
            f"{self._folder / name} is larger than {size} bytes",
            hint=f"check who can write to the folder that {self._setting} names",
        )

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
        found = await self.sizes([name])
        if name not in found:
            raise ArchiveFailed(
                f"{path} is missing",
                hint=f"check {self._setting}, and restore the file if it is gone",
            )
        if found[name] > size:
            raise self._too_large(name, size)
        yield path
