"""Opening and closing: a node takes what it needs, and lets go of all of it, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from proof.chaos.proxy import Proxy
from tests.support.store.leftovers import assert_nothing_left, descriptors
from tools.homes import FILE, MEMORY, MESH, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh, Settings, Store
from vox_mesh.errors import (
    BadSettings,
    DatabaseUnavailable,
    KeyRefused,
    MeshError,
    NodeInUse,
    OutcomeUnknown,
    SlotInUse,
    StaleIncarnation,
)
from vox_mesh.heartbeat.presence import Activity, Presence
from vox_mesh.model.base.backends import Backend
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies, MeshClock
from vox_mesh.nodes.identity import place_of
from vox_mesh.store.slots import take_slot
from vox_mesh.store.write.interceptor import DirectDatabase

_PATIENCE_S: Final = 30.0
_SLOW: Final = "1h"
"""A tick that does not come in a test."""

_QUICK: Final = "100ms"

LASTING = pytest.mark.parametrize("case", [FILE, MESH, MESH_REPLICA], ids=str)


def _settings(case: HomeCase, folder: Path, request: pytest.FixtureRequest, **more: object) -> Settings:
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    return case.settings(folder, server, **{"tick": _SLOW, "http": True, **more})


async def _until(store: Store, condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what only a commit can make true."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            seen = store.change_count
            if await condition():
                return
            await store.changed(seen)


@asynccontextmanager
async def _leaving_nothing(settings: Settings) -> AsyncIterator[None]:
    """What happens here leaves no task, thread or open file, and the slot is free."""
    async with Mesh.open(settings) as node:  # whatever is only made once is made now
        await node.store.synced()
    await asyncio.to_thread(int)
    before = descriptors()
    yield
    await assert_nothing_left(before)
    if settings.backend is not Backend.MEMORY:
        slot = take_slot(settings.home_dir)
        assert slot.name == "1"
        slot.release()


# --- what a node takes -------------------------------------------------------------------------------


def _files(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))


async def test_a_node_in_memory_leaves_no_file_behind(tmp_path: Path) -> None:
    async with Mesh.open(MEMORY.settings(tmp_path, None)) as node:
        assert node.incarnation == 1
        assert [each.node_id for each in await node.nodes.live_nodes_from_db()] == [node.identity.node_id]
        await node.oplog.anchor()
    assert _files(tmp_path) == []


@LASTING
async def test_two_nodes_in_one_process_get_two_slots_and_get_them_back(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = _settings(case, tmp_path, request)
    met: list[list[tuple[str | None, str, str]]] = []
    for start in (1, 2):
        async with Mesh.open(settings) as one, Mesh.open(settings) as two:
            nodes = (one, two)
            met.append(
                [(each.store.slot_name, each.identity.node_id, each.identity.key.public) for each in nodes]
            )
            assert [each.incarnation for each in nodes] == [start, start]
            await one.store.synced()
            assert {node.node_id for node in await one.nodes.live_nodes_from_db()} == {
                each.identity.node_id for each in nodes
            }
    assert met[0] == met[1]
    assert [slot for slot, *_ in met[0]] == ["1", "2"]
    assert len({key for *_, key in met[0]}) == 2


async def test_only_the_first_slot_or_a_named_node_becomes_the_owner(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None, tick=_SLOW)
    held = take_slot(settings.home_dir)
    async with Mesh.open(settings) as second:
        assert second.store.slot_name == "2"
        assert await second.roles.owner() is None
    held.release()
    async with Mesh.open(settings.model_copy(update={"node_id": "builder-1"})) as named:
        owner = await named.roles.owner()
        assert owner is not None
        assert owner.node_id == "builder-1"


# --- what it lets go of ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [MEMORY, FILE, MESH_REPLICA], ids=str)
async def test_cancelled_at_any_moment_of_its_opening_it_leaves_nothing(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = _settings(case, tmp_path, request)

    async def live() -> None:
        async with Mesh.open(settings):
            pass

    async with _leaving_nothing(settings):
        await _cancelled_everywhere(lambda: asyncio.create_task(live()))


@pytest.mark.parametrize("case", [MEMORY, FILE, MESH_REPLICA], ids=str)
async def test_cancelled_at_any_moment_of_its_closing_it_leaves_nothing(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = _settings(case, tmp_path, request)

    async with _leaving_nothing(settings):
        turns, is_done = 0, False
        while not is_done:
            opened = Mesh.open(settings)
            await opened.__aenter__()
            closing = asyncio.create_task(opened.__aexit__(None, None, None))
            is_done = await _cancelled_after(closing, turns)
            turns = turns * 2 or 1


async def _cancelled_everywhere(start: Callable[[], asyncio.Task[None]]) -> None:
    turns = 0
    while not await _cancelled_after(start(), turns):
        turns = turns * 2 or 1


async def _cancelled_after(task: asyncio.Task[object] | asyncio.Task[None], turns: int) -> bool:
    """Cancel it after this many turns of the loop; whether it had ended before."""
    for _ in range(turns):
        if task.done():
            break
        await asyncio.sleep(0)
    is_done = task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.wait_for(task, _PATIENCE_S)
    return is_done


@LASTING
async def test_what_fails_inside_a_node_leaves_nothing(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = _settings(case, tmp_path, request)

    async def fail() -> None:
        async with Mesh.open(settings) as node:
            await node.oplog.anchor()
            raise ZeroDivisionError

    async with _leaving_nothing(settings):
        with pytest.raises(ZeroDivisionError):
            await fail()


async def test_a_key_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None, tick=_SLOW)
    async with _leaving_nothing(settings):
        key = settings.home_dir / "slots" / "1" / "key.pem"
        kept = key.read_bytes()
        key.chmod(0o644)
        with pytest.raises(BadSettings, match="can be read by others"):
            async with Mesh.open(settings):
                pytest.fail("a key that others can read was used")
        key.unlink()
        with pytest.raises(KeyRefused, match="known with another key"):
            async with Mesh.open(settings):
                pytest.fail("a known node came with another key")
        key.write_bytes(kept)


@pytest.mark.parametrize("content", [b"this is no database", b"SQLite format 3\0" + bytes(4_096)])
async def test_a_database_that_cant_be_opened_leaves_nothing(content: bytes, tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None, tick=_SLOW)
    async with _leaving_nothing(settings):
        settings.db_path.write_bytes(content)
        with pytest.raises(MeshError):
            async with Mesh.open(settings):
                pytest.fail("it opened what is no database")


# --- who is refused ----------------------------------------------------------------------------------


@LASTING
async def test_a_name_in_use_here_is_refused_and_names_its_holder(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = _settings(case, tmp_path, request, node_id="builder-1")
    async with Mesh.open(settings) as first:
        with pytest.raises(SlotInUse, match=r"builder-1 is in use by process \d+ on .+ began \d+ s ago"):
            async with Mesh.open(settings):
                pytest.fail("one node was opened twice")
        assert first.incarnation == 1
        await first.run_once()


@LASTING
async def test_a_name_in_use_in_another_folder_is_refused_until_it_leaves(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = _settings(case, tmp_path, request, node_id="builder-1")
    elsewhere = settings.model_copy(update={"home_dir": tmp_path / "elsewhere"})
    async with Mesh.open(settings):
        with pytest.raises(NodeInUse, match=r"builder-1 is in use by process \d+ on .+, seen \d+\.\d s ago"):
            async with Mesh.open(elsewhere):
                pytest.fail("one node was opened twice")
    (elsewhere.home_dir / "slots" / "builder-1" / "key.pem").write_bytes(
        (settings.home_dir / "slots" / "builder-1" / "key.pem").read_bytes()
    )
    async with Mesh.open(elsewhere) as moved:
        assert moved.incarnation == 2


async def _replace(node: MeshNode, settings: Settings) -> int:
    """Begin a new incarnation in the node's own place, as if its process had been taken for ended."""
    store = node.store
    heir = Presence(
        node.identity,
        store.writer_id,
        MeshClock(Dependencies()),
        place=place_of(settings.home_dir / "slots" / "1"),
        tick_s=settings.tick,
        activity=Activity(),
    )
    return (
        await heir.register(
            DirectDatabase(store._engine, store.writer_id, store._prepare, store._prepare_again)
        )
    ).incarnation


@LASTING
async def test_a_replaced_node_is_heard_no_more_and_stops_ticking(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = _settings(case, tmp_path, request, tick=_QUICK)
    async with Mesh.open(settings) as node:
        await node.run_once()  # a node may also begin while the database does not answer
        entries = await node.oplog.last_id()
        assert await _replace(node, settings) == 2
        why = await asyncio.wait_for(node.broken(), _PATIENCE_S)
        assert isinstance(why, StaleIncarnation)
        with pytest.raises(StaleIncarnation, match="incarnation 1, the database knows 2"):
            await node.oplog.anchor()
        with pytest.raises(StaleIncarnation):
            await node.run_once()
        assert await node.oplog.last_id() == entries
    async with Mesh.open_command(settings) as command:
        heir = await command.nodes.find(node.identity.node_id)
        assert heir is not None
        assert (heir.incarnation, heir.left_ms) == (2, None), "the old process can't make the new one leave"


# --- while the database is away ----------------------------------------------------------------------


@pytest.mark.parametrize("case", [MESH, MESH_REPLICA], ids=str)
async def test_while_the_database_is_away_no_heartbeat_is_kept_and_ticks_resume(
    case: HomeCase, tmp_path: Path, shared_server: Server
) -> None:
    async with Proxy(shared_server.port) as proxy:
        settings = case.settings(tmp_path, shared_server, db_url=proxy.url, tick=_QUICK)
        directly = settings.model_copy(update={"db_url": shared_server.url})
        async with Mesh.open(settings) as node, Mesh.open_command(directly) as observer:
            node_id = node.identity.node_id
            await proxy.refuse()
            for _ in range(3):
                with pytest.raises((DatabaseUnavailable, OutcomeUnknown)):
                    await node.run_once()
            spool = (await node.store.status()).spool
            assert spool is not None
            assert spool.depth == 0
            await observer.store.synced()
            before = await observer.nodes.find(node_id)
            assert before is not None
            await proxy.accept()

            async def ticks_again() -> bool:
                now = await observer.nodes.find(node_id)
                return now is not None and now.last_seen_ms > before.last_seen_ms

            await _until(node.store, ticks_again)
            now = await observer.nodes.find(node_id)
            assert now is not None
            assert (now.incarnation, now.started_ms) == (before.incarnation, before.started_ms)


async def test_a_node_that_starts_while_the_database_is_away_makes_itself_known_later(
    tmp_path: Path, shared_server: Server
) -> None:
    proxy = Proxy(shared_server.port)
    settings = MESH.settings(tmp_path, shared_server, db_url=proxy.url, tick=_QUICK, db_deadline="1s")
    async with Mesh.open(settings) as node:
        assert node.incarnation is None
        async with proxy:

            async def is_known() -> bool:
                return node.incarnation is not None

            await _until(node.store, is_known)
            own = await node.nodes.find(node.identity.node_id)
            assert own is not None
            assert (own.incarnation, own.state) == (1, NodeState.ALIVE)
