"""Find the mesh of the current folder, as git finds a repository.

The nearest `.vox` upwards is used; the one of a git repository is next to its common git directory, so that
all worktrees share it. Every command does this at its start: it costs a few `stat` calls, runs no git, and
imports nothing slow. The variables of git, such as GIT_DIR, are ignored.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadSettings
from vox_mesh.settings.fields import ENV_FILE
from vox_mesh.settings.ownership import is_link, link_refused, refuse_unless_owned

FOLDER: Final = ".vox"
"""The name of a mesh's home."""

IN_GIT_DIR: Final = "vox"
"""Its name inside a git directory that has no folder of its own around it, such as a bare repository."""

MARKER: Final = "mesh.json"
"""The file that `vox-mesh init` puts into a home: such a mesh is enabled by default."""

DATABASE: Final = Path("cache", "db", "local.db")
"""The place of the database in a home."""

HERE: Final = "the current folder"
ABOVE: Final = "a parent folder"
REPOSITORY: Final = "the git repository"
USER: Final = "the user's data folder"
PLACES: Final = frozenset({HERE, ABOVE, REPOSITORY, USER})

FALSE: Final = frozenset({"0", "off", "f", "false", "n", "no"})
"""The texts that mean no."""

_SLOTS: Final = "slots"
_MAX_LEVELS: Final = 64
_MAX_BYTES: Final = 4_096
_GITDIR: Final = b"gitdir:"


class MeshLocation(NamedTuple):
    """The home of a mesh, whether or not it exists yet."""

    home: Path
    """Relative if it is in the current folder."""
    place: str
    """The kind of place."""
    is_initialised: bool
    fault: str = ""
    """Why the repository's own mesh can't be found."""


class _Repository(NamedTuple):
    home: str
    fault: str = ""


def locate_mesh() -> MeshLocation:
    """Return the mesh of the current folder.

    Raises `BadSettings` if others may have prepared the home that was found outside the current folder.
    """
    try:
        here = os.getcwd()
    except OSError:  # it was deleted
        return user_mesh()
    repository: _Repository | None = None
    for folder, needs_marker in _searched(here):
        home = os.path.join(folder, FOLDER)
        if _is_mesh(home, needs_marker):
            return _location(home, HERE if folder == here else ABOVE, here)
        if (found := _repository_at(folder)) is None or (needs_marker and not _has_marker(found.home)):
            continue
        if _is_mesh(found.home, needs_marker):
            return _location(found.home, REPOSITORY, here)
        repository = repository or found
    if repository is None:
        return user_mesh()
    return _location(repository.home, REPOSITORY, here)._replace(fault=repository.fault)


def user_mesh() -> MeshLocation:
    """Return the mesh of this user, for folders outside any repository."""
    chosen = os.environ.get("XDG_DATA_HOME", "")
    base = chosen if os.path.isabs(chosen) else os.path.expanduser("~/.local/share")
    home = os.path.join(base if os.path.isabs(base) else "/nonexistent", "vox-mesh")
    return MeshLocation(Path(home), USER, _has_marker(home))


def repository_homes() -> list[Path]:
    """Return all homes in the current repository: above the current folder, and of each of its worktrees."""
    homes: list[str] = []
    for folder in _parents_of(os.getcwd()):
        homes.append(os.path.join(folder, FOLDER))
        if (found := _repository_at(folder)) is not None:
            break
    else:
        return []
    homes += [] if found.fault else [found.home, *_homes_of_worktrees(found.home)]
    return [Path(home) for home in dict.fromkeys(homes) if os.path.isdir(home)]


def has_marker(home: Path) -> bool:
    """Return whether `vox-mesh init` has made this home."""
    return _has_marker(str(home))


def database_of(home: Path) -> Path:
    """Return the default database of a home that the user has chosen.

    Earlier versions kept it under the current folder; where it still is, it stays in use.
    """
    database, earlier = home / DATABASE, Path(FOLDER) / DATABASE
    return earlier if earlier.parent.is_dir() and not database.parent.is_dir() else database


def no_mesh(what: str) -> BadSettings:
    """Return the error of a command or call that needs a mesh where there is none."""
    if home := os.environ.get("VOX_MESH_HOME"):
        fault = "has no mesh" if os.path.isdir(home) else "does not exist"
        return BadSettings(
            f"`{what}` needs a mesh, and VOX_MESH_HOME={home} {fault}",
            hint="run `vox-mesh init` to make one there, or correct or unset VOX_MESH_HOME",
        )
    return BadSettings(
        f"`{what}` needs a mesh, and this folder or repository has none",
        hint="run `vox-mesh init`, or set VOX_MESH_HOME to share the mesh of another folder",
    )


def mesh_env_file(home: str | Path | None) -> Path | None:
    """Return where the `.env` file of the mesh's folder would be, given the home that the user has chosen.

    All worktrees and subfolders read it. There is none in the current folder, which is read anyway, nor next
    to a home of another name, such as that in the user's data folder.
    """
    found = locate_mesh().home if home is None else Path(home)
    folder = found.parent
    if found.name != FOLDER or folder == Path():
        return None
    try:
        is_here = folder.samefile("")
    except OSError:  # one of them does not exist
        is_here = False
    return None if is_here else folder.absolute() / ENV_FILE


def mesh_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a mesh's home, its database and whether it is enabled, unless they are given.

    Raises `BadSettings` if others may have prepared the home, if the repository's mesh can't be found, or if
    the given home is the root of a repository.
    """
    if "home_dir" in given:
        home = Path(given["home_dir"])
        _refuse_repository(home)
        values: dict[str, Any] = {"db_path": database_of(home), "enabled": has_marker(home)}
    else:
        mesh = locate_mesh()
        if mesh.fault and str(given.get("enabled", False)).lower() not in FALSE:
            raise BadSettings(mesh.fault, hint="run `git worktree repair`, or set VOX_MESH_HOME")
        values = {"home_dir": mesh.home, "db_path": mesh.home / DATABASE, "enabled": mesh.is_initialised}
    if not values["enabled"]:
        del values["enabled"]
    return {name: value for name, value in values.items() if name not in given}


def _refuse_repository(home: Path) -> None:
    """Raise `BadSettings` if a given home is the folder around one; an earlier version may have used it."""
    folder = str(home)
    is_used = _has_marker(folder) or os.path.isdir(os.path.join(folder, _SLOTS))
    if not is_used and os.path.lexists(os.path.join(folder, ".git")):
        raise BadSettings(
            f"VOX_MESH_HOME: {home} is the root of a repository, not the home of a mesh",
            hint=f"set VOX_MESH_HOME={home / FOLDER}, or unset it",
        )


def _location(home: str, place: str, here: str) -> MeshLocation:
    is_here = os.path.dirname(home) == here and os.path.basename(home) == FOLDER
    # A relative home is checked, and refused if need be, when it is opened.
    if not is_here and os.path.lexists(home):
        if is_link(Path(home)):
            raise link_refused(Path(home))
        refuse_unless_owned(Path(home), os.lstat(home))
    return MeshLocation(Path(FOLDER) if is_here else Path(home), place, _has_marker(home))


def _is_mesh(home: str, needs_marker: bool) -> bool:
    try:
        mode = os.lstat(home).st_mode
    except OSError:
        return False
    return (stat.S_ISDIR(mode) or stat.S_ISLNK(mode)) and (not needs_marker or _has_marker(home))


def _has_marker(home: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(os.path.join(home, MARKER)).st_mode)
    except OSError:
        return False


def _searched(here: str) -> Iterator[tuple[str, bool]]:
    """Yield the folder and its parents, and whether a mesh there counts only if `init` has made it.

    It ends at another file system, at a folder in which every user can create a `.vox`, and at the user's
    home folder, whose own `.vox` or git repository would capture everything below it.
    """
    yield here, False
    device = os.stat(here).st_dev
    try:
        user_home = os.stat(os.path.expanduser("~"))
    except OSError:
        user_home = None
    for folder in _parents_of(os.path.dirname(here)) if here != os.path.dirname(here) else ():
        try:
            status = os.stat(folder)
        except OSError:
            return
        if status.st_dev != device or status.st_mode & stat.S_IWOTH:
            return
        is_home = user_home is not None and os.path.samestat(status, user_home)
        yield folder, is_home
        if is_home:
            return


def _parents_of(folder: str) -> Iterator[str]:
    """Yield the folder and its parents."""
    for _ in range(_MAX_LEVELS):
        yield folder
        if folder == (folder := os.path.dirname(folder)):
            return


# --- git -----------------------------------------------------------------------------------------


def _repository_at(folder: str) -> _Repository | None:
    """Return where the mesh of the repository with its root in this folder is; `None` without one."""
    pointer = os.path.join(folder, ".git")
    try:
        mode = os.stat(pointer).st_mode
    except OSError:
        is_bare = all(os.path.exists(os.path.join(folder, name)) for name in ("HEAD", "objects", "refs"))
        return _Repository(_home_of(folder)) if is_bare else None
    if stat.S_ISDIR(mode):
        return _Repository(_home_of(os.path.realpath(pointer)))
    line = _read(pointer) if stat.S_ISREG(mode) else b""
    if not line.startswith(_GITDIR):
        return None
    git_dir = os.path.join(folder, os.fsdecode(line.removeprefix(_GITDIR).strip()))
    if not os.path.isdir(git_dir):
        fault = f"{pointer} names a git directory that does not exist: {git_dir}"
        return _Repository(os.path.join(folder, FOLDER), fault)
    common = os.path.join(git_dir, os.fsdecode(_read(os.path.join(git_dir, "commondir")).strip()))
    return _Repository(_home_of(os.path.realpath(common)))


def _home_of(common: str) -> str:
    """Return the home next to a common git directory, or inside one that may have no folder of its own."""
    parent, name = os.path.split(common)
    return os.path.join(parent, FOLDER) if name == ".git" else os.path.join(common, IN_GIT_DIR)


def _homes_of_worktrees(home: str) -> Iterator[str]:
    """Yield where a linked worktree of the repository with this home could have a home of its own."""
    parent, name = os.path.split(home)
    worktrees = os.path.join(parent, ".git" if name == FOLDER else "", "worktrees")
    try:
        names = sorted(os.listdir(worktrees))
    except OSError:  # it has none
        return
    for name in names:
        pointer = os.fsdecode(_read(os.path.join(worktrees, name, "gitdir")).strip())
        root = os.path.dirname(os.path.join(worktrees, name, pointer))
        yield os.path.join(os.path.realpath(root), FOLDER)


def _read(path: str) -> bytes:
    """Return the beginning of a small file, without waiting; nothing if it can't be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _MAX_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
