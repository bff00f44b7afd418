"""What git knows: the repository that we are in, what would be committed, and where its hooks are."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from vox_mesh.errors import BadSettings, BadValue


@dataclass(frozen=True)
class WorkTree:
    """A work tree of a repository, by its root."""

    root: Path

    @classmethod
    def here(cls) -> WorkTree:
        """That of the current folder."""
        return cls(Path(_line(_asked("rev-parse", "--show-toplevel", folder=Path.cwd()))))

    @property
    def hooks(self) -> Path:
        """The folder of its hooks, wherever that is set to be; it need not exist."""
        return self.root / _line(_asked("rev-parse", "--git-path", "hooks", folder=self.root))

    def staged(self) -> list[str]:
        """All paths that a commit of the index would change, from the root.

        Without detecting renames: a renamed file is one that goes and one that comes, and both names count.
        Git itself says which index, in the environment of a hook.
        """
        differing = _asked(
            *("diff", "--cached", "--name-only", "-z"),
            *("--no-renames", "--no-ext-diff", "--ignore-submodules=none"),
            folder=self.root,  # where `diff.relative` changes nothing
        )
        return [_name(path) for path in differing.split(b"\0") if path]

    def path_of(self, given: str) -> str:
        """A path that is given from the current folder, as one from the root; that of a folder ends with `/`.

        Links on the way are followed, the last name is not: a link is a file of its own to git.
        """
        path = Path.cwd() / given
        path = path.resolve() if path.name in ("", "..") else path.parent.resolve() / path.name
        root = self.root.resolve()
        if not given or not path.is_relative_to(root):
            raise BadValue(f"{given!r} is not in the repository at {root}", hint="name a path in it")
        inside = _name(os.fsencode(path.relative_to(root)))
        return f"{inside}/" if path.is_dir() and not path.is_symlink() else inside


def _name(path: bytes) -> str:
    """The path as keys have it, in any locale: that of a commit need not be that of whoever took the lock."""
    return path.decode(errors="surrogateescape")


def _asked(*question: str, folder: Path) -> bytes:
    git = shutil.which("git")
    if git is None:
        raise BadSettings("git is not installed", hint="install it, and have it on PATH")
    answer = subprocess.run([git, *question], cwd=folder, capture_output=True)  # noqa: S603 - words of our own
    if answer.returncode != 0:
        said = os.fsdecode(answer.stderr).strip() or f"git {question[0]} ended with {answer.returncode}"
        raise BadSettings(said, hint="run this in the work tree of a git repository")
    return answer.stdout


def _line(answer: bytes) -> str:
    return os.fsdecode(answer.removesuffix(b"\n"))
