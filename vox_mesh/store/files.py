"""Folders for what is this user's alone."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def make_private(folder: Path) -> None:
    """Create the folder, and those above it that are missing, closed to other users."""
    # One by one, because `parents=True` would leave those in between open to all.
    for each in (*reversed(folder.parents), folder):
        each.mkdir(exist_ok=True, mode=0o700)


def kept_once(path: Path, make: Callable[[], bytes]) -> bytes:
    """What the file holds, made by whoever comes first; readable by this user alone."""
    if not path.exists():
        # A name of its own, for this user alone: threads share a process id, and so do containers.
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


def publish(draft: Path, path: Path) -> int:
    """Give a file that is complete its name, for good; its size."""
    with draft.open("rb") as file:
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
    draft.rename(path)
    keep_names(path.parent)
    return size


def keep_names(folder: Path) -> None:
    """Have the names in a folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
