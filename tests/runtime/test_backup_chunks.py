"""Backups in chunks: what did not change is stored once, and nothing counts that is not complete."""

from __future__ import annotations

import asyncio
import hashlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import orjson
import pytest
from blake3 import blake3

from tests.support.nodes.clocks import Clock
from tests.support.store.backing_up import back_up_now, backing_up_node, dump_of, schedule_of, stored_in
from tools.homes import FILE
from vox_mesh import Script, Statement
from vox_mesh.errors import ArchiveFailed, BadValue
from vox_mesh.node import MeshNode
from vox_mesh.runtime.backups.backup_index import StoredBackup
from vox_mesh.runtime.backups.backup_manifest import BackupManifest, read_manifest
from vox_mesh.runtime.backups.chunks import Chunk, ChunkWriter
from vox_mesh.runtime.backups.stored_backups import INDEX, WHOLE_INDEX
from vox_mesh.runtime.open_store import open_engine
from vox_mesh.store.schema.backup import back_up
from vox_mesh.store.targets.target import FolderTarget

_ROWS: Final = 20_000
_FILL: Final = f"""
    INSERT INTO of_users (id, text, other)
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {_ROWS})
    SELECT i, hex(randomblob(500)), x'00ff' FROM n
"""


class CountingTarget(FolderTarget):
    """A folder that counts what is stored, and may refuse everything from some change on."""

    def __init__(self, folder: Path, last: int | None = None) -> None:
        super().__init__(folder)
        self.stored_bytes = 0
        self.changes = 0
        self._last = last

    def _count(self) -> None:
        self.changes += 1
        if self._last is not None and self.changes > self._last:
            raise ConnectionResetError("the process is gone")

    async def put(self, name: str, file: Path) -> None:
        """Store a file."""
        self._count()
        self.stored_bytes += len(await asyncio.to_thread(file.read_bytes))
        await super().put(name, file)

    async def remove(self, name: str) -> None:
        """Remove a file."""
        self._count()
        await super().remove(name)


async def _write(node: MeshNode, *statements: str) -> None:
    await node.store.write(Script(*map(Statement, statements)))


def _files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _needed(folder: Path, backups: list[StoredBackup]) -> set[str]:
    """The files of these backups, and the index."""
    names = {INDEX, *(each.name for each in backups)}
    for each in backups:
        names |= {chunk.file_name for chunk in read_manifest((folder / each.name).read_bytes()).chunks}
    return names


async def test_a_second_backup_stores_what_has_changed_and_equals_the_database(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    async with backing_up_node(tmp_path, Clock()) as node:
        await _write(node, "CREATE TABLE of_users (id INTEGER PRIMARY KEY, text TEXT, other)", _FILL)
        first = CountingTarget(folder)
        await back_up_now(node, first)
        await _write(
            node,
            "DELETE FROM of_users WHERE id <= 10",
            f"UPDATE of_users SET text = 'ä€𝄞', other = 0.1 WHERE id = {_ROWS // 2}",
            f"INSERT INTO of_users VALUES ({_ROWS + 1}, NULL, -9223372036854775808)",
            f"INSERT INTO of_users VALUES ({_ROWS + 2}, '', 9e999)",
        )
        second = CountingTarget(folder)
        made = await back_up_now(node, second)
        engine = await open_engine(FILE.settings(tmp_path, None))
        await back_up(engine, tmp_path / "whole.db")
        await engine.close()
    assert first.stored_bytes > 5_000_000
    assert second.stored_bytes < first.stored_bytes / 2
    await stored_in(second).fetch(made.name, tmp_path / "fetched.db")
    fetched, whole = dump_of(tmp_path / "fetched.db"), dump_of(tmp_path / "whole.db")
    of_users = [line for line in fetched if "of_users" in line]
    assert len(of_users) == 1 + _ROWS - 10 + 2
    assert of_users == [line for line in whole if "of_users" in line]
    definitions = [[line for line in each if not line.startswith("INSERT")] for each in (fetched, whole)]
    assert definitions[0] == definitions[1]
    assert abs(len(fetched) - len(whole)) < 9, "locks, and keys of idempotency, come and go"


async def test_a_backup_can_be_stopped_at_any_change_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    target = FolderTarget(folder)
    stored = stored_in(target)
    async with backing_up_node(tmp_path, Clock(), backup_keep=1) as node:
        last = await back_up_now(node, target)
        changes, is_stopped = 0, True
        while is_stopped:
            await node.messages.send("ada", {"number": changes})
            try:
                last = await back_up_now(node, CountingTarget(folder, changes))
                is_stopped = False
            except ConnectionResetError:
                (listed,) = await stored.listed()
                await stored.fetch(listed.name, tmp_path / f"stopped-{changes}.db")
                last = await back_up_now(node, target)
            assert _files(folder) == _needed(folder, [last])
            changes += 1
    assert changes > 6, "a manifest, indexes, chunks and removals"


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"changed")])
async def test_a_damaged_or_missing_chunk_is_named_and_is_stored_again(
    harm: Callable[[Path], object], tmp_path: Path
) -> None:
    folder = tmp_path / "backups"
    async with backing_up_node(tmp_path, Clock()) as node:
        await _write(node, "CREATE TABLE of_users (id INTEGER PRIMARY KEY, text TEXT, other)", _FILL)
        made = await back_up_now(node, FolderTarget(folder))
        chunk = read_manifest((folder / made.name).read_bytes()).chunks[2]
        await asyncio.to_thread(harm, folder / chunk.file_name)
        stored = stored_in(folder)
        with pytest.raises(
            ArchiveFailed, match=f"{chunk.file_name}, a part of {made.name}, is (missing|damaged)"
        ):
            await stored.fetch(made.name, tmp_path / "fetched.db")
        assert not (tmp_path / "fetched.db").exists()
        schedule_of(node)._chance = lambda: 0.0  # every stored chunk is read back
        await back_up_now(node, FolderTarget(folder))
        await stored.fetch(made.name, tmp_path / "fetched.db")


async def test_backups_of_earlier_versions_are_listed_fetched_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    async with backing_up_node(tmp_path, Clock()) as node:
        engine = await open_engine(FILE.settings(tmp_path, None))
        folder.mkdir()
        name = "vox-mesh-20260101T000000Z-00000000.db"
        done = await back_up(engine, folder / name)
        await engine.close()
        digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        entry = {"name": name, "at_ms": 1, "bytes": done.bytes, "sha256": digest, "node_id": "one"}
        (folder / WHOLE_INDEX).write_text(json.dumps({"backups": [entry]}))
        stored = stored_in(folder)
        second = await back_up_now(node, FolderTarget(folder))
        assert [each.name for each in await stored.listed()] == [name, second.name]
        await stored.fetch(name, tmp_path / "fetched.db")
        assert (tmp_path / "fetched.db").read_bytes() == (folder / name).read_bytes()
        third = await back_up_now(node, FolderTarget(folder))
    assert [each.name for each in await stored.listed()] == [second.name, third.name]
    assert _files(folder) == _needed(folder, [second, third]) | {WHOLE_INDEX}


@pytest.mark.parametrize(
    "statement",
    [
        "ATTACH DATABASE 'reached.db' AS other",
        "PRAGMA journal_mode = WAL",
        "CREATE TABLE x AS SELECT 1",
        "VACUUM",
    ],
)
async def test_a_stored_definition_reaches_nothing_but_the_new_file(statement: str, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    lines = b'{"format":"vox-mesh rows","version":1}\n' + orjson.dumps({"define": [statement]}) + b"\n"
    chunk = Chunk(blake3(lines).hexdigest(), len(lines))
    (folder / chunk.file_name).write_bytes(zlib.compress(lines))
    name, content = "vox-mesh-1.json", BackupManifest([chunk]).content
    (folder / name).write_bytes(content)
    backup = StoredBackup(name, 1, len(lines), hashlib.sha256(content).hexdigest(), "one")
    (folder / INDEX).write_bytes(orjson.dumps({"backups": [backup._asdict()]}))
    with pytest.raises(ArchiveFailed, match="holds what no node stores"):
        await stored_in(folder).fetch(name, tmp_path / "fetched.db")
    assert _files(tmp_path) == {"backups"}


def test_lines_are_cut_at_the_same_places_whatever_comes_before(tmp_path: Path) -> None:
    lines = [
        b"%d %b\n" % (number, hashlib.sha256(b"%d" % number).hexdigest().encode() * 20)
        for number in range(9_000)
    ]
    chunks = []
    for name, some in (("all", lines), ("later", lines[50:])):
        (tmp_path / name).mkdir()
        writer = ChunkWriter(tmp_path / name, ())
        for line in some:
            writer.write(line)
        writer.finish()
        chunks.append(writer.chunks)
    assert len(chunks[0]) > 3
    assert chunks[0][-2:] == chunks[1][-2:]


def test_a_chunk_is_what_its_name_says() -> None:
    lines = b"[1]\n" * 1_000
    chunk = Chunk(blake3(lines).hexdigest(), len(lines))
    assert chunk.unpack(zlib.compress(lines)) == lines
    for wrong in (
        b"",
        b"no zlib",
        zlib.compress(lines[:-1]),
        zlib.compress(lines + b"\n"),
        zlib.compress(b"x"),
    ):
        with pytest.raises(BadValue):
            chunk.unpack(wrong)
