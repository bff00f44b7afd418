"""The databases and homes that this user has made, not ones that a cloned or copied folder brought.

Such a folder holds the jobs and unsent writes of another person, though its files belong to this user. What
is made is noted in the user's configuration, which no folder brings: by path and inode, because another file
may take its place.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from vox_mesh.settings.ownership import ownership_fault
from vox_mesh.settings.trust import config_folder

_FOLDER: Final = "made"
_MAX_NOTES: Final = 1_000
_MAX_BYTES: Final = 4_096
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def note_as_own(path: Path, draft: Path | None = None) -> None:
    """Note that this user has made a file or folder; `draft`, which is to get this path, stands for it.

    Without a configuration that can be written, do nothing.
    """
    with suppress(OSError):
        inode = (draft or path).stat().st_ino
        note = _note(path)
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _prune(note.parent)
        # Appended: of two processes that make it at the same time, either may win.
        descriptor = os.open(note, _FLAGS, 0o600)
        try:
            if os.fstat(descriptor).st_size > _MAX_BYTES // 2:
                os.ftruncate(descriptor, 0)
            os.write(descriptor, os.fsencode(f"{inode} {path.resolve()}\n"))
        finally:
            os.close(descriptor)


def is_own(path: Path) -> bool:
    """Return whether this user has made a file or folder, and no other is in its place."""
    try:
        inode = str(path.stat().st_ino)
        return any(noted == inode for noted, _ in _lines(_note(path)))
    except OSError:
        return False


def _note(path: Path) -> Path:
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    return config_folder() / _FOLDER / name


def _lines(note: Path) -> Iterator[tuple[str, str]]:
    """Yield the inodes and paths in a note. One that others may have written notes nothing."""
    with note.open("rb") as file:
        if ownership_fault(note, os.fstat(file.fileno())) is not None:
            return
        content = os.fsdecode(file.read(_MAX_BYTES))
    for line in content.splitlines():
        inode, _, path = line.partition(" ")
        yield inode, path


def _prune(folder: Path) -> None:
    """Remove the notes of what is gone, once there are many."""
    notes = list(folder.iterdir())
    if len(notes) >= _MAX_NOTES:
        for note in notes:
            if not any(os.path.lexists(path) for _, path in _lines(note)):
                note.unlink(missing_ok=True)
