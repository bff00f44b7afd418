"""Files of one machine in a repository: kept out of git, by a list that git itself does not record."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from vox_mesh.hosts.setup.config_file import ConfigFile
from vox_mesh.hosts.setup.documents.errors import DocumentRefused
from vox_mesh.hosts.setup.documents.marked_block import MarkedBlock

_TIMEOUT_S: Final = 30
_READABLE: Final = 0o644
_INERT: Final = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
"""Settings without which a repository could make git run a command of its own."""


def is_tracked(root: Path, name: str) -> bool:
    """Return whether git tracks a file of a project."""
    return _git(root, "ls-files", "--error-unmatch", "--", name) is not None


def refuse_if_tracked(root: Path, name: str) -> None:
    """Raise `DocumentRefused` if git tracks a file of a project: paths of this machine would be committed."""
    if is_tracked(root, name):
        raise DocumentRefused(
            f"{name} must not be tracked by git: the hooks name paths of this machine",
            hint="pass --user to install them for all projects of this user",
        )


def exclude(root: Path, name: str, owner: str) -> None:
    """Have git ignore a file of a project, for `owner`. Outside of a repository, do nothing."""
    file = _exclude_file(root)
    if file is not None:
        before = file.read()
        after = MarkedBlock(owner).put(before, f"/{_escaped(_prefix(root) + name)}\n")
        if after != before:
            file.write(after, before)


def include(root: Path, owner: str) -> None:
    """Undo what `exclude` did for `owner`."""
    file = _exclude_file(root)
    before = None if file is None else file.read()
    if file is None or before is None:
        return
    after = MarkedBlock(owner).take(before)
    if after is None:
        file.remove(before)
    elif after != before:
        file.write(after, before)


def _exclude_file(root: Path) -> ConfigFile | None:
    common = _git(root, "rev-parse", "--git-common-dir")
    if common is None:
        return None
    folder = (root / common).resolve()
    return ConfigFile(folder, folder / "info" / "exclude", mode=_READABLE)


def _prefix(root: Path) -> str:
    """Return the path of a folder from the root of its repository, with a slash at its end."""
    return _git(root, "rev-parse", "--show-prefix") or ""


def _escaped(name: str) -> str:
    return "".join(f"\\{each}" if each in "\\*?[ " else each for each in name)


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what a git command prints; `None` if it fails, or there is no git."""
    git = shutil.which("git")
    if git is None:
        return None
    # Variables of git, as in its hooks, could name another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            [git, *_INERT, *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return os.fsdecode(done.stdout).rstrip("\n") if done.returncode == 0 else None
