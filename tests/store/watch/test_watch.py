"""Watches: the answer at once, and again whenever it has changed, on every backend and by every writer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from tests.support.replica.standing import standing
from tests.support.running import lengths
from tests.support.store.counting import HELLO, WAL_LOG, CountingGateway, counting
from tests.support.store.tables import make_table
from tools.homes import FILE, MEMORY, MESH, MESH_HTTP, MESH_LIBSQL_CLIENT, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh import Rows, Script, Settings, Statement, Store, open_store
from vox_mesh.errors import BadStatement, StoreClosed
from vox_mesh.model.base.backends import Backend
from vox_mesh.store.engines.memory import MemoryEngine
from vox_mesh.store.script import WriterId
from vox_mesh.store.watch.changes import Change, Changes

T = TypeVar("T")

_PATIENCE_S: Final = 30.0
_WRITES: Final = 60


@pytest.fixture(
    params=[MEMORY, FILE, MESH_REPLICA, *lengths.cases_in_soak(MESH, MESH_HTTP, MESH_LIBSQL_CLIENT)], ids=str
)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """The settings of each home in turn: who asks again and again does so alike, by whichever way."""
    case: HomeCase = request.param
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    return case.settings(tmp_path, server)


@pytest.fixture
async def other(settings: Settings) -> AsyncIterator[Store]:
    """Another store on the same database; in memory there can be none."""
    if settings.backend is Backend.MEMORY:
        pytest.skip("what is in memory is no other's")
    async with await open_store(settings) as store:
        yield store


def _count(table: str) -> str:
    return f"SELECT count(*) FROM {table}"


async def _insert(store: Store, table: str) -> None:
    await store.write(Script(Statement(f"INSERT INTO {table} (a) VALUES (1)")), timeout=_PATIENCE_S)


def _watch(store: Store, sql: str) -> AsyncGenerator[Change, None]:
    return store.watch(sql)


async def _next(watch: AsyncGenerator[Change, None]) -> Any:
    return (await asyncio.wait_for(anext(watch), _PATIENCE_S)).rows.value


async def _seen_until(watch: AsyncGenerator[Change, None], last: int) -> list[int]:
    """All that the watch yields, up to that value."""
    seen = []
    async with asyncio.timeout(_PATIENCE_S):
        async for change in watch:
            seen.append(change.rows.value)
            if seen[-1] == last:
                break
    return seen


async def _until_waiting(store: Store, waiters: int) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while store._changes._waiting < waiters:  # noqa: ASYNC110 - a turn of the loop, not a pause
            await asyncio.sleep(0)


async def test_the_first_answer_comes_at_once_and_then_each_change(store: Store) -> None:
    table = await make_table(store)
    watch = _watch(store, _count(table))
    assert await _next(watch) == 0
    for n in (1, 2, 3):
        await _insert(store, table)
        assert await _next(watch) == n
    await watch.aclose()


async def test_a_change_that_another_makes_is_seen(store: Store, other: Store) -> None:
    table = await make_table(store)
    watch = _watch(store, _count(table))
    assert await _next(watch) == 0
    waiting = asyncio.create_task(_next(watch))
    await _insert(other, table)
    assert await waiting == 1
    await watch.aclose()


async def test_an_answer_that_did_not_change_is_not_reported_again(store: Store) -> None:
    table, elsewhere = await make_table(store), await make_table(store)
    watch = _watch(store, _count(table))
    assert await _next(watch) == 0
    waiting = asyncio.create_task(_next(watch))
    for _ in range(3):
        seen = store.change_count
        await _insert(store, elsewhere)
        await asyncio.wait_for(store.changed(seen), _PATIENCE_S)
        assert not waiting.done()
    await _insert(store, table)
    assert await waiting == 1
    await watch.aclose()


async def test_one_that_takes_long_sees_the_latest_answer_next(store: Store) -> None:
    table = await make_table(store)
    watch = _watch(store, _count(table))
    assert await _next(watch) == 0
    for _ in range(10):
        await _insert(store, table)
    assert await _next(watch) == 10
    await watch.aclose()


async def test_a_burst_ends_with_its_last_answer_and_is_reported_in_few(store: Store) -> None:
    table = await make_table(store)
    watch = _watch(store, _count(table))
    assert await _next(watch) == 0
    seeing = asyncio.create_task(_seen_until(watch, _WRITES))
    await asyncio.gather(*(_insert(store, table) for _ in range(_WRITES)))
    seen = await seeing
    assert seen == sorted(set(seen))
    assert len(seen) < _WRITES
    await watch.aclose()


class SlowAnswers(MemoryEngine):
    """A memory whose answers can be held: they are of the moment of the question."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.released = asyncio.Event()
        self.released.set()

    async def query(self, statement: Statement) -> Rows:
        """Answer, and hold the answer back."""
        rows = await super().query(statement)
        self.asked.set()
        await self.released.wait()
        return rows


async def test_a_commit_while_the_answer_is_on_its_way_is_not_missed() -> None:
    engine = SlowAnswers()
    async with Store(Backend.MEMORY, engine, WriterId("", "default", "me"), timeout=_PATIENCE_S) as store:
        table = await make_table(store)
        engine.asked.clear()
        engine.released.clear()
        watch = _watch(store, _count(table))
        waiting = asyncio.create_task(_next(watch))
        await engine.asked.wait()
        await _insert(store, table)
        engine.released.set()
        assert await waiting == 0
        assert await _next(watch) == 1
        await watch.aclose()


async def test_no_change_is_missed_between_reading_and_waiting(store: Store, other: Store) -> None:
    table = await make_table(store)
    watches = [_watch(store, _count(table)) for _ in range(3)]
    seeing = [asyncio.create_task(_seen_until(watch, _WRITES)) for watch in watches]
    for n in range(_WRITES):
        await _insert(other if n % 2 else store, table)
    for seen in await asyncio.gather(*seeing):
        assert seen == sorted(set(seen))
    for watch in watches:
        await watch.aclose()


async def test_a_commit_wakes_all_who_wait(store: Store) -> None:
    table = await make_table(store)

    async def wait() -> None:
        while True:
            seen = store.change_count
            if (await store.read(_count(table))).value:
                return
            await store.changed(seen)

    waiting = [asyncio.create_task(wait()) for _ in range(5)]
    await _until_waiting(store, len(waiting))
    await _insert(store, table)
    await asyncio.wait_for(asyncio.gather(*waiting), _PATIENCE_S)


async def test_closing_the_store_ends_its_watches(store: Store) -> None:
    watches = [_watch(store, "SELECT 1") for _ in range(3)]
    for watch in watches:
        assert await _next(watch) == 1
    waiting = [asyncio.create_task(_next(watch)) for watch in watches]
    await _until_waiting(store, len(watches))
    await store.close()
    ends = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), _PATIENCE_S)
    assert [type(end) for end in ends] == [StoreClosed] * 3
    with pytest.raises(StoreClosed):
        await store.changed(store.change_count)


async def test_a_watch_that_is_given_up_leaves_nothing_waiting(store: Store) -> None:
    before = asyncio.all_tasks()
    watch = _watch(store, "SELECT 1")
    assert await _next(watch) == 1
    waiting = asyncio.create_task(_next(watch))
    await _until_waiting(store, 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await watch.aclose()
    assert not store._changes.is_awaited
    left = {task.get_name() for task in asyncio.all_tasks() - before}
    assert {name for name in left if not name.startswith("vox-mesh-replica")} <= {"vox-mesh-listener"}


async def test_a_wrong_query_is_reported_and_not_waited_for(store: Store) -> None:
    with pytest.raises(BadStatement):
        await _next(_watch(store, "SELECT * FROM nowhere_to_be_found"))


async def test_a_watched_table_that_is_dropped_is_reported(store: Store) -> None:
    table = await make_table(store)
    watch = _watch(store, _count(table))
    assert await _next(watch) == 0
    await store.write(Script(Statement(f"DROP TABLE {table}")))
    with pytest.raises(BadStatement):
        await _next(watch)


# --- a server that comes and goes -----------------------------------------------------------------

_REMOTE: Final = (MESH_REPLICA, MESH, MESH_HTTP, MESH_LIBSQL_CLIENT)


async def test_a_watch_lives_through_the_servers_death(tmp_path: Path, server: Server) -> None:
    async with await open_store(MESH.settings(tmp_path, server)) as writer:
        table = await make_table(writer)
        ready = asyncio.Barrier(len(_REMOTE) + 1)

        async def live_through(case: HomeCase) -> list[int]:
            async with await open_store(case.settings(tmp_path / str(case), server)) as store:
                watch = _watch(store, _count(table))
                assert await _next(watch) == 0
                await ready.wait()
                seen = await _seen_until(watch, 1)
                await watch.aclose()
                return [value for value in seen if value]  # between the two it may tell that touch was lost

        living = [asyncio.create_task(live_through(case)) for case in _REMOTE]
        async with asyncio.timeout(_PATIENCE_S):
            await ready.wait()
        server.kill()
        await asyncio.to_thread(server.start)
        await _insert(writer, table)
        assert await asyncio.gather(*living) == [[1]] * len(_REMOTE)


@pytest.mark.parametrize("case", [MESH, *lengths.cases_in_soak(MESH_HTTP)], ids=str)
async def test_without_a_replica_a_watch_tells_that_touch_was_lost(
    case: HomeCase, tmp_path: Path, server: Server
) -> None:
    settings = case.settings(tmp_path, server, db_deadline="1s", db_request_timeout="500ms")
    async with await open_store(settings) as store:
        watch = _watch(store, "SELECT 'still here'")
        assert (await anext(watch)).in_touch
        waiting = asyncio.ensure_future(anext(watch))
        seen = await store.changed(store.change_count)  # the server has been asked a first time
        assert seen
        server.kill()
        change = await asyncio.wait_for(waiting, _PATIENCE_S)
        assert (change.rows.value, change.in_touch) == ("still here", False)
        await asyncio.to_thread(server.start)
        change = await asyncio.wait_for(anext(watch), _PATIENCE_S)
        assert (change.rows.value, change.in_touch) == ("still here", True)
        await watch.aclose()


async def test_without_a_replica_a_frozen_server_is_noticed_within_five_seconds(
    tmp_path: Path, server: Server
) -> None:
    async with await open_store(MESH.settings(tmp_path, server)) as store:
        watch = _watch(store, "SELECT 'still here'")
        assert (await anext(watch)).in_touch
        waiting = asyncio.ensure_future(anext(watch))
        await store.changed(store.change_count)  # the server has been asked a first time
        server.freeze()
        try:
            change = await asyncio.wait_for(waiting, 5)
        finally:
            server.thaw()
        assert (change.rows.value, change.in_touch) == ("still here", False)
        await watch.aclose()


async def test_listening_that_fails_is_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    changes = Changes()
    failed = asyncio.Event()

    class Listener:
        async def listen(self) -> None:
            if not failed.is_set():
                failed.set()
                raise KeyError("what no one thought of")
            changes.bump()
            await asyncio.Event().wait()

        async def own_commit(self, commit: Awaitable[T]) -> T:
            return await commit

    writer_id = WriterId("", "default", "writer")
    async with Store(
        Backend.MEMORY, MemoryEngine(), writer_id, timeout=10, changes=changes, listener=Listener()
    ) as store:
        assert await asyncio.wait_for(store.changed(0), _PATIENCE_S) == 1
    assert "goes on: task=listener" in caplog.text


# --- doing nothing --------------------------------------------------------------------------------


@pytest.mark.soak
async def test_an_idle_watch_costs_the_primary_nothing_with_a_replica_and_little_without(
    tmp_path: Path, server: Server
) -> None:
    async with counting(server) as pushed, counting(server) as ws, counting(server) as http:
        gates = {MESH_REPLICA: pushed, MESH: ws, MESH_HTTP: http}
        idling = [_idle(case, gate, tmp_path / str(case), server) for case, gate in gates.items()]
        spent, asked, called = await asyncio.gather(*idling)
    print(f"in {lengths.IDLE_S:g} s: {spent}, {asked}, {called}")
    assert spent.keys() == {HELLO}, "something else than a hello was said"
    assert spent[HELLO] <= lengths.IDLE_S / 2 + 1
    seconds = lengths.IDLE_S
    assert asked.keys() == {"message"}
    assert seconds / 2 <= asked["message"] <= seconds + 3
    assert len(called) == 1
    assert seconds / 2 <= sum(called.values()) <= seconds + 3
    assert not any(path.startswith(WAL_LOG) for path in called)


async def test_an_answer_to_a_write_tells_as_much_as_a_hello(tmp_path: Path, shared_server: Server) -> None:
    async with (
        counting(shared_server) as gate,
        await open_store(MESH_REPLICA.settings(tmp_path, shared_server, db_url=gate.url)) as store,
    ):
        await store.write(Script(Statement("SELECT 1")))
        await store.synced()  # by a hello, which also shows in which log the answers are
        hellos, known = gate.calls[HELLO], standing(store).age_ms
        assert known is not None
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                await store.write(Script(Statement("SELECT 1")))
                before, known = known, standing(store).age_ms
                assert known is not None
                if known < before:  # it knows of a later moment than before
                    break
        assert gate.calls[HELLO] == hellos


async def test_who_watches_has_the_primary_asked_more_often(shared_server: Server, tmp_path: Path) -> None:
    async with await open_store(MESH_REPLICA.settings(tmp_path, shared_server)) as store:
        await store.synced()
        replica: Any = store._replica
        following = replica._chosen

        def is_to_ask_after(seconds: float) -> bool:
            following._as_of = following._monotonic() - seconds
            return bool(following._needs_refresh)

        watch = _watch(store, "SELECT 1")
        await _next(watch)
        assert (is_to_ask_after(1.0), is_to_ask_after(3.0)) == (False, True)
        await watch.aclose()
        assert (is_to_ask_after(3.0), is_to_ask_after(7.0)) == (False, True)


async def _idle(case: HomeCase, gate: CountingGateway, folder: Path, server: Server) -> dict[str, int]:
    """What an idle node with two watches sends: calls by their path, and messages on WebSockets."""
    async with await open_store(case.settings(folder, server, db_url=gate.url)) as store:
        await store.synced()
        seen = store.change_count
        watches = [_watch(store, sql) for sql in ("SELECT 1", "SELECT count(*) FROM mesh_schema")]
        waiting = []
        for watch in watches:
            await _next(watch)
            waiting.append(asyncio.ensure_future(anext(watch)))
        if case is not MESH_REPLICA:
            await store.changed(seen)  # the first look, after which nothing is new
        await _until_waiting(store, len(watches))
        calls, messages = gate.calls.copy(), gate.messages
        began = time.monotonic()
        done, _ = await asyncio.wait(waiting, timeout=lengths.IDLE_S)
        assert not done
        assert time.monotonic() - began < lengths.IDLE_S + 1, "the machine is too busy to count by the clock"
        calls = gate.calls - calls
        messages = gate.messages - messages
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return {**calls, **({"message": messages} if messages else {})}
