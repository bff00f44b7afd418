"""The repository that agents edit: a work tree and a branch for each, guarded, and witnessed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from proof.editing import commit_witness
from proof.editing.spec import FILES, marks_in

_TIMEOUT_S: Final = 120.0
_ROOT: Final = Path(__file__).resolve().parents[2]
_BASE: Final = "main"
_GUARD: Final = "vox_mesh.cli guard"
_SETTINGS: Final = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0"}


def git_environment(who: str) -> dict[str, str]:
    """Return the variables with which git runs for an author, without the settings of this machine."""
    people = {f"GIT_{role}_NAME": who for role in ("AUTHOR", "COMMITTER")}
    return {**_SETTINGS, **people, **{name.replace("NAME", "EMAIL"): f"{who}@example.org" for name in people}}


def run_git(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run git in a folder, to its end."""
    return subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )


class EditedRepository:
    """A repository with a work tree for each agent."""

    def __init__(self, folder: Path, agents: Sequence[str]) -> None:
        self.main = folder / "repository"
        self.trees = {name: folder / name for name in agents}

    def create(self) -> None:
        """Create it, with a first commit and the work trees."""
        self.main.mkdir()
        self._git("init", "--quiet", f"--initial-branch={_BASE}")
        for name in FILES:
            path = self.main / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("text\n")
        self._git("add", ".")
        self._git("commit", "--quiet", "--message", "begin")
        for name, tree in self.trees.items():
            self._git("worktree", "add", "--quiet", "-b", name, str(tree))

    def guard(self, variables: Mapping[str, str], plant: str) -> None:
        """Have every commit need the locks of its author; with a planted bug, the guard has it."""
        command = [sys.executable, "-m", "vox_mesh.cli", "guard", "install", "--require-lock"]
        subprocess.run(
            command, cwd=self.main, env={**os.environ, **variables}, check=True, stdout=subprocess.DEVNULL
        )
        if plant:
            hook = self.main / ".git" / "hooks" / "pre-commit"
            text = hook.read_text()
            assert text.count(_GUARD) == 1, text
            with_bug = f"proof.mutants.run_with_bug {plant} {_GUARD}"
            path = f"PYTHONPATH={shlex.quote(str(_ROOT))}"
            hook.write_text(text.replace("exec ", f"{path} exec ", 1).replace(_GUARD, with_bug))

    def witness(self, folder: Path, database: Mapping[str, str]) -> None:
        """Have every commit noted in the history, with the locks in force at that moment."""
        config, hook = folder / "witness.json", self.main / ".git" / "hooks" / "reference-transaction"
        config.write_text(json.dumps({**database, "history": str(folder / "git.jsonl")}))
        config.chmod(0o600)
        words = map(shlex.quote, (sys.executable, "-I", str(commit_witness.__file__), str(config)))
        hook.write_text(f'#!/bin/sh\n[ "$1" != prepared ] || exec {" ".join(words)} "$@"\n')
        hook.chmod(0o755)

    def commits(self) -> list[dict[str, Any]]:
        """Return all commits of agents: author, paths, and the marks of the edits that each adds."""
        found = []
        for commit in self._git("rev-list", "--reverse", "--all", f"^{_BASE}").split():
            author = self._git("show", "--no-patch", "--format=%an", commit).strip()
            paths = self._git("show", "--format=", "--name-only", commit).split()
            added = self._git("show", "--format=", "--unified=0", commit)
            lines = [line[1:] for line in added.splitlines() if line.startswith("+")]
            found.append(
                {"commit": commit, "author": author, "paths": paths, "marks": marks_in("\n".join(lines))}
            )
        return found

    def _git(self, *arguments: str) -> str:
        done = run_git(self.main, *arguments, **git_environment("begin"))
        assert done.returncode == 0, done
        return done.stdout
