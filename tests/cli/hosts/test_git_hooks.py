"""Git as a host: commits, pushes and checkouts of paths that another agent holds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import VoxCommand
from tests.support.running.repositories import GIT_SETTINGS, Repository, new_repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository with a commit and a remote."""
    subprocess.run(["git", "init", "--quiet", "--bare", tmp_path / "remote"], check=True)
    made = new_repository(tmp_path / "work")
    made = Repository(
        made.folder, {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "VOX_AGENT_ID": "coder"}
    )
    made.git("remote", "add", "origin", str(tmp_path / "remote"))
    made.write("a.txt", "b.txt")
    made.git("add", "a.txt", "b.txt")
    assert made.commit().returncode == 0
    made.git("push", "--quiet", "origin", "HEAD")
    return made


@pytest.fixture
def vox(repository: Repository, tmp_path: Path) -> VoxCommand:
    """Commands in the repository, which has a mesh and the hooks."""
    command = VoxCommand(repository.folder, HOME=str(tmp_path), **GIT_SETTINGS)
    assert command("init", "--no-recovery-key").code == 0
    changed = command("hooks", "install", "git", "--json").document
    assert [Path(each["file"]).name for each in changed if each["changed"]] == [
        *("pre-commit", "pre-push", "post-checkout"),
    ]
    return command


def test_a_commit_and_a_push_of_a_held_path_are_rejected(vox: VoxCommand, repository: Repository) -> None:
    repository.write("a.txt", text="changed\n")
    repository.git("add", "a.txt")
    assert repository.having(VOX_GUARD="off").commit().returncode == 0, (
        "as if by an agent that evades the check"
    )
    assert vox("lock", "acquire", "file:a.txt", "--agent", "other").code == 0
    rejected = repository.tried("push", "origin", "HEAD")
    assert rejected.returncode != 0
    assert "a.txt" in rejected.stdout + rejected.stderr
    rejected = repository.tried("push", "origin", "HEAD:refs/heads/new")
    assert rejected.returncode != 0, "a new branch, too"
    assert vox("lock", "break", "file:a.txt", "--reason", "test").code == 0
    assert repository.tried("push", "origin", "HEAD").returncode == 0
    repository.git("push", "--quiet", "origin", "HEAD:refs/heads/gone")
    repository.git("push", "--quiet", "origin", ":refs/heads/gone")


def test_a_checkout_warns_of_held_paths_and_succeeds(vox: VoxCommand, repository: Repository) -> None:
    repository.git("checkout", "--quiet", "-b", "topic")
    repository.write("a.txt", text="changed\n")
    repository.git("add", "a.txt")
    assert repository.commit().returncode == 0
    assert vox("lock", "acquire", "file:a.txt", "--agent", "other").code == 0
    done = repository.tried("checkout", "-")
    assert done.returncode == 0
    assert "a.txt" in done.stdout + done.stderr
    assert "other" in done.stdout + done.stderr
    quiet = repository.tried("checkout", "--quiet", "-b", "same")
    assert (quiet.returncode, quiet.stderr) == (0, ""), "nothing has changed"


def test_hooks_of_others_are_called_first_and_restored(vox: VoxCommand, repository: Repository) -> None:
    assert all(each["changed"] for each in vox("hooks", "remove", "git", "--json").document)
    folder = repository.folder / ".git" / "hooks"
    foreign = '#!/bin/sh\ncat >> "$(git rev-parse --git-dir)/said-${0##*/}"\n'
    (folder / "pre-push").write_text(foreign)
    (folder / "pre-push").chmod(0o755)
    assert vox("hooks", "install", "git").code == 0
    assert vox("hooks", "status", "git", "--json").document[0]["state"] == "installed"
    repository.write("b.txt", text="changed\n")
    repository.git("add", "b.txt")
    assert repository.commit().returncode == 0
    assert repository.tried("push", "origin", "HEAD").returncode == 0
    assert "refs/heads/" in (repository.folder / ".git" / "said-pre-push.local").read_text()
    assert vox("hooks", "remove", "git").code == 0
    assert (folder / "pre-push").read_text() == foreign
    assert {each.name for each in folder.iterdir() if not each.name.endswith(".sample")} == {"pre-push"}
    assert vox("hooks", "status", "git", "--json").document[0]["state"] == "not installed"
