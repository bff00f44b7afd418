"""A real git repository, with nothing of this machine's configuration in it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_PATIENCE_S: Final = 60.0
GIT_SETTINGS: Final = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


class Repository:
    """Runs git in a folder, with these variables and those of the machine that it can't do without."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = {**environment, **GIT_SETTINGS}

    def having(self, **variables: str) -> Repository:
        """The same with more variables."""
        return Repository(self.folder, self.environment | variables)

    def at(self, folder: Path) -> Repository:
        """The same from another folder."""
        return Repository(folder, self.environment)

    def tried(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run git to its end, whatever that is."""
        return subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
        )

    def git(self, *arguments: str) -> str:
        """Run git, which must succeed; what it printed."""
        done = self.tried(*arguments)
        assert done.returncode == 0, done
        return done.stdout

    def commit(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Try to commit."""
        return self.tried("commit", "--quiet", "--message", "a change", *arguments)

    def write(self, *paths: str, text: str = "text\n") -> None:
        """Write these files, and stage none of them."""
        for path in paths:
            file = self.folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def stage(self, *paths: str, text: str = "text\n") -> None:
        """Write these files, and stage them."""
        self.write(*paths, text=text)
        self.git("--literal-pathspecs", "add", "--", *paths)

    def settle(self, *paths: str) -> None:
        """Commit these files unguarded, so that there is something to change."""
        self.stage(*paths)
        self.git("commit", "--quiet", "--no-verify", "--message", "as it was")

    @property
    def commits(self) -> int:
        """How many commits there are."""
        return len(self.tried("rev-list", "--all").stdout.split())


def new_repository(folder: Path, environment: Mapping[str, str] = os.environ) -> Repository:
    """An empty repository in a new folder."""
    folder.mkdir(parents=True)
    repository = Repository(folder, environment)
    repository.git("init", "--quiet")
    return repository
