"""Before a commit in a shell: denied if another agent holds a file that it changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hosts.hooks.hosts import HookedAgent
from tests.support.running.repositories import Repository

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _denied(agent: HookedAgent, command: str, **query: str) -> str:
    return agent.host.denied(await agent.ask("before_shell", command=command, **query))


async def test_a_commit_of_a_held_file_is_denied(bob: HookedAgent, repository: Repository, name: str) -> None:
    await bob.served.node.locks.acquire(f"file:{name}", agent="ann", ttl=60)
    repository.write(name, "free.py")
    repository.git("add", "free.py")
    assert await _denied(bob, "git commit -m x") == ""
    repository.git("add", name)
    reason = await _denied(bob, "git commit -m x")
    assert "this commit" in reason
    assert f'"{name}"' in reason
    assert '"ann"' in reason
    assert await _denied(bob, "git status") == ""


async def test_all_that_a_commit_takes_is_checked_staged_or_not(
    claude: HookedAgent, repository: Repository, name: str
) -> None:
    repository.write(f"sub/{name}", "other.py")
    repository.git("add", "--all")
    repository.commit()
    await claude.served.node.locks.acquire(f"file:sub/{name}", agent="ann", ttl=60)
    repository.write(f"sub/{name}", "other.py", text="changed\n")
    assert await _denied(claude, "git commit -m x") == ""
    assert await _denied(claude, "git commit -m x other.py") == ""
    for command in (
        "git commit -am x",
        f"git commit -m x sub/{name}",
        "git commit -m x sub",
        f"cd sub && git commit -m x {name}",
        "git -C sub commit -am x",
        "bash -c 'git commit -am x'",
        "x=$(git commit -am x)",
    ):
        assert '"ann"' in await _denied(claude, command), command


async def test_both_names_of_a_renamed_file_count(
    claude: HookedAgent, repository: Repository, name: str
) -> None:
    repository.write(name)
    repository.git("add", "--all")
    repository.commit()
    repository.git("mv", name, "renamed.py")
    await claude.served.node.locks.acquire(f"file:{name}", agent="ann", ttl=60)
    assert f'"{name}"' in await _denied(claude, "git commit -m x")


async def test_a_commit_in_another_work_tree_or_a_nested_repository_is_checked(
    claude: HookedAgent, repository: Repository, name: str, tmp_path: Path
) -> None:
    tree, nested = tmp_path / "tree", repository.folder / "nested"
    repository.git("worktree", "add", "--quiet", "--detach", str(tree))
    nested.mkdir()
    repository.at(nested).git("init", "--quiet")
    await claude.served.node.locks.acquire([f"file:{name}", f"file:nested/{name}"], agent="ann", ttl=60)
    for folder in (tree, nested):
        other = repository.at(folder)
        other.write(name)
        other.git("add", "--all")
        reason = await _denied(claude, f"git -C {folder} commit -m x", project=str(repository.folder))
        assert '"ann"' in reason, folder


async def test_a_name_that_is_not_unicode_is_covered_by_its_folder(
    claude: HookedAgent, repository: Repository, name: str
) -> None:
    folder = repository.folder / name
    folder.mkdir()
    (folder / os.fsdecode(b"caf\xe9.txt")).write_text("text")
    repository.git("add", "--all")
    await claude.served.node.locks.acquire(f"file:{name}/**", agent="ann", ttl=60)
    assert '"ann"' in await _denied(claude, "git commit -m x")


async def test_no_command_of_the_repository_is_run(
    claude: HookedAgent, repository: Repository, name: str, tmp_path: Path
) -> None:
    repository.write(name)
    repository.write(".gitattributes", text=f"{name} filter=bad diff=bad\n")
    repository.git("add", "--all")
    repository.commit()
    inner = repository.at(repository.folder / "inner")
    inner.folder.mkdir()
    inner.git("init", "--quiet")
    inner.write("x.py")
    inner.write(".gitattributes", text="x.py filter=bad\n")
    inner.git("add", "--all")
    inner.commit()
    repository.git("add", "--all")
    repository.commit()
    inner.write("x.py", text="TEXT\n")  # of the same size, so that contents would be compared
    sign = tmp_path / "sign"
    for setting in (
        "core.fsmonitor",
        "filter.bad.clean",
        "diff.bad.command",
        "diff.bad.textconv",
        "diff.external",
    ):
        repository.git("config", setting, f"touch {sign}; cat #")
        inner.git("config", setting, f"touch {sign}; cat #")
    (repository.folder / name).write_text("TEXT\n")
    await claude.served.node.locks.acquire(f"file:{name}", agent="ann", ttl=60)
    assert '"ann"' in await _denied(claude, "git commit -am x")
    assert not sign.exists()


async def test_where_git_can_not_be_asked_it_is_said_or_denied_if_strict(
    claude: HookedAgent, repository: Repository
) -> None:
    (repository.folder / ".git" / "HEAD").write_text("garbage")
    answer = await claude.ask("before_shell", command="git commit -m x")
    assert "locks not checked" in claude.host.note(answer)
    assert "locks not checked" in await _denied(claude, "git commit -m x", strict="true")


async def test_a_repository_with_a_split_index_is_read(
    claude: HookedAgent, repository: Repository, name: str
) -> None:
    repository.git("update-index", "--split-index")
    repository.stage(name)
    await claude.served.node.locks.acquire(f"file:{name}", agent="ann", ttl=60)
    assert '"ann"' in await _denied(claude, "git commit -m x")


async def test_a_commit_with_another_git_folder_is_checked(
    claude: HookedAgent, repository: Repository, name: str, tmp_path: Path
) -> None:
    other = repository.having(GIT_DIR=str(tmp_path / "other"), GIT_WORK_TREE=str(repository.folder))
    other.git("init", "--quiet", "--object-format=sha256")
    other.stage(name)
    await claude.served.node.locks.acquire(f"file:{name}", agent="ann", ttl=60)
    assert '"ann"' in await _denied(claude, f"GIT_DIR={tmp_path / 'other'} git commit -m x")
    assert '"ann"' in await _denied(claude, f"git --git-dir {tmp_path / 'other'} commit -m x")


async def test_each_file_of_a_large_commit_is_checked(
    claude: HookedAgent, repository: Repository, name: str
) -> None:
    last = f"z{name}"
    repository.stage(*(f"{number:04}-of-a-commit-with-many-files.py" for number in range(3_000)), last)
    await claude.served.node.locks.acquire(f"file:{last}", agent="ann", ttl=60)
    assert f'"{last}"' in await _denied(claude, "git commit -m x", strict="true")
