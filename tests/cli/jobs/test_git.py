"""`vox-mesh git export` and `git import`: their output, their exit codes, and one line for each error."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import VoxCommand
from tests.cli.jobs.test_job import kind
from tests.support.running.repositories import new_repository


def test_jobs_go_into_a_repository_and_a_bad_ref_is_named(vox: VoxCommand, tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "repository")
    job = kind(vox)
    command = ("--repo", str(repository.folder))
    exported = vox("git", "export", *command)
    assert (exported.code, exported.out) == (0, "jobs: 1, refs created: 1, claims deleted: 0\n")
    shown = vox("git", "export", *command, "--json").document
    assert shown == {"jobs": 1, "created": 0, "deleted": 0, "missing_artifacts": 0, "refused": []}
    imported = vox("git", "import", *command)
    assert (imported.code, imported.out) == (0, "scheduled: 0, completed: 0, unchanged: 1, skipped: 0\n")
    name = f"refs/gatos/jobs/{'0' * 64}/manifest"
    repository.git("update-ref", name, f"refs/gatos/jobs/{job}/manifest")
    refused = vox("git", "import", *command)
    assert (refused.code, refused.out.splitlines()[1]) == (
        1,
        f"refused: {name}: its manifest is that of job {job}",
    )


def test_an_error_is_one_line(vox: VoxCommand, tmp_path: Path) -> None:
    outside, empty = tmp_path / "outside", tmp_path / "empty"
    outside.mkdir()
    empty.mkdir()
    for folder in (outside, tmp_path / "missing"):
        ended = vox("git", "export", "--repo", str(folder))
        assert (ended.code, "is no git repository that can be used" in ended.error) == (2, True)
    within = new_repository(tmp_path / "repository").folder / "within"
    within.mkdir()
    ended = vox("git", "export", "--repo", str(within))
    assert (ended.code, "is no git repository, but a folder of one" in ended.error) == (2, True)
    ended = vox.having(PATH=str(empty))("git", "import", "--repo", str(outside))
    assert (ended.code, "git not found" in ended.error) == (2, True)
    ended = vox.having(VOX_MESH_ENABLED="0")("git", "import", "--repo", str(outside))
    assert (ended.code, "needs a mesh" in ended.error) == (2, True)
