"""Reads from a replica: as new as what was seen before, honest about their age, and never in the way."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from proof.chaos.proxy import NetworkConditions, Proxy
from tests.support.replica.standing import standing, until, until_in_touch
from tests.support.running.lengths import cases_in_soak
from tests.support.store.counting import HELLO, counting
from tests.support.store.leftovers import assert_nothing_left, descriptors
from tests.support.store.tables import make_table
from tools.homes import MESH, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh import Rows, Script, Statement, Store, open_store
from vox_mesh.errors import DatabaseUnavailable, MeshError, StoreClosed
from vox_mesh.model.base.backends import Backend, Driver, ReplicaChoice
from vox_mesh.store import Value
from vox_mesh.store.engines.reader import Reader
from vox_mesh.store.replica.pages import file_bytes
from vox_mesh.store.replica.paths import replica_path
from vox_mesh.store.replica.replica import ReplicaState
from vox_mesh.store.replica.wire import PAGE

_DRIVERS: Final = (Driver.WS, Driver.HTTP, Driver.LIBSQL_CLIENT)
_PATIENCE_S: Final = 30.0
_PROMPT_S: Final = 4.0
_NOTICED_S: Final = 5.0
_FAR_S: Final = 0.04


@pytest.fixture(scope="module")
def primary() -> Iterator[Server]:
    """A server for these tests alone: a replica copies all there is."""
    with Server() as server:
        yield server


@pytest.fixture
async def node(tmp_path: Path, primary: Server) -> AsyncIterator[Store]:
    """A node whose replica is in touch."""
    async with await open_store(MESH_REPLICA.settings(tmp_path, primary)) as store:
        await until_in_touch(store)
        yield store


def _insert(table: str, value: Value = "x") -> Script:
    return Script(Statement(f"INSERT INTO {table} (a) VALUES (?)", (value,)))


# --- whose answer it is, and how old --------------------------------------------------------------


async def test_the_replica_answers_and_says_how_old_the_answer_may_be(node: Store) -> None:
    await node.synced()
    first, second = await node.read("SELECT 1"), await node.read("SELECT 1")
    assert 0 < first.age_s < _NOTICED_S
    assert second.age_s != first.age_s


async def test_fresh_asks_the_primary(node: Store) -> None:
    await node.synced()
    assert (await node.read("SELECT 1")).age_s > 0
    assert (await node.read("SELECT 1", fresh=True)).age_s == 0


@pytest.mark.parametrize("driver", _DRIVERS, ids=str)
async def test_own_writes_are_read_back_at_once(driver: Driver, tmp_path: Path, primary: Server) -> None:
    case = HomeCase(Backend.SERVER, driver, ReplicaChoice.AUTO)
    async with await open_store(case.settings(tmp_path, primary)) as store:
        table = await make_table(store)
        await until_in_touch(store)
        by_replica = 0
        for n in range(1, 31):
            await store.write(_insert(table, n))
            rows = await store.read(f"SELECT max(a) FROM {table}")
            assert rows.value == n
            by_replica += rows.age_s > 0
        assert by_replica > 0


@pytest.mark.parametrize("driver", _DRIVERS, ids=str)
async def test_what_a_fresh_read_showed_is_not_lost_again(
    driver: Driver, tmp_path: Path, primary: Server, node: Store
) -> None:
    case = HomeCase(Backend.SERVER, driver, ReplicaChoice.AUTO)
    table = await make_table(node)
    count = f"SELECT count(*) FROM {table}"
    async with await open_store(case.settings(tmp_path / "other", primary)) as store:
        await until_in_touch(store)
        for _ in range(20):
            writing = asyncio.create_task(node.write(_insert(table)))
            seen = (await store.read(count, fresh=True)).value
            assert (await store.read(count)).value >= seen
            await writing


async def test_queries_that_ask_the_time_go_to_the_primary(node: Store) -> None:
    table, view = await make_table(node), (await make_table(node)).replace("t_", "v_")
    await node.write(Script(Statement(f"CREATE VIEW {view} AS SELECT datetime('now') AS moment")))
    await node.write(_insert(table, "now"))
    await node.synced()
    asking: list[tuple[str, tuple[Value, ...]]] = [
        ("SELECT datetime('now')", ()),
        ("SELECT date ( 'NOW' )", ()),
        ("SELECT julianday()", ()),
        ("SELECT strftime('%s')", ()),
        ("SELECT unixepoch(?)", ("now",)),
        ("SELECT CURRENT_TIMESTAMP", ()),
        (f"SELECT id FROM {table} WHERE current_date > '2000-01-01'", ()),
        (f"SELECT date(a) FROM {table}", ()),
        (f"SELECT moment FROM {view}", ()),
    ]
    for sql, params in asking:
        rows = await node.read(sql, params)
        assert (rows.age_s, rows.value is not None) == (0, True), sql
    for sql in (f"SELECT a FROM {table}", "SELECT 'now'", "SELECT 1 AS current_date_of_birth"):
        assert (await node.read(sql)).age_s > 0, sql


async def test_a_wrong_query_fails_in_the_words_of_the_primary(node: Store) -> None:
    with pytest.raises(MeshError, match="no such table"):
        await node.read("SELECT * FROM nowhere_to_be_found")


async def test_the_status_tells_how_the_replica_stands(tmp_path: Path, node: Store) -> None:
    await node.write(_insert(await make_table(node)))
    await node.synced()
    status = (await node.status()).replica
    assert status is not None
    assert (status.driver, status.state, status.error) == ("pushed", ReplicaState.IN_TOUCH, "")
    assert status.frame is not None
    assert status.frame > 0
    assert status.lag_frames == 0
    assert status.age_ms is not None
    assert 0 <= status.age_ms < _NOTICED_S * 1_000
    assert file_bytes(status.bytes // PAGE) == replica_path(tmp_path / "vox" / "local.db", "1").stat().st_size


async def test_a_caller_that_does_nothing_but_read_still_sees_what_comes_in(
    tmp_path: Path, primary: Server, node: Store
) -> None:
    table = await make_table(node)
    count = f"SELECT count(*) FROM {table}"
    async with await open_store(MESH.settings(tmp_path / "other", primary)) as other:
        writing = asyncio.create_task(other.write(_insert(table)))
        while not (rows := await node.read(count)).value:
            assert rows.age_s > 0, "the loop did not come round until the replica was too old"
        assert rows.value == 1
        await writing


# --- what takes long ------------------------------------------------------------------------------

_MANY: Final = 2_000_000
_LONG: Final = (
    "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < ?) SELECT count(*) FROM c"
)


async def _pauses(task: asyncio.Task[Rows]) -> list[float]:
    """How long the loop took to come round, each time until the task was done."""
    pauses, last = [], time.monotonic()
    while not task.done():
        await asyncio.sleep(0.001)
        now = time.monotonic()
        pauses.append(now - last)
        last = now
    return pauses


async def test_a_long_query_is_the_primarys_and_holds_up_neither_the_loop_nor_the_replica(
    tmp_path: Path, primary: Server, node: Store
) -> None:
    table = await make_table(node)
    count = f"SELECT count(*) FROM {table}"
    async with await open_store(MESH.settings(tmp_path / "other", primary)) as other:
        asking = asyncio.create_task(node.read(_LONG, (_MANY,)))
        pausing = asyncio.create_task(_pauses(asking))
        came_in = 0
        ages: list[float] = []
        while not asking.done():
            await other.write(_insert(table))
            came_in += 1
            seen = -1
            async with asyncio.timeout(_PATIENCE_S):
                while seen < came_in:
                    rows = await node.read(count)
                    ages.append(rows.age_s)
                    seen = rows.value
        rows = await node.read(_LONG, (10,))
    answer, pauses = asking.result(), await pausing
    assert (answer.value, answer.age_s) == (_MANY, 0)
    assert rows.value == 10
    assert came_in > 3, "the replica stood still meanwhile"
    # On a busy machine, a short query may be interrupted for so long that the primary answers it.
    assert ages.count(0.0) < len(ages) / 2, "the short queries went to the primary"
    assert max(pauses) < sum(pauses) / 2, "the loop stood still meanwhile"


def _value(rows: Rows | None) -> object:
    assert rows is not None
    return rows.value


def test_a_query_is_known_to_be_long_even_if_it_could_not_be_stopped(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    count = Statement("SELECT count(*) FROM t")  # one instruction of SQLite's machine
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.executemany("INSERT INTO t VALUES (zeroblob(4000))", [()] * 5_000)
        connection.commit()
        reader = Reader(file)
        for _ in range(3):  # the first one is prepared, and once may be the machine's fault
            assert not reader.is_slow(count)
            assert _value(reader.query_inline(count, 0.000_5)) == 5_000
        assert reader.is_slow(count)
        connection.execute("DELETE FROM t")
        connection.commit()
        reader.close_connections()
    deadline = time.monotonic() + _PATIENCE_S
    while reader.is_slow(count) and time.monotonic() < deadline:  # a busy machine may take long for anything
        assert _value(reader.query_in_thread(count, 1.0)) == 0
    assert not reader.is_slow(count)


# --- touch lost and found -------------------------------------------------------------------------


async def test_a_frozen_server_is_noticed_in_time_and_found_again(tmp_path: Path, server: Server) -> None:
    settings = MESH_REPLICA.settings(tmp_path, server, db_deadline="1s", db_request_timeout="1s")
    async with await open_store(settings) as store:
        await until_in_touch(store)
        await store.synced()
        watch = store.watch("SELECT 'still here'")
        assert (await anext(watch)).in_touch
        server.freeze()
        frozen_at = time.monotonic()
        change = await asyncio.wait_for(anext(watch), _NOTICED_S)
        assert (change.rows.value, change.in_touch) == ("still here", False)
        assert standing(store).state is ReplicaState.OUT_OF_TOUCH
        assert "did not answer" in standing(store).error
        ages = [rows.age_s async for rows in _answers_until(store, frozen_at + 4.8)]
        assert ages == sorted(ages)
        assert ages[0] < ages[-1] <= settings.db_max_stale_ms / 1_000
        await asyncio.sleep(max(0.0, frozen_at + 5.1 - time.monotonic()))  # now it is older than is allowed
        asked_at = time.monotonic()
        with pytest.raises(DatabaseUnavailable):
            await store.read("SELECT 'still here'")
        assert time.monotonic() - asked_at < _PROMPT_S
        server.thaw()
        change = await asyncio.wait_for(anext(watch), _PATIENCE_S)
        assert (change.rows.value, change.in_touch) == ("still here", True)
        await until_in_touch(store)
        assert standing(store).error == ""
        await store.synced()
        assert 0 < (await store.read("SELECT 1")).age_s < _NOTICED_S
        await watch.aclose()


async def _answers_until(store: Store, moment: float) -> AsyncIterator[Rows]:
    while time.monotonic() < moment:
        rows = await store.read("SELECT 'still here'")
        assert rows.age_s > 0
        yield rows
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("driver", [Driver.WS, *cases_in_soak(Driver.HTTP)], ids=str)
async def test_own_writes_are_read_back_right_after_the_server_was_killed(
    driver: Driver, tmp_path: Path, server: Server
) -> None:
    case = HomeCase(Backend.SERVER, driver, ReplicaChoice.AUTO)
    async with await open_store(case.settings(tmp_path, server)) as store:
        table = await make_table(store)
        for n in range(1, 3):
            await until_in_touch(store)
            server.kill()
            await asyncio.to_thread(server.start)  # with another log, whose frames count from 0 again
            await store.write(_insert(table, n), timeout=_PATIENCE_S)
            for _ in range(20):
                assert (await store.read(f"SELECT max(a) FROM {table}", timeout=_PATIENCE_S)).value == n
        await until_in_touch(store)
        rows = await store.read(f"SELECT count(*) FROM {table}")
        assert rows.value == 2


async def test_a_hello_that_commits_overtake_is_not_taken_for_another_log(
    tmp_path: Path, primary: Server, node: Store, caplog: pytest.LogCaptureFixture
) -> None:
    table = await make_table(node)
    async with counting(primary) as gate:
        settings = MESH_REPLICA.settings(tmp_path / "other", primary, db_url=gate.url)
        async with await open_store(settings) as store:
            await until_in_touch(store)
            gate.hold(HELLO)
            syncing = asyncio.create_task(store.synced())
            await gate.holding()  # the primary has answered, and we do not know it yet
            frame = standing(store).frame
            await node.write(_insert(table))
            await until(store, lambda: standing(store).frame != frame)
            gate.release()
            await syncing
            assert standing(store).state is ReplicaState.IN_TOUCH
    assert caplog.messages == []


# --- the end --------------------------------------------------------------------------------------


async def _assert_ends_promptly(store: Store, before: set[str]) -> None:
    began = time.monotonic()
    await store.close()
    assert time.monotonic() - began < _PROMPT_S
    await assert_nothing_left(before)


async def test_closed_right_after_opening_it_ends_promptly(tmp_path: Path, primary: Server) -> None:
    before = descriptors()
    await _assert_ends_promptly(await open_store(MESH_REPLICA.settings(tmp_path, primary)), before)


async def test_closed_while_it_catches_up_it_ends_promptly_and_goes_on_next_time(
    tmp_path: Path, server: Server
) -> None:
    settings = MESH_REPLICA.settings(tmp_path, server)
    async with await open_store(MESH.settings(tmp_path / "other", server)) as other:
        table = await make_table(other)
        for _ in range(2):
            fill = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 2000) "
            fill += f"INSERT INTO {table} (a) SELECT randomblob(3000) FROM c"
            await other.write(Script(Statement(fill)), timeout=_PATIENCE_S)
    before = descriptors()
    store = await open_store(settings)
    begun = asyncio.Event()
    syncing = asyncio.create_task(store.synced(lambda done, total: begun.set() if done else None))
    await asyncio.wait_for(begun.wait(), _PATIENCE_S)
    syncing.cancel()
    assert standing(store).state is ReplicaState.CATCHING_UP
    await _assert_ends_promptly(store, before)
    async with await open_store(settings) as store:
        await until_in_touch(store)
        assert (await store.read(f"SELECT count(*) FROM {table}")).value == 4_000


async def test_closed_while_the_server_is_frozen_it_ends_promptly(tmp_path: Path, server: Server) -> None:
    before = descriptors()
    store = await open_store(MESH_REPLICA.settings(tmp_path, server))
    await store.synced()
    server.freeze()
    asking = asyncio.create_task(store.read("SELECT 1", fresh=True))
    watch = store.watch("SELECT 1")
    await anext(watch)
    watching = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    ends = asyncio.gather(asking, watching, return_exceptions=True)
    await _assert_ends_promptly(store, before)
    assert [type(end) for end in await ends] == [StoreClosed, StoreClosed]


# --- a server far away ----------------------------------------------------------------------------


@pytest.mark.parametrize("driver", [Driver.WS, Driver.HTTP], ids=str)
async def test_the_replica_of_a_server_far_away_answers_after_a_read_of_the_primary(
    driver: Driver, tmp_path: Path, primary: Server
) -> None:
    case = HomeCase(Backend.SERVER, driver, ReplicaChoice.AUTO)
    async with Proxy(primary.port) as proxy:
        proxy.set_conditions(NetworkConditions(delay_s=_FAR_S))
        async with await open_store(case.settings(tmp_path, primary, db_url=proxy.url)) as store:
            await until_in_touch(store)
            assert (await store.read("SELECT 1", fresh=True)).age_s == 0
            async with asyncio.timeout(_PATIENCE_S):  # nothing is committed: only a hello can help
                while not (await store.read("SELECT 1")).age_s:
                    pass
