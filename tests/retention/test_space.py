"""Space: what was pruned is given back to the file system."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from tools.homes import FILE
from vox_mesh import Script, Statement, open_store
from vox_mesh.runtime.retention.space import give_back
from vox_mesh.store.engines.file import FileEngine
from vox_mesh.store.schema.schema import ensure_schema
from vox_mesh.store.store import Store

_FILL = """
INSERT OR REPLACE INTO memories (scope_id, repository_id, memory_key, content, written_at)
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
SELECT 's', 'r', printf('%08d', i * 7919 % 5000), hex(randomblob(1000)), '' FROM n"""
_PRUNE = "DELETE FROM memories WHERE CAST(memory_key AS INTEGER) % 10 <> 0"


async def fill_and_prune(store: Store) -> int:
    """Have most of the file be free; the number of its pages."""
    for sql in (_FILL, _PRUNE):
        await store.write(Script(Statement(sql)))
    assert store.file is not None
    return (await store.file.space()).pages


async def test_what_was_pruned_is_given_back_while_others_write(tmp_path: Path) -> None:
    async with await open_store(FILE.settings(tmp_path, None)) as store:
        before = await fill_and_prune(store)
        assert store.file is not None
        assert await give_back(store, lambda: False, time.monotonic) > 0
        after = await store.file.space()
        assert after.pages < before / 3
        assert after.free_pages <= max(256, after.pages // 10)
        assert (await store.read("SELECT count(*) FROM memories")).value == 500
        assert (await store.read("PRAGMA integrity_check")).value == "ok"
        assert await give_back(store, lambda: False, time.monotonic) == 0


async def test_a_pass_that_is_over_gives_nothing_back(tmp_path: Path) -> None:
    async with await open_store(FILE.settings(tmp_path, None)) as store:
        before = await fill_and_prune(store)
        assert await give_back(store, lambda: True, time.monotonic) == 0
        assert store.file is not None
        assert (await store.file.space()).pages == before


async def test_an_old_file_shrinks_once_it_was_compacted(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None)
    settings.db_path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(settings.db_path)) as old:
        old.execute("PRAGMA journal_mode = WAL")
        old.execute("CREATE TABLE mine (id INTEGER PRIMARY KEY, text)")
        old.execute("INSERT INTO mine VALUES (17, 'kept')")
        old.commit()
    new = await FileEngine.open(settings.db_path)
    await ensure_schema(new, beside_others=True)
    await new.close()
    async with await open_store(settings) as store:
        before = await fill_and_prune(store)
        assert await give_back(store, lambda: False, time.monotonic) == 0
        engine = store.file
        assert isinstance(engine, FileEngine)
        await engine.compact()
        after = await engine.space()
        assert after.can_shrink
        assert after.pages < before / 3
        assert (await store.read("SELECT id FROM mine")).value == 17
        assert (await store.read("PRAGMA integrity_check")).value == "ok"
        await fill_and_prune(store)
        assert await give_back(store, lambda: False, time.monotonic) > 0
