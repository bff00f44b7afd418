"""Changes of the tables of heartbeats are distinguished from all others by their pages."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from tests.store.replica.frames import LOG, Primary, primary
from vox_mesh.store.replica import copy_reader
from vox_mesh.store.replica.copy import Applied, Copy
from vox_mesh.store.replica.mark import Mark
from vox_mesh.store.replica.table_pages import HEARTBEAT_TABLES, TablePages
from vox_mesh.store.replica.wire import PAGE

_TABLE = (
    "CREATE TABLE {} (node_id TEXT PRIMARY KEY, beats INTEGER, text TEXT NOT NULL DEFAULT '') WITHOUT ROWID"
)
_ROWS = """
    INSERT INTO mesh_heartbeats
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 65)
    SELECT printf('node-%03d', i), 1, hex(zeroblob(200)) FROM n"""
_GROW = "UPDATE mesh_heartbeats SET text = hex(randomblob(3000)) WHERE node_id = 'node-{:03}'"
_BEAT = "UPDATE mesh_heartbeats SET beats = beats + 1 WHERE node_id = 'node-{:03}'"


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Primary]:
    """The database that is copied."""
    with primary(tmp_path / "primary.db", "wal") as database:
        yield database


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes no query too long."""
    monkeypatch.setattr(copy_reader, "QUICK_S", 30.0)


async def test_a_heartbeat_is_distinguished_from_everything_else(tmp_path: Path, source: Primary) -> None:
    mark = Mark.take(tmp_path / "copy", "pushed", "http://primary")
    copy = Copy(tmp_path / "copy", mark)

    async def applied(*statements: str) -> Applied:
        await asyncio.sleep(0)  # each turn of the loop has time for a few queries
        return await copy.take(source.commit(*statements))

    try:
        await copy.start_over(LOG)
        copy.expect()
        tables = [_TABLE.format(name) for name in (*HEARTBEAT_TABLES, "jobs")]
        assert await applied(*tables, _ROWS, "INSERT INTO jobs VALUES ('a', 1, '')") is Applied.ANYTHING
        assert await applied(_BEAT.format(1)) is Applied.ANYTHING, "the copy is not readable yet"
        copy.is_readable = True
        for number in range(65):  # some rows are in inner pages
            assert await applied(_BEAT.format(number)) is Applied.HEARTBEATS
        assert await applied("UPDATE jobs SET beats = 2") is Applied.ANYTHING
        assert await applied(_BEAT.format(2), "UPDATE jobs SET beats = 3") is Applied.ANYTHING
        assert await applied(_BEAT.format(2)) is Applied.HEARTBEATS
        both = [*source.commit(_BEAT.format(2)), *source.commit("UPDATE jobs SET beats = 4")]
        assert await copy.take(both) is Applied.ANYTHING
        assert await applied("CREATE TABLE more (a)") is Applied.ANYTHING
        assert await applied(_BEAT.format(3)) is Applied.HEARTBEATS
        assert await applied(_GROW.format(4)) is Applied.ANYTHING, "pages were added"
        assert await applied(_BEAT.format(5)) is Applied.HEARTBEATS
        frames = source.commit(_BEAT.format(6), "UPDATE jobs SET beats = 5")
        assert await copy.take(frames[:-1]) is Applied.NOTHING
        assert await copy.take(frames[-1:]) is Applied.ANYTHING, "pages that came earlier count, too"
    finally:
        await copy.close()
        mark.release()


def test_no_change_of_another_table_counts_as_one_of_theirs(tmp_path: Path, seed: int) -> None:
    random, path = Random(seed), tmp_path / "x.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA synchronous = off")
        for name in ("own", "other"):
            database.execute(_TABLE.format(name))

        def read_page(number: int) -> bytes:
            return path.read_bytes()[(number - 1) * PAGE : number * PAGE]

        def roots() -> list[int]:
            return [
                row[0] for row in database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'own'")
            ]

        pages = TablePages(read_page, roots)
        before, hits = path.read_bytes(), 0
        for _ in range(300):
            table, key = random.choice(("own", "own", "other")), f"node-{random.randrange(60):03}"
            match random.randrange(6):
                case 0:
                    database.execute(
                        f"INSERT OR REPLACE INTO {table} VALUES (?, 1, ?)",
                        (key, "x" * random.randrange(1_500)),
                    )
                case 1:
                    database.execute(f"DELETE FROM {table} WHERE node_id = ?", (key,))
                case _:
                    database.execute(f"UPDATE {table} SET beats = beats + 1 WHERE node_id = ?", (key,))
            now = path.read_bytes()
            numbers = range(1, len(now) // PAGE + 1)
            # The change counter in the header is not written to a write-ahead log.
            changed = [n for n in numbers if _page(now, n) != _page(before, n)]
            before = now
            if changed and pages.hold_all(changed):
                hits += 1
                assert table == "own"
        assert hits > 20


def _page(content: bytes, number: int) -> bytes:
    page = content[(number - 1) * PAGE : number * PAGE]
    return page[:24] + page[28:92] + page[100:] if number == 1 else page
