"""Paths of files, and the keys of their locks: relative to the root of the git work tree they are in.

All work trees of a repository have the same keys: a file is the same one in each of them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from vox_mesh.errors import BadValue

_GIT: Final = ".git"
_MAX_GIT_FILE: Final = 4_096
_MAX_FOLDERS: Final = 256
_GIT_DIR: Final = "gitdir:"


def work_tree_above(folder: Path) -> Path | None:
    """Return the root of the git work tree that a folder is in; `None` if it is in none."""
    for each in (folder, *folder.parents)[:_MAX_FOLDERS]:
        if os.path.lexists(each / _GIT):
            return each
    return None


def path_in(root: Path, given: str, base: Path) -> str:
    """Return a path, as given in the folder `base`, relative to the root; that of a folder ends with `/`.

    Symbolic links are resolved except for the last name: git treats a link as a file. Raises `BadValue` if it
    is not below the root.
    """
    path, root = entry_at(base / given), _resolved(root)
    if not given or not path.is_relative_to(root):
        raise BadValue(f"path must be in the repository at {root}, got {given!r}", hint="pass a path in it")
    return _relative(path, root, is_folder=given.endswith("/"))


def entry_at(path: Path) -> Path:
    """Return a path with symbolic links resolved, except for the last name."""
    return _resolved(path) if path.name in ("", "..") else _resolved(path.parent) / path.name


def _resolved(path: Path) -> Path:
    """Return a path with all symbolic links resolved, as far as that is possible; it never raises."""
    return Path(os.path.realpath(path))


def _relative(path: Path, root: Path, *, is_folder: bool = False) -> str:
    # Decoded as lock keys are, in any locale: holder and committer may use different ones.
    inside = os.fsencode(path.relative_to(root)).decode(errors="surrogateescape")
    return f"{inside}/" if is_folder or _is_folder(path) else inside


def _is_folder(path: Path) -> bool:
    """Return whether a path names a folder itself, not a link to one; one that can't be read is none."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


class Project(NamedTuple):
    """A folder whose files are locked, and the repository that it belongs to, if there is one."""

    root: Path
    repository: Path | None
    """The git folder that all work trees of the repository share."""

    @classmethod
    def at(cls, folder: Path) -> Project:
        """Return the project of a folder: its git work tree, or else the folder itself."""
        folder = _resolved(folder)
        root = work_tree_above(folder)
        return cls(folder, None) if root is None else cls(root, repository_of(root))

    def paths_of(self, target: Path) -> list[str]:
        """Return the paths that an edit of an absolute path changes, relative to the root.

        They are the path itself and, if it is a symbolic link, what the link leads to: a tool may write
        through a link or replace it. Paths outside of the project and its other work trees are left out.
        """
        found = (self.path_of_entry(each) for each in dict.fromkeys((entry_at(target), _resolved(target))))
        return list(dict.fromkeys(path for path in found if path is not None))

    def path_of_entry(self, path: Path) -> str | None:
        """Return a path, without links in the folders above it, relative to the root; `None` if outside."""
        tree = work_tree_above(path.parent)
        is_of_project = tree == self.root or (
            tree is not None and self.repository is not None and repository_of(tree) == self.repository
        )
        root = tree if is_of_project and tree is not None else self.root
        return _relative(path, root) if path != root and path.is_relative_to(root) else None


def repository_of(work_tree: Path) -> Path | None:
    """Return the git folder that a work tree shares with the others of its repository."""
    entry = work_tree / _GIT
    if _is_folder(_resolved(entry)):
        return _resolved(entry)
    text = _first_line(entry)
    if text is None or not text.startswith(_GIT_DIR):
        return None
    own = work_tree / text.removeprefix(_GIT_DIR).strip()
    common = _first_line(own / "commondir")
    return _resolved(own if common is None else own / common)


def _first_line(path: Path) -> str | None:
    """Return the first line of a small regular file, else `None`; it never waits, as for a pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return os.fsdecode(os.read(descriptor, _MAX_GIT_FILE)).partition("\n")[0]
    except OSError:
        return None
    finally:
        os.close(descriptor)


def absolute_paths(given: Iterable[str], folder: Path) -> list[Path]:
    """Return paths as they are given in a folder; impossible ones are left out."""
    return [folder / each for each in given if each and "\0" not in each]
