"""Work folders: one for each attempt, locked while it is used, and removed whatever is in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vox_mesh.errors import BadSettings
from vox_mesh.jobs.agents.work_folder import WorkFolders


def test_a_folder_is_new_and_removed_at_its_end(tmp_path: Path) -> None:
    folders = WorkFolders(tmp_path / "base")
    folder = folders.open("JOB-1")
    locked = folder.work / "read-only"
    locked.mkdir()
    (locked / "file").touch()
    (locked / "link").symlink_to(tmp_path)
    locked.chmod(0o500)
    folder.end(keep=False)
    assert list((tmp_path / "base").iterdir()) == []
    assert tmp_path.exists()


def test_what_a_killed_worker_has_left_is_removed_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    folders = WorkFolders(tmp_path)
    used = folders.open("JOB-1")
    (tmp_path / "JOB-2").mkdir()
    (tmp_path / "JOB-2.lock").touch()
    (tmp_path / "not ours.lock").touch()
    assert folders.sweep(60) == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["JOB-1", "JOB-1.lock", "not ours.lock"]
    used.end(keep=False)


def test_a_folder_that_waits_for_an_answer_is_found_again_until_its_time_is_over(tmp_path: Path) -> None:
    now = 0.0
    folders = WorkFolders(tmp_path, now_s=lambda: now)
    first = folders.open("JOB-1")
    (first.work / "made").touch()
    first.park()
    assert folders.sweep(60) == 0
    again = folders.open("JOB-2", parked="JOB-1")
    assert again.is_reused
    assert (again.work / "made").exists()
    again.park()
    now = (tmp_path / "JOB-1" / "parked").stat().st_mtime + 61
    assert folders.sweep(60) == 1
    assert not folders.open("JOB-3", parked="JOB-1").is_reused


@pytest.mark.parametrize("parked", ["../../etc", "JOB-1/../x", "", "/etc"])
def test_a_checkpoint_names_no_folder_elsewhere(tmp_path: Path, parked: str) -> None:
    folder = WorkFolders(tmp_path).open("JOB-9", parked=parked)
    assert folder.path == tmp_path / "JOB-9"
    folder.end(keep=False)


def test_a_base_that_others_can_write_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    base.chmod(0o777)
    with pytest.raises(BadSettings, match="can be written by other users"):
        WorkFolders(base).open("JOB-1")


def test_a_folder_that_was_replaced_is_not_read(tmp_path: Path) -> None:
    folders = WorkFolders(tmp_path / "base")
    folder = folders.open("JOB-1")
    assert folder.fault(os.geteuid()) is None
    folder.work.rename(folder.path / "moved")
    assert folder.fault(os.geteuid()) == "the work folder was replaced"
    folder.work.symlink_to(tmp_path)
    assert folder.fault(os.geteuid()) == "the work folder was replaced"
    folder.park()
    assert not folders.open("JOB-2", parked="JOB-1").is_reused


def test_files_of_another_user_are_not_read_for_an_agent(tmp_path: Path) -> None:
    folder = WorkFolders(tmp_path).open("JOB-1")
    (folder.work / "linked").touch()
    assert folder.fault(os.geteuid() + 1) == "the work folder has files of another user"
    folder.end(keep=False)
