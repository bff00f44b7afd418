"""Files that git is to ignore: asked of a repository that may be hostile."""

from __future__ import annotations

from pathlib import Path

from tests.support.running.repositories import new_repository
from vox_mesh.hosts.setup.git_exclude import exclude, include, is_tracked


def test_no_command_of_a_repository_is_run(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "project")
    repository.settle("a.json")
    sign = tmp_path / "sign"
    repository.git("config", "core.fsmonitor", f"touch {sign}; false")
    assert is_tracked(repository.folder, "a.json")
    exclude(repository.folder, "b.json", "test")
    assert not is_tracked(repository.folder, "b.json")
    include(repository.folder, "test")
    assert not sign.exists()
