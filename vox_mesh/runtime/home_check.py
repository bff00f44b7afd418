"""Check a home folder before it is used: another person may have prepared the current folder.

A symbolic link in the home could make a node overwrite any file of its user; a folder of another user could
bring a key that this user does not control alone.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from vox_mesh.errors import BadSettings
from vox_mesh.settings.ownership import is_link, ownership_fault, ownership_hint

_ARTIFACTS: Final = "artifacts"
_MAX_DEPTH: Final = 4


def refuse_unsafe_home(home: Path, database: Path) -> None:
    """Raise `BadSettings` if others may have prepared the home or the database, or if there is a link.

    An absolute path may lead through links, since the user chose it; below the current folder, no link is
    followed.
    """
    for path in (*_relative_steps(home), *_relative_steps(database)):
        if is_link(path):
            raise _link(path)
    if home.exists():
        _check_owner(home, home.stat())
        for path in _entries(home, 1):
            _check(path)
    if not database.is_absolute() or database.absolute().is_relative_to(home.absolute()):
        for path in (database.parent, *database.parent.glob(f"{database.name}*")):
            if path.exists() or is_link(path):
                _check(path)


def _relative_steps(path: Path) -> Iterator[Path]:
    """Yield the folders on a relative path, and the path itself."""
    if not path.is_absolute():
        yield from (each for each in (*reversed(path.parents), path) if each.name)


def _entries(folder: Path, depth: int) -> Iterator[Path]:
    """Yield everything in a folder that a node writes to by its name; artifacts are never overwritten."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        yield Path(entry.path)
        if entry.is_dir(follow_symlinks=False) and depth < _MAX_DEPTH and folder.name != _ARTIFACTS:
            yield from _entries(Path(entry.path), depth + 1)


def _check(path: Path) -> None:
    if is_link(path):
        raise _link(path)
    _check_owner(path, path.lstat())


def _check_owner(path: Path, status: os.stat_result) -> None:
    fault = ownership_fault(path, status)
    # A file that others could write is out of their reach in a private folder.
    if fault is not None and (status.st_uid != os.geteuid() or stat.S_ISDIR(status.st_mode)):
        raise BadSettings(f"VOX_MESH_HOME: {fault}", hint=ownership_hint(path, status))


def _link(path: Path) -> BadSettings:
    return BadSettings(
        f"VOX_MESH_HOME: {path} is a symbolic link, which is not followed",
        hint=f"remove it, or set VOX_MESH_HOME and VOX_DB_PATH to absolute paths instead of {path}",
    )
