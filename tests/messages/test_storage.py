"""Messages in the database as a whole: backups, and databases from before there were any."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.messages.messaging import bodies
from tools.homes import FILE
from vox_mesh import Mesh, Settings
from vox_mesh.runtime.open_store import open_engine
from vox_mesh.runtime.restore import BackupFile, restore
from vox_mesh.store.batch import Batch
from vox_mesh.store.schema.backup import back_up
from vox_mesh.store.schema.schema import VERSION

_TIMEOUT_S = 30.0
_TABLES = ("a2a_messages", "a2a_inboxes")


async def test_a_backup_keeps_messages_with_all_that_became_of_them(named: Settings, tmp_path: Path) -> None:
    async with Mesh.open(named) as node:
        for number in range(3):
            await node.messages.send("z", number, sender="a")
        (first, second, _) = await node.messages.inbox("z")
        await node.messages.ack(first)
        await node.messages.nack(second, retry_in=0)
        before = await node.messages.queries.listed()
        engine = await open_engine(named)
        await back_up(engine, tmp_path / "backup.db")
        await engine.close()
    empty = named.model_copy(update={"db_path": tmp_path / "restored.db"})
    engine = await open_engine(empty)
    with await asyncio.to_thread(BackupFile, tmp_path / "backup.db") as backup:
        await restore(engine, backup, timeout=_TIMEOUT_S)
    await engine.close()
    async with Mesh.open(empty) as node:
        assert await node.messages.queries.listed() == before
        assert bodies(await node.messages.poll_inbox_from_db("z")) == [
            1,
            2,
        ]  # and their signatures still hold


async def test_a_database_from_before_there_were_messages_is_upgraded(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None, tick="1h")
    async with Mesh.open(settings) as node:
        await node.locks.acquire("kept")
    engine = await open_engine(settings)
    batch = Batch()
    for table in _TABLES:
        batch.add(f"DROP TABLE {table}")
    batch.add("UPDATE mesh_schema SET version = 7")
    assert (await engine.run(batch.seal())).committed
    await engine.close()
    async with Mesh.open(settings) as node:
        await node.messages.send("z", 1, sender="a")
        assert bodies(await node.messages.inbox("z")) == [1]
        assert (await node.store.status()).schema_version == VERSION
