"""Ownership: whether a file or folder can have been written by this user only."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from vox_mesh.errors import BadSettings

_OTHERS_CAN_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_ROOT: Final = 0


def ownership_fault(path: Path, status: os.stat_result) -> str | None:
    """Return why others may have written a file or folder, or `None` if only this user or root could."""
    if status.st_uid not in (os.geteuid(), _ROOT):
        return f"{path} belongs to another user (uid {status.st_uid})"
    if not stat.S_ISLNK(status.st_mode) and status.st_mode & _OTHERS_CAN_WRITE:
        return f"{path} can be written by other users"
    return None


def ownership_hint(path: Path, status: os.stat_result) -> str:
    """Return what to do about a fault."""
    if status.st_uid not in (os.geteuid(), _ROOT):
        return f"work in a folder of your own, or make it yours: chown {os.geteuid()} {path}"
    return f"run `chmod go-w {path}`"


def is_link(path: Path) -> bool:
    """Return whether a path is a symbolic link, whether or not its target exists."""
    try:
        return stat.S_ISLNK(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def refuse_unless_owned(path: Path, status: os.stat_result) -> None:
    """Raise `BadSettings` if others may have prepared a file or folder of a home."""
    fault = ownership_fault(path, status)
    # A file that others could write is out of their reach in a private folder.
    if fault is not None and (status.st_uid != os.geteuid() or stat.S_ISDIR(status.st_mode)):
        raise BadSettings(f"VOX_MESH_HOME: {fault}", hint=ownership_hint(path, status))


def link_refused(path: Path) -> BadSettings:
    """Return the error for a symbolic link in a home."""
    return BadSettings(
        f"VOX_MESH_HOME: {path} is a symbolic link, which is not followed",
        hint=f"remove it, or set VOX_MESH_HOME and VOX_DB_PATH to absolute paths instead of {path}",
    )
