"""A replica under load: it blocks no one, sends no one away without need, and ends when it is asked to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.replica.standing import replica_file, standing, until, until_in_touch
from tests.support.store.leftovers import descriptors
from tests.support.store.tables import make_table
from tools.homes import MESH_REPLICA
from tools.sqld import Server
from vox_mesh import Script, Settings, Statement, Store, open_store
from vox_mesh.store.replica.replica import ReplicaState
from vox_mesh.store.schema.schema import VERSION

_PAGES: Final = 5_000
_MANY_ROWS: Final = (
    "INSERT INTO {table} (a) "
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) "
    "SELECT randomblob(4000) FROM n"
)


@pytest.fixture(scope="module")
def primary() -> Iterator[Server]:
    """A server for these tests alone."""
    with Server() as server:
        yield server


@pytest.fixture
def settings(tmp_path: Path, primary: Server) -> Settings:
    """The settings of a node with a replica."""
    return MESH_REPLICA.settings(tmp_path, primary)


@pytest.fixture
async def node(settings: Settings) -> AsyncIterator[Store]:
    """A node whose replica is in touch."""
    async with await open_store(settings) as store:
        await until_in_touch(store)
        yield store


async def test_a_large_transaction_is_applied_without_stopping_the_loop(
    node: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = await make_table(node)
    await node.synced()
    replica = node._replica
    copy = replica._chosen._copy  # type: ignore[union-attr]
    inline: list[int] = []
    apply, loop_thread = copy._file.apply, asyncio.get_running_loop()

    def noting(*arguments: int) -> None:
        try:
            if asyncio.get_running_loop() is loop_thread:
                inline.append(copy._file.entries)
        except RuntimeError:
            pass  # in another thread, as it should be
        apply(*arguments)

    monkeypatch.setattr(copy._file, "apply", noting)
    await node.write(Script(Statement(_MANY_ROWS.format(table=table, count=_PAGES))))
    await node.synced()
    assert (await node.read(f"SELECT max(rowid) FROM {table}")).value == _PAGES
    assert all(entries <= 64 for entries in inline), "a large one was applied in the event loop"


async def test_many_reads_at_once_are_answered_by_the_replica(node: Store) -> None:
    asked = 1_000
    for _ in range(20):  # where others keep the processor for long, a quick query may look like a slow one
        await node.synced()
        answers = await asyncio.gather(*(node.read("SELECT version FROM mesh_schema") for _ in range(1_000)))
        assert {rows.value for rows in answers} == {VERSION}
        asked = min(asked, sum(not rows.age_s for rows in answers))
        if asked < 100:
            break
    assert asked < 100, f"the primary was asked {asked} times without need"


async def test_a_file_that_is_deleted_under_a_reader_is_no_error(node: Store, settings: Settings) -> None:
    table = await make_table(node)
    await node.synced()
    await node.write(Script(Statement(f"INSERT INTO {table} (a) VALUES ('x')")))
    await until(node, lambda: not standing(node).lag_frames)
    replica_file(settings).unlink()
    assert (await node.read(f"SELECT a FROM {table}")).value == "x"
    await node.synced()
    assert (await node.read(f"SELECT a FROM {table}")).age_s


async def test_a_redo_file_that_is_spoiled_before_it_is_applied_is_noticed(
    node: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = await make_table(node)
    await node.synced()
    copy = node._replica._chosen._copy  # type: ignore[union-attr]
    apply = copy._file.apply
    redo = Path(f"{replica_file(settings)}.redo")

    def spoiling(*arguments: int) -> None:
        monkeypatch.setattr(copy._file, "apply", apply)
        redo.write_bytes(redo.read_bytes()[: redo.stat().st_size // 2])
        apply(*arguments)

    monkeypatch.setattr(copy._file, "apply", spoiling)
    await node.write(Script(Statement(_MANY_ROWS.format(table=table, count=300))))
    await node.synced()
    assert (await node.read(f"SELECT count(a) FROM {table}")).value == 300
    await until(node, lambda: standing(node).state is ReplicaState.IN_TOUCH)
    await node.synced()
    rows = await node.read(f"SELECT count(a) FROM {table}")
    assert (rows.value, rows.age_s > 0) == (300, True)


async def test_a_read_ends_by_its_deadline_whatever_the_replica_is_at(node: Store) -> None:
    table = await make_table(node)
    await node.synced()
    copy = node._replica._chosen._copy  # type: ignore[union-attr]
    async with copy._gate.changing():
        began = time.monotonic()
        rows = await node.read(f"SELECT count(*) FROM {table}")
        assert rows.age_s == 0, "the primary answers meanwhile"
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("turns", range(6))
async def test_one_that_is_cancelled_while_closing_leaves_nothing_open(
    settings: Settings, turns: int
) -> None:
    before = descriptors()
    store = await open_store(settings)
    await until_in_touch(store)
    replica = store._replica
    assert replica is not None
    closing = asyncio.create_task(replica.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await store.close()
    assert descriptors() == before
