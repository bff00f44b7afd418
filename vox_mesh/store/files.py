"""Create private folders and files, and write files durably."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

_SHARED_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_UNTRUSTED_FILE: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_OTHER_USERS: Final = 0o077
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def make_private(folder: Path) -> None:
    """Create the folder and its missing parents, accessible to this user only."""
    # One by one, because `parents=True` would create the parents accessible to everyone.
    for each in (*reversed(folder.parents), folder):
        each.mkdir(exist_ok=True, mode=0o700)


def open_private(path: Path) -> int:
    """Open a file that processes of this user write, or create it; return its descriptor.

    Raises:
        OSError: It is a link, no ordinary file, or of another user.
    """
    descriptor = os.open(path, _SHARED_FILE, 0o600)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it is not an ordinary file of this user")
        if found.st_mode & _OTHER_USERS:
            os.fchmod(descriptor, 0o600)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def load_or_create(path: Path, make: Callable[[], bytes]) -> bytes:
    """Return the content of the file, and create it, readable by this user only, if it does not exist."""
    if not path.exists():
        import tempfile  # imported late: slow, and files exist after the first start

        # A unique temporary name: threads share a process id, and so may containers.
        descriptor, draft = tempfile.mkstemp(".new", f"{path.name}.", path.parent)
        try:
            os.write(descriptor, make())
            os.fsync(descriptor)
            with suppress(FileExistsError):  # another process was first
                os.link(draft, path)
        finally:
            os.close(descriptor)
            Path(draft).unlink()
    return path.read_bytes()


def replace_private(path: Path, content: bytes, draft: Path) -> None:
    """Replace a file by one that only this user can read; `draft`, in the same folder, is written first."""
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, _NEW_FILE, 0o600)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.replace(path)


def publish(draft: Path, path: Path) -> int:
    """Rename a complete file to its final name, durably. Return its size in bytes."""
    with draft.open("rb") as file:
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
    draft.rename(path)
    sync_folder(path.parent)
    return size


def read_regular(path: Path, limit: int) -> bytes:
    """Return the content of a file that others may write, at most one byte more than the limit.

    Raises:
        OSError: It can't be read, or is no ordinary file: a pipe would block the thread.
    """
    descriptor = os.open(path, _UNTRUSTED_FILE)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PermissionError(errno.EPERM, "it is not an ordinary file")
    except BaseException:
        os.close(descriptor)
        raise
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit + 1)


def sync_folder(folder: Path) -> None:
    """Flush a folder to disk, so that its file names survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
