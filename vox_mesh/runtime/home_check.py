"""Check a home folder before it is used: another person may have prepared the current folder.

A symbolic link in the home could make a node overwrite any file of its user; a folder of another user could
bring a key that this user does not control alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from vox_mesh.errors import BadSettings
from vox_mesh.settings.discovery import FOLDER
from vox_mesh.settings.ownership import is_link, link_refused, refuse_unless_owned
from vox_mesh.store.files import load_or_create, make_private

_GITIGNORE: Final = ".gitignore"
ARTIFACTS: Final = "artifacts"
"""The folder of artifacts in a home."""

_MAX_DEPTH: Final = 4


def refuse_unsafe_home(home: Path, database: Path) -> None:
    """Raise `BadSettings` if others may have prepared the home or the database, or if there is a link.

    An absolute path may lead through links, since the user chose it; below the current folder, no link is
    followed.
    """
    for path in (*_relative_steps(home), *_relative_steps(database)):
        if is_link(path):
            raise link_refused(path)
    if home.exists():
        refuse_unless_owned(home, home.stat())
        for path in _entries(home, 1):
            _check(path)
    if not database.is_absolute() or database.absolute().is_relative_to(home.absolute()):
        for path in (database.parent, *database.parent.glob(f"{database.name}*")):
            if path.exists() or is_link(path):
                _check(path)


def make_home(home: Path) -> None:
    """Create a home, accessible to this user only. Raises `BadSettings` if it can't be created."""
    try:
        make_private(home)
    except OSError as error:
        raise BadSettings(
            f"VOX_MESH_HOME: {home} can't be used: {error.strerror}", hint="set it to a folder of your own"
        ) from None
    keep_out_of_git(home)


def keep_out_of_git(home: Path) -> None:
    """Have git ignore a home: it holds the node's private key.

    Nothing is written into a folder of another name that holds something else, such as a repository's root.
    """
    path = home / _GITIGNORE
    with suppress(OSError):  # there is no home yet, or it is read-only
        if not path.exists() and (home.name == FOLDER or not any(home.iterdir())):
            load_or_create(path, lambda: b"*\n")


def _relative_steps(path: Path) -> Iterator[Path]:
    """Yield the folders on a relative path, and the path itself."""
    if not path.is_absolute():
        yield from (each for each in (*reversed(path.parents), path) if each.name)


def _entries(folder: Path, depth: int) -> Iterator[Path]:
    """Yield everything in a folder that a node writes to by its name; artifacts are never overwritten."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except FileNotFoundError:  # another process of the home has removed it meanwhile
        return
    for entry in entries:
        yield Path(entry.path)
        if entry.is_dir(follow_symlinks=False) and depth < _MAX_DEPTH and folder.name != ARTIFACTS:
            yield from _entries(Path(entry.path), depth + 1)


def _check(path: Path) -> None:
    if is_link(path):
        raise link_refused(path)
    with suppress(FileNotFoundError):  # another process of the home has removed it meanwhile
        refuse_unless_owned(path, path.lstat())
