"""Repositories that try to run a command as the user of the node, when an agent is about to commit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hosts.hooks.hosts import HookedAgent
from tests.support.running.repositories import Repository

pytestmark = pytest.mark.asyncio(loop_scope="module")

_LONG_AGO: tuple[int, int] = (946_684_800, 946_684_800)


def _plant_filter(repository: Repository, name: str, sign: Path) -> None:
    """Have git run a command of the repository to compare a file."""
    repository.write(".gitattributes", text="* filter=bad\n")
    repository.settle(name)
    repository.git("config", "filter.bad.clean", f"touch {sign}; cat")
    # Files that may have changed after the index was written are read again.
    os.utime(repository.folder / ".git" / "index", _LONG_AGO)


async def test_no_filter_of_a_repository_is_run(
    claude: HookedAgent, repository: Repository, name: str, tmp_path: Path
) -> None:
    _plant_filter(repository, name, sign := tmp_path / "sign")
    for command in ("git commit -am x", f"git commit -m x {name}", "git commit -m x"):
        await claude.ask("before_shell", command=command)
        assert not sign.exists(), command


async def test_no_filter_of_a_submodule_is_run(
    claude: HookedAgent, repository: Repository, name: str, tmp_path: Path
) -> None:
    inner = repository.at(repository.folder / "inner")
    inner.folder.mkdir()
    inner.git("init", "--quiet")
    _plant_filter(inner, name, sign := tmp_path / "sign")
    repository.git("add", "inner")
    repository.commit()
    sign.unlink(missing_ok=True)
    os.utime(inner.folder / ".git" / "index", _LONG_AGO)
    for command in ("git commit -am x", "git commit -m x inner"):
        await claude.ask("before_shell", command=command)
        assert not sign.exists(), command


async def test_no_command_is_run_to_fetch_what_a_repository_lacks(
    claude: HookedAgent, repository: Repository, name: str, tmp_path: Path
) -> None:
    repository.stage(f"folder/{name}")
    tree = repository.git("rev-parse", "HEAD^{tree}").strip()
    repository.git("config", "extensions.partialClone", "origin")
    repository.git("config", "core.repositoryFormatVersion", "1")
    repository.git("config", "remote.origin.promisor", "true")
    repository.git("config", "remote.origin.url", str(tmp_path))
    repository.git("config", "remote.origin.uploadpack", f"touch {tmp_path / 'sign'}; false")
    (repository.folder / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    for command in ("git commit -m x", "git commit -am x", "git commit -m x folder"):
        await claude.ask("before_shell", command=command)
        assert not (tmp_path / "sign").exists(), command


async def test_no_held_file_hides_behind_many_others(
    claude: HookedAgent, repository: Repository, name: str
) -> None:
    held = f"zz-{name}"
    repository.stage(*(f"folder-{'x' * 100}/{number:04}.py" for number in range(1_500)), held)
    await claude.served.node.locks.acquire(f"file:{held}", agent="ann", ttl=60)
    reason = claude.host.denied(await claude.ask("before_shell", command="git commit -m x"))
    assert '"ann"' in reason
