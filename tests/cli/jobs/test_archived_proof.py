"""`vox-mesh job verify` and `job bundle` of a job whose ops are only in the archive."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.conftest import VoxCommand
from tests.cli.jobs.test_job import kind
from tests.support.jobs.job_scene import done
from vox_mesh.cli.support.exit_codes import ExitCode


def archived_job(vox: VoxCommand, archive: Path) -> str:
    """A job that was done and pruned, and whose ops were archived and deleted."""
    ids = []
    for _ in range(3):
        ids.append(kind(vox, "test.large"))
        done(ids[-1], home_dir=vox.folder / ".vox", db_path=vox.folder / ".vox/cache/db/local.db")
    commands = [("db", "retention", "set", "jobs", "--max-rows", "0"), ("db", "prune")]
    for command in (*commands, *[("oplog", "anchor")] * 8):
        ended = vox(*command)
        assert ended.code == 0, ended.err
    deleting = ("oplog", "archive", "--older-than", "0s", "--delete-older-than", "0s")
    ended = vox.having(VOX_ARCHIVE_DIR=str(archive))(*deleting)
    assert ended.code == 0, ended.err
    return ids[0]


def test_the_archive_of_the_option_or_of_the_settings_is_read(vox: VoxCommand, tmp_path: Path) -> None:
    archive, copy = tmp_path / "archive", tmp_path / "copy"
    job_id = archived_job(vox, archive)
    without = vox("job", "verify", job_id)
    assert (without.code, "pass --archive" in without.err) == (ExitCode.NO, True)
    shutil.copytree(archive, copy)
    shown = vox("job", "verify", job_id[:10], "--archive", str(copy), "--json").document
    assert (shown["job_id"], shown["valid"], shown["archived"]) == (job_id, True, True)
    named = vox.having(VOX_ARCHIVE_DIR=str(archive))
    assert f"read from the archive {archive}" in named("job", "verify", job_id).out
    bundle = vox.folder / "bundle.json"
    assert vox("job", "bundle", job_id, "--archive", str(copy), "-o", str(bundle)).code == 0
    assert vox("job", "verify", "--file", str(bundle)).code == 0
    next(copy.iterdir()).unlink()
    lost = vox("job", "verify", job_id, "--archive", str(copy))
    assert "is missing" in lost.err
    assert len(lost.err.splitlines()) <= 2  # the error, and what to do
    assert vox("job", "verify", job_id, "--archive", "http://example.com/bucket").code == ExitCode.USAGE
