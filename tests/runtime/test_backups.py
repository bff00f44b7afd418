"""Scheduled backups: one node at a time makes them, they are verified, and the last ones are kept."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.nodes.clocks import Clock
from tests.support.oplog.bucket import KEY_ID, SECRET, open_bucket
from tests.support.store.backing_up import DAY_S, backing_up_node, schedule_of, stored_in
from tools.homes import FILE
from vox_mesh.errors import ArchiveFailed, BackupRefused, BadSettings
from vox_mesh.http.metrics.backup_collector import collect_backups
from vox_mesh.runtime.archive_target import backup_target
from vox_mesh.runtime.backups.backup_manifest import read_manifest
from vox_mesh.runtime.backups.stored_backups import INDEX
from vox_mesh.store.targets.target import FolderTarget


async def test_a_backup_is_made_when_one_is_due_and_the_last_ones_are_kept(tmp_path: Path) -> None:
    clock = Clock()
    async with backing_up_node(tmp_path, clock) as node:
        schedule, stored = schedule_of(node), stored_in(tmp_path / "backups")
        first = await schedule.run_once()
        assert first is not None
        assert await stored.listed() == [first]
        assert await schedule.run_once() is None, "the first one is new"
        await node.messages.send("ada", {"text": "hello"})
        clock.now += DAY_S + 1
        second = await schedule.run_once()
        clock.now += DAY_S + 1
        third = await schedule.run_once()
        assert second is not None
        assert third is not None
        assert [each.name for each in await stored.listed()] == [second.name, third.name]
        assert schedule.newest_ms == third.at_ms
    assert first.name not in {path.name for path in (tmp_path / "backups").iterdir()}
    await stored.fetch(third.name, tmp_path / "third.db")
    with closing(sqlite3.connect(tmp_path / "third.db")) as database:
        assert database.execute("SELECT count(*) FROM a2a_messages").fetchone() == (1,)
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_of_two_nodes_one_makes_it(tmp_path: Path) -> None:
    clock = Clock()
    async with AsyncExitStack() as ending:
        one = await ending.enter_async_context(backing_up_node(tmp_path, clock))
        two = await ending.enter_async_context(backing_up_node(tmp_path, clock, "two"))
        async with schedule_of(one)._leading() as term:
            assert term is not None
            assert await schedule_of(two).run_once() is None, "the other one leads"
        assert await schedule_of(two).run_once() is not None
        assert await schedule_of(one).run_once() is None


class LossyTarget(FolderTarget):
    """A folder that keeps something else than it was given."""

    def __init__(self, folder: Path, lost: str) -> None:
        """`lost` is how the names of those files end of which a part is lost."""
        super().__init__(folder)
        self._lost = lost

    async def put(self, name: str, file: Path) -> None:
        """Store all but the last byte of such a file."""
        await super().put(name, file)
        if name != INDEX and name.endswith(self._lost):
            await asyncio.to_thread(lambda: (self._folder / name).write_bytes(file.read_bytes()[:-1]))


@pytest.mark.parametrize(("lost", "fault"), [(".json", "is not what was stored"), (".z", "is damaged")])
async def test_a_backup_that_is_not_read_back_as_it_was_written_does_not_count(
    lost: str, fault: str, tmp_path: Path
) -> None:
    async with backing_up_node(tmp_path, Clock()) as node:
        schedule = schedule_of(node)
        schedule._target = LossyTarget(tmp_path / "backups", lost)
        with pytest.raises(ArchiveFailed, match=fault):
            await schedule.run_once()
        assert await stored_in(schedule._target).listed() == []


async def test_a_fetched_backup_is_verified(tmp_path: Path) -> None:
    async with backing_up_node(tmp_path, Clock()) as node:
        made = await schedule_of(node).run_once()
    assert made is not None
    stored = stored_in(tmp_path / "backups")
    assert await stored.fetch(made.name, tmp_path / "fetched.db") == made
    with pytest.raises(BackupRefused, match="exists already"):
        await stored.fetch(made.name, tmp_path / "fetched.db")
    with pytest.raises(BackupRefused, match="no backup"):
        await stored.fetch("vox-mesh-other.db", tmp_path / "other.db")
    with (tmp_path / "backups" / made.name).open("r+b") as file:
        file.write(b"changed")
    with pytest.raises(ArchiveFailed, match="is not what was stored"):
        await stored.fetch(made.name, tmp_path / "other.db")
    assert not (tmp_path / "other.db").exists()


async def test_backups_are_kept_in_a_bucket(tmp_path: Path) -> None:
    clock = Clock()
    async with open_bucket() as bucket:
        url: dict[str, Any] = {"backup_dir": None, "backup_url": bucket.url.replace("a bucket", "bucket")}
        key: dict[str, Any] = {"backup_key_id": KEY_ID, "backup_secret": SECRET, "backup_keep": 1}
        async with backing_up_node(tmp_path, clock, **url, **key) as node:
            assert await schedule_of(node).run_once() is not None
            clock.now += DAY_S + 1
            made = await schedule_of(node).run_once()
        assert made is not None
        kept = {name.removeprefix("/bucket/mesh/") for name in bucket.objects}
        chunks = {
            each.file_name for each in read_manifest(bucket.objects[f"/bucket/mesh/{made.name}"]).chunks
        }
        assert chunks
        assert kept == {INDEX, made.name} | chunks
        assert bucket.refused == 0


@pytest.mark.parametrize("name", ["../mesh.json", "vox-mesh-/../x.json", "mesh.json", "vox-mesh-x.db", 7])
async def test_an_index_that_names_other_files_is_refused(name: object, tmp_path: Path) -> None:
    entry = {"name": name, "at_ms": 1, "bytes": 1, "sha256": "", "node_id": "one"}
    (tmp_path / INDEX).write_text(json.dumps({"backups": [entry]}))
    with pytest.raises(ArchiveFailed, match="not an index"):
        await stored_in(tmp_path).listed()


def test_the_settings_name_one_place(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None)
    assert backup_target(settings) is None
    url: dict[str, Any] = {"backup_url": "https://s3.example.com/b"}
    for wrong in (url, url | {"backup_dir": tmp_path}):
        with pytest.raises(BadSettings):
            backup_target(settings.model_copy(update=wrong))


async def test_the_age_counts_from_the_start_of_a_node_that_has_seen_no_backup(tmp_path: Path) -> None:
    clock, folder = Clock(), tmp_path / "backups"
    (folder / INDEX).mkdir(parents=True)
    async with backing_up_node(tmp_path, clock) as node:
        schedule = schedule_of(node)
        clock.now += 3 * DAY_S
        with pytest.raises(ArchiveFailed):
            await schedule.run_once()
        age, interval, failures = collect_backups(schedule)
    assert [each.value for each in age.samples] == [3 * DAY_S]
    for family in (age, interval, failures):
        assert [each.labels for each in family.samples] == [{"scope": "mesh", "repository": "default"}]


async def test_a_backup_from_the_future_keeps_no_other_from_being_made(tmp_path: Path) -> None:
    clock, folder = Clock(), tmp_path / "backups"
    async with backing_up_node(tmp_path, clock, backup_keep=1) as node:
        schedule = schedule_of(node)
        first = await schedule.run_once()
        assert first is not None
        index = json.loads((folder / INDEX).read_text())
        index["backups"][0]["at_ms"] += int(10 * 365 * DAY_S * 1_000)
        (folder / INDEX).write_text(json.dumps(index))
        clock.now += 1
        second = await schedule.run_once()
        assert second is not None
        assert schedule.age_s < DAY_S
    assert await stored_in(folder).listed() == [second], "the one from the future is no newer"
