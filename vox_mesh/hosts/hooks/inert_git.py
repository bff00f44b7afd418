"""Git without the configuration of a repository, which could make git run commands of its own.

A repository may name commands for filters, for what it lacks, or to watch its files, and git runs them as its
user. So git is asked with a configuration of ours, and only reads the index and objects of the repository.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from vox_mesh.jobs.git.program import GitFailed, run_git

_GIT_S: Final = 1.5
_MAX_OUTPUT: Final = 4 * 2**20
_MAX_PARTS: Final = 64
_TRUST: Final = {"GIT_CONFIG_NOSYSTEM": "0"}
"""The settings of the system name the repositories of other users that are trusted."""

_ASKED: Final = ("--show-toplevel", "--show-object-format", "--git-path", "objects", "--git-path", "index")
_EMPTY_TREE: Final = {
    "sha1": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "sha256": "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
_CONFIG: Final = "[core]\n\trepositoryFormatVersion = 1\n[extensions]\n\tobjectFormat = {}\n"


@dataclass(frozen=True)
class InertRepository:
    """A repository that is only read."""

    tree: Path
    """The root of its work tree."""

    head: str
    """The commit that is checked out; before the first one, the empty tree."""

    variables: Mapping[str, str] = field(default_factory=dict)

    async def run(self, folder: Path, *arguments: str) -> bytes:
        """Return what git prints in a folder of the work tree. Raises `GitFailed` if it fails."""
        return await _run(folder, self.variables, *arguments)


@asynccontextmanager
async def open_repository(folder: Path, variables: Mapping[str, str]) -> AsyncIterator[InertRepository]:
    """Open the repository that git finds in a folder with these variables. Raises `GitFailed`."""
    places = {name: str(folder / value) for name, value in variables.items() if value and "\0" not in value}
    places |= _TRUST
    asked = await _run(folder, places, "rev-parse", *_ASKED)
    found = os.fsdecode(asked).removesuffix("\n").split("\n")
    if len(found) != 4 or found[1] not in _EMPTY_TREE:
        raise GitFailed("git repository can't be read", hint="check its path and its object format")
    tree, form, objects, index = found
    head = await _head(folder, places) or _EMPTY_TREE[form]
    with tempfile.TemporaryDirectory(prefix="vox-mesh-git-") as own:
        await asyncio.to_thread(_make, Path(own), form, folder / index)
        variables = {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_DIR": own,
            "GIT_WORK_TREE": tree,
            "GIT_OBJECT_DIRECTORY": str(folder / objects),
            "GIT_INDEX_FILE": str(folder / index),
        }
        yield InertRepository(Path(tree), head, variables)


async def _head(folder: Path, places: Mapping[str, str]) -> str | None:
    try:
        found = await _run(folder, places, "rev-parse", "--verify", "--quiet", "--end-of-options", "HEAD")
    except GitFailed:  # before the first commit
        return None
    return found.decode("ascii", "replace").strip()


def _make(folder: Path, form: str, index: Path) -> None:
    """Make an empty repository, without running git; it has the parts of a split index."""
    (folder / "refs").mkdir()
    (folder / "HEAD").write_text("ref: refs/heads/none\n")
    (folder / "config").write_text(_CONFIG.format(form))
    for part in islice(index.parent.glob("sharedindex.*"), _MAX_PARTS):
        (folder / part.name).symlink_to(part)


async def _run(folder: Path, variables: Mapping[str, str], *arguments: str) -> bytes:
    program = shutil.which("git")
    if program is None:
        raise GitFailed("git not found", hint="install git and add it to PATH")
    return await run_git(
        program, folder, *arguments, limit=_MAX_OUTPUT, variables=variables, timeout_s=_GIT_S
    )
