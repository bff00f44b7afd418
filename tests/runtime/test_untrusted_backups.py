"""Lost and changed backups: none counts that can't be fetched, and no file of theirs kills a node."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from tests.support.nodes.clocks import Clock
from tests.support.oplog.bucket import KEY_ID, SECRET, open_bucket
from tests.support.store.backing_up import DAY_S, back_up_now, backing_up_node, schedule_of, stored_in
from vox_mesh import Script, Statement
from vox_mesh.errors import ArchiveFailed, BadValue
from vox_mesh.runtime.backups.backup_manifest import read_manifest
from vox_mesh.runtime.backups.chunks import Chunk
from vox_mesh.runtime.backups.stored_backups import INDEX
from vox_mesh.store.targets.target import FolderTarget

_FILL: Final = """
    INSERT INTO of_users (text)
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
    SELECT hex(randomblob(500)) FROM n
"""
_USERS: Final = "CREATE TABLE of_users (id INTEGER PRIMARY KEY, text TEXT)"
_MOST_BYTES: Final = 2**22


def never_drawn() -> float:
    """No chunk is read back by chance."""
    return 1.0


async def test_a_backup_counts_only_with_all_chunks_that_it_reuses(tmp_path: Path) -> None:
    folder, clock = tmp_path / "backups", Clock()
    async with backing_up_node(tmp_path, clock) as node:
        schedule = schedule_of(node)
        schedule._chance = never_drawn
        await node.store.write(Script(Statement(_USERS), Statement(_FILL)))
        assert await schedule.run_once() is not None
        for chunk in folder.glob("vox-mesh-chunk-*"):  # as a lifecycle rule of a bucket does
            chunk.unlink()
        clock.now += DAY_S + 1
        made = await schedule.run_once()
        assert made is not None
    await stored_in(folder).fetch(made.name, tmp_path / "fetched.db")


async def test_a_chunk_that_vanishes_while_a_backup_is_made_keeps_it_from_counting(tmp_path: Path) -> None:
    folder = tmp_path / "backups"

    class VanishingTarget(FolderTarget):
        """A folder that loses all old chunks when a new manifest is stored."""

        async def put(self, name: str, file: Path) -> None:
            """Store a file."""
            await super().put(name, file)
            if name.endswith(".json") and name != INDEX:
                for chunk in folder.glob("vox-mesh-chunk-*"):
                    chunk.unlink()

    async with backing_up_node(tmp_path, Clock()) as node:
        await node.store.write(Script(Statement(_USERS), Statement(_FILL)))
        first = await back_up_now(node, FolderTarget(folder))
        with pytest.raises(ArchiveFailed, match="is missing"):
            await back_up_now(node, VanishingTarget(folder))
    assert await stored_in(folder).listed() == [first]


async def test_after_the_first_damaged_chunk_all_are_read_back(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    async with backing_up_node(tmp_path, Clock()) as node:
        await node.store.write(Script(Statement(_USERS), Statement(_FILL)))
        await back_up_now(node, FolderTarget(folder))
        for chunk in folder.glob("vox-mesh-chunk-*"):
            content = chunk.read_bytes()
            chunk.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        draws = [0.0]
        schedule_of(node)._chance = lambda: draws.pop() if draws else never_drawn()
        made = await back_up_now(node, FolderTarget(folder))
    await stored_in(folder).fetch(made.name, tmp_path / "fetched.db")


async def test_missing_objects_of_a_bucket_are_stored_again(tmp_path: Path) -> None:
    clock = Clock()
    async with open_bucket() as bucket:
        more: dict[str, Any] = {"backup_dir": None, "backup_url": bucket.url.replace("a bucket", "bucket")}
        more |= {"backup_key_id": KEY_ID, "backup_secret": SECRET}
        async with backing_up_node(tmp_path, clock, **more) as node:
            schedule = schedule_of(node)
            schedule._chance = never_drawn
            await node.store.write(Script(Statement(_USERS), Statement(_FILL)))
            assert await schedule.run_once() is not None
            before = {name for name in bucket.objects if "/vox-mesh-chunk-" in name}
            for name in before:
                del bucket.objects[name]
            clock.now += DAY_S + 1
            made = await schedule.run_once()
        assert made is not None
        assert bucket.refused == 0
        await stored_in(schedule._target).fetch(made.name, tmp_path / "fetched.db")


async def test_a_bucket_that_hides_what_is_missing_is_named_with_the_right_that_it_takes(
    tmp_path: Path,
) -> None:
    async with open_bucket() as bucket:
        bucket.missing_status = 403
        more: dict[str, Any] = {"backup_dir": None, "backup_url": bucket.url}
        more |= {"backup_key_id": KEY_ID, "backup_secret": SECRET}
        async with backing_up_node(tmp_path, Clock(), **more) as node:
            with pytest.raises(ArchiveFailed, match="answered 403") as failed:
                await schedule_of(node).run_once()
    assert "s3:ListBucket" in failed.value.hint


def a_sparse_file(path: Path) -> None:
    """A file of 600 MB that takes no space."""
    with path.open("wb") as file:
        file.truncate(600 * 2**20)


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (a_sparse_file, "is larger than 4194304 bytes"),
        (os.mkfifo, "it is not an ordinary file"),
        (Path.mkdir, "it is not an ordinary file"),
    ],
    ids=["sparse", "pipe", "folder"],
)
async def test_a_file_that_no_node_writes_is_not_read(harm: Any, fault: str, tmp_path: Path) -> None:
    harm(tmp_path / INDEX)
    async with asyncio.timeout(30):
        with pytest.raises(ArchiveFailed, match=fault):
            await stored_in(tmp_path).listed()


async def test_a_whole_backup_is_not_copied_if_it_is_larger_than_the_index_says(tmp_path: Path) -> None:
    a_sparse_file(tmp_path / "vox-mesh-1.db")
    async with asyncio.timeout(30):
        with pytest.raises(ArchiveFailed, match="is larger than 5 bytes"):
            async with FolderTarget(tmp_path).get("vox-mesh-1.db", 5):
                pass


def test_a_chunk_is_too_small_to_fill_the_memory() -> None:
    for size in (2**26 + 1, 0, "1"):
        content = orjson.dumps({"format": "vox-mesh backup", "version": 1, "chunks": [["0" * 64, size]]})
        with pytest.raises(BadValue, match="is no chunk"):
            read_manifest(content)


def test_what_a_manifest_promises_bounds_what_is_unpacked() -> None:
    bomb = zlib.compress(b"\0" * 2**24)
    with pytest.raises(BadValue):
        Chunk("0" * 64, 2**10).unpack(bomb)


async def test_a_row_that_is_larger_than_a_chunk_is_divided(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    some = 'a\\n"ä'
    large = "INSERT INTO of_users (text) VALUES (replace(hex(zeroblob(1048576)), '00', ?))"
    async with backing_up_node(tmp_path, Clock()) as node:
        await node.store.write(Script(Statement(_USERS), Statement(_FILL)))
        await node.store.write(Script(Statement(large, (some,))))
        made = await back_up_now(node, FolderTarget(folder))
    chunks = read_manifest((folder / made.name).read_bytes()).chunks
    assert max(each.size for each in chunks) < 2 * _MOST_BYTES
    await stored_in(folder).fetch(made.name, tmp_path / "fetched.db")
    with closing(sqlite3.connect(tmp_path / "fetched.db")) as database:
        assert database.execute("SELECT text FROM of_users ORDER BY id DESC").fetchone() == (some * 2**20,)
        assert database.execute("SELECT count(*) FROM of_users").fetchone() == (5_001,)


@pytest.mark.parametrize("value", [-1, 2**60, 1.5, None])
async def test_an_index_with_a_time_that_is_none_is_refused(value: object, tmp_path: Path) -> None:
    entry = {"name": "vox-mesh-1.json", "at_ms": value, "bytes": 1, "sha256": "", "node_id": "one"}
    (tmp_path / INDEX).write_bytes(orjson.dumps({"backups": [entry]}))
    with pytest.raises(ArchiveFailed, match="not an index"):
        await stored_in(tmp_path).listed()
