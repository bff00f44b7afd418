"""Folders for what is this user's alone."""

from __future__ import annotations

import os
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
        draft = path.with_name(f"{path.name}.{os.getpid()}.new")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, make())
            os.fsync(descriptor)
            with suppress(FileExistsError):  # another process was first
                os.link(draft, path)
        finally:
            os.close(descriptor)
            draft.unlink()
    return path.read_bytes()
