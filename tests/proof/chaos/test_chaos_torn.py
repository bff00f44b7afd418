"""What a run does to files: a spool keeps what it was given, a replica is spoiled, a full disk is full."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from proof.chaos.disk import Disk
from proof.chaos.torn import tear_replica, tear_spools
from vox_mesh import Script, Statement
from vox_mesh.store.spool.spool import Spool

_LARGE = 10**6


def test_what_a_spool_has_kept_outlives_a_write_that_was_cut_off(tmp_path: Path) -> None:
    folder = tmp_path / "slots" / "ann"
    folder.mkdir(parents=True)
    spool = Spool(folder / "spool-1.db", _LARGE)
    kept = Script(Statement("SELECT 1"), appendable=True)
    spool.keep([kept])
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path / "slots", killed / "slots")  # as it lies there while no one has closed it
    spool.close()
    for seed in range(5):
        (torn,) = tear_spools(killed, random.Random(seed))
        assert torn.startswith("spool-1.db-wal with")
    again = Spool(killed / "slots" / "ann" / "spool-1.db", _LARGE)
    assert [script.key for _, script in again.first(10, _LARGE)] == [kept.key]
    again.close()


def test_a_torn_replica_is_not_what_it_was_and_one_that_is_not_there_stays_so(tmp_path: Path) -> None:
    replica = tmp_path / "local.db.replica-ann"
    assert tear_replica(replica, random.Random(1)) == []
    for seed in range(10):
        replica.write_bytes(bytes(5_000))
        assert len(tear_replica(replica, random.Random(seed))) == 1
        assert replica.read_bytes() != bytes(5_000)


def test_a_full_disk_takes_nothing_until_there_is_room_again(tmp_path: Path) -> None:
    disk = Disk.mounted(tmp_path / "disk", "1m")
    if disk is None:
        pytest.skip("this user may not mount a file system")
    try:
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (disk.folder / "file").write_bytes(b"x")
        disk.empty()
        (disk.folder / "file").write_bytes(b"x")
    finally:
        disk.unmount()
