"""Files of a work folder, opened so that no link and no `..` leads out of it, whatever changes meanwhile."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Final

MAX_TEXT_BYTES: Final = 2 * 2**20
"""The maximum size of a file that an agent reads or writes through its worker."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_DEPTH: Final = 64


class OutsideFolder(Exception):
    """A path is refused; the message says why."""


class ConfinedFiles:
    """Reads and writes text files below one folder. Blocking: call it in a thread.

    Each part of a path is opened relative to the part before, and no link is followed: an agent that changes
    folders into links at the same time gains nothing.
    """

    def __init__(self, folder: Path, owner: tuple[int, int] | None = None) -> None:
        """`owner`: the user and group that new files belong to; `None` for those of this process."""
        self._folder = folder
        self._owner = owner

    def read(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """Return the text of a file, or `limit` lines from `line` on (from 1). Raises `OutsideFolder`."""
        parts = self._parts(path)
        with self._parent(parts) as parent:
            try:
                file = os.open(parts[-1], os.O_RDONLY | _FILE, dir_fd=parent)
            except OSError as error:
                raise OutsideFolder(f"can't be read: {error.strerror}") from None
            with _regular(file, "rb") as opened:
                body = opened.read(MAX_TEXT_BYTES + 1)
        if len(body) > MAX_TEXT_BYTES:
            raise OutsideFolder(f"must have at most {MAX_TEXT_BYTES} bytes")
        text = body.decode(errors="replace")
        if line is None and limit is None:
            return text
        lines = text.splitlines(keepends=True)
        first = max(0, (line or 1) - 1)
        return "".join(lines[first : None if limit is None else first + max(0, limit)])

    def write(self, path: str, text: str) -> None:
        """Write a file, and create the folders above it. Raises `OutsideFolder`."""
        body = text.encode(errors="replace")
        if len(body) > MAX_TEXT_BYTES:
            raise OutsideFolder(f"must have at most {MAX_TEXT_BYTES} bytes, got {len(body)}")
        parts = self._parts(path)
        with self._parent(parts, create=True) as parent:
            try:
                file = os.open(parts[-1], os.O_WRONLY | os.O_CREAT | _FILE, 0o644, dir_fd=parent)
            except OSError as error:
                raise OutsideFolder(f"can't be written: {error.strerror}") from None
            with _regular(file, "wb") as opened:
                self._give(opened.fileno())
                opened.truncate(0)
                opened.write(body)

    def _parts(self, path: str) -> tuple[str, ...]:
        given = PurePosixPath(path)
        if given.is_absolute():
            try:
                given = given.relative_to(self._folder)
            except ValueError:
                raise OutsideFolder("is outside of the work folder") from None
        parts = given.parts
        if not parts or ".." in parts or "\0" in path or len(parts) > _MAX_DEPTH:
            raise OutsideFolder("is outside of the work folder")
        if any(each.lower() == ".git" for each in parts):
            raise OutsideFolder("is git's own")
        return parts

    @contextmanager
    def _parent(self, parts: tuple[str, ...], *, create: bool = False) -> Iterator[int]:
        """Open the folder of a file, part by part."""
        current = os.open(self._folder, _FOLDER)
        try:
            for part in parts[:-1]:
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=current)
                try:
                    inner = os.open(part, _FOLDER, dir_fd=current)
                except OSError as error:
                    raise OutsideFolder(f"can't be reached: {error.strerror}") from None
                os.close(current)
                current = inner
                if create:
                    self._give(current)
            yield current
        finally:
            os.close(current)

    def _give(self, file: int) -> None:
        if self._owner is not None:
            os.fchown(file, *self._owner)


def _regular(file: int, mode: str) -> IO[bytes]:
    """Return an open file. Raises `OutsideFolder` unless it is regular, and has one name if it is written."""
    status = os.fstat(file)
    fault = None
    if not stat.S_ISREG(status.st_mode):
        fault = "is not a regular file"
    elif mode == "wb" and status.st_nlink > 1:
        fault = "has another name, which may be outside of the work folder"
    if fault is not None:
        os.close(file)
        raise OutsideFolder(fault)
    return os.fdopen(file, mode)
