"""Nodes: what a tick says, what silence means, and how quickly others know."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

import orjson
import pytest
from pydantic import SecretStr

from tests.support.nodes.clocks import Clock
from tools.homes import FILE, MEMORY, MESH, MESH_REPLICA, HomeCase
from vox_mesh import Mesh, Settings
from vox_mesh.errors import MeshError
from vox_mesh.heartbeat.heartbeat import Heartbeat
from vox_mesh.heartbeat.presence import Activity, Presence
from vox_mesh.model.base.backends import Backend
from vox_mesh.model.nodes.liveness import DEAD_AFTER_TICKS, STALE_MS, NodeState, missed_ticks, state_of
from vox_mesh.model.oplog.chain import ANCHOR
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies, MeshClock
from vox_mesh.nodes.identity import machine_id, temporary_identity
from vox_mesh.nodes.nodes import Node
from vox_mesh.store.schema.statements import named
from vox_mesh.store.write.interceptor import DirectDatabase

_PATIENCE_S: Final = 30.0
_TICK_MS: Final = 3_600_000
"""An hour: no tick of its own disturbs what a test does with a node's clock."""

_NOW: Final = named("nodes")["now"]
_NODES: Final = 300
_HALF_MINUTE_S: Final = 31.0

Watch = AsyncGenerator[list[Node], None]


def _slow(settings: Settings, **more: object) -> Settings:
    return settings.model_copy(update={"tick": _TICK_MS / 1_000, **more})


@pytest.fixture
def clock() -> Clock:
    """The clock of the node that a test looks with; it only moves when the test moves it."""
    return Clock()


@pytest.fixture
async def node(settings: Settings, clock: Clock) -> AsyncIterator[MeshNode]:
    """A node on each home in turn."""
    # Only the clock of the mesh: what a replica may show goes by a clock that never goes back.
    async with Mesh.open(_slow(settings), Dependencies(elapsed=clock)) as node:
        began = clock.now
        yield node
        clock.now = began  # or it would leave with a word against the database's clock


async def _own(node: MeshNode) -> Node:
    found = await node.nodes.find(node.identity.node_id)
    assert found is not None
    return found


def _move_to(clock: Clock, node: MeshNode, now_ms: int) -> None:
    """Have it be this time by the database's clock, as the node knows it."""
    clock.now += (now_ms - node.clock.now_ms - 1) / 1_000
    while node.clock.now_ms < now_ms:  # in small steps: the clock holds parts of a millisecond too
        clock.now += 0.000_1
    assert node.clock.now_ms == now_ms


async def _until(watch: Watch, condition: Callable[[list[Node]], bool]) -> list[Node]:
    async with asyncio.timeout(_PATIENCE_S):
        async for nodes in watch:
            if condition(nodes):
                return nodes
    raise AssertionError("the watch ended")


def _states(nodes: list[Node]) -> dict[str, NodeState]:
    return {node.node_id: node.state for node in nodes}


# --- a tick ------------------------------------------------------------------------------------------


async def test_a_tick_says_all_that_there_is_to_say(settings: Settings) -> None:
    answer = "http://10.0.0.7:7400"
    said = _slow(
        settings, agent_id="planner", control_addr=answer, bind="127.0.0.1:0", token=SecretStr("t"), http=True
    )
    async with Mesh.open(said) as node:
        activity = node.presence.activity
        activity.text, activity.kinds = "builds the docs", ["build", "test"]
        activity.capacity, activity.load = 4, 3
        await node.run_once()
        (own,) = await node.nodes.all()
        assert (own.node_id, own.agent_id, own.incarnation) == (node.identity.node_id, "planner", 1)
        is_reached = settings.backend is not Backend.MEMORY
        assert (own.activity, own.control_addr) == ("builds the docs", answer if is_reached else None)
        assert (orjson.loads(own.kinds), own.capacity, own.load) == (["build", "test"], 4, 3)
        assert (own.host, own.pid, own.version) == (socket.gethostname(), os.getpid(), version("vox-mesh"))
        assert (own.public_key, own.machine_id) == (node.identity.key.public, machine_id())
        assert (own.tick_ms, own.left_ms, own.state) == (_TICK_MS, None, NodeState.ALIVE)
        assert own.place
        assert abs(own.clock_distance_ms) < 5_000


async def test_a_tick_moves_the_one_row_of_its_node_by_the_databases_clock(node: MeshNode) -> None:
    first = await _own(node)
    before = (await node.store.read(_NOW, fresh=True)).value
    await node.run_once()
    (own,) = await node.nodes.all()
    after = (await node.store.read(_NOW, fresh=True)).value
    assert before <= own.last_seen_ms <= after
    assert (own.started_ms, own.incarnation) == (first.started_ms, first.incarnation)


async def test_a_machine_whose_clock_is_wrong_ticks_by_the_databases_and_says_so(settings: Settings) -> None:
    hour_ms = 3_600_000
    ahead = Dependencies(wall_ms=lambda: Dependencies().wall_ms() + hour_ms)
    async with Mesh.open(_slow(settings), ahead) as node:
        await node.run_once()
        own = await _own(node)
        assert abs(own.clock_distance_ms - hour_ms) < 5_000
        assert abs(own.last_seen_ms - Dependencies().wall_ms()) < 5_000
        assert own.state is NodeState.ALIVE


async def test_each_sign_of_life_moves_alone(node: MeshNode, clock: Clock) -> None:
    await node.run_once()
    own = await _own(node)
    assert (own.consuming_ms, own.progressing_ms) == (None, None)
    assert (own.is_consuming, own.is_progressing) == (False, False)

    consumed_at = node.clock.now_ms
    node.presence.consumed()
    await node.run_once()
    own = await _own(node)
    assert (own.consuming_ms, own.progressing_ms) == (consumed_at, None)
    assert (own.is_consuming, own.is_progressing) == (True, False)

    _move_to(clock, node, consumed_at + 1_000)
    node.presence.progressed()
    await node.run_once()
    own = await _own(node)
    assert (own.consuming_ms, own.progressing_ms) == (consumed_at, consumed_at + 1_000)

    _move_to(clock, node, consumed_at + STALE_MS)
    assert (await _own(node)).is_consuming
    _move_to(clock, node, consumed_at + STALE_MS + 1)
    own = await _own(node)
    assert (own.is_consuming, own.is_progressing) == (False, True)
    assert own.state is NodeState.ALIVE, "it ticks, whatever its work does"


# --- silence -----------------------------------------------------------------------------------------


async def test_a_node_is_live_up_to_the_threshold_and_not_beyond(node: MeshNode, clock: Clock) -> None:
    own = await _own(node)
    for threshold in (0, 1, 250, STALE_MS):
        _move_to(clock, node, own.last_seen_ms + threshold)
        assert [each.node_id for each in await node.nodes.live_nodes_from_db(threshold)] == [own.node_id]
        _move_to(clock, node, own.last_seen_ms + threshold + 1)
        assert await node.nodes.live_nodes_from_db(threshold) == []
    assert await node.nodes.live_nodes_from_db() == [], "the default is a minute"
    assert [each.node_id for each in await node.nodes.all()] == [own.node_id]


_BORDERS: Final = (
    (1, NodeState.ALIVE, NodeState.WARN),
    (3, NodeState.WARN, NodeState.ALERT),
    (5, NodeState.ALERT, NodeState.CRITICAL),
    (10, NodeState.CRITICAL, NodeState.DEAD),
)


async def test_states_change_at_1_3_5_and_10_missed_ticks(node: MeshNode, clock: Clock) -> None:
    own = await _own(node)
    for missed, before, after in _BORDERS:
        border = own.last_seen_ms + missed * _TICK_MS + _TICK_MS // 2  # half a tick late is not missed
        _move_to(clock, node, border - 1)
        found = await _own(node)
        assert (found.missed, found.state) == (missed - 1, before)
        _move_to(clock, node, border)
        found = await _own(node)
        assert (found.missed, found.state) == (missed, after)


def test_what_makes_a_node_dead_is_what_frees_its_name() -> None:
    tick_ms = 5_000
    dead_at = round(DEAD_AFTER_TICKS * tick_ms)
    assert state_of(dead_at, tick_ms, has_left=False) is NodeState.DEAD
    assert state_of(dead_at - 1, tick_ms, has_left=False) is NodeState.CRITICAL
    assert state_of(0, tick_ms, has_left=True) is NodeState.LEFT
    assert missed_ticks(-1, tick_ms) == 0


async def test_a_watch_tells_of_silence_although_no_one_commits(node: MeshNode, clock: Clock) -> None:
    watch = node.nodes.watch()
    own = (await _until(watch, lambda nodes: len(nodes) == 1))[0]
    assert own.state is NodeState.ALIVE
    _move_to(clock, node, own.last_seen_ms + 3 * _TICK_MS // 2)
    (now,) = await asyncio.wait_for(anext(watch), _PATIENCE_S)
    assert (now.state, now.last_seen_ms) == (NodeState.WARN, own.last_seen_ms)
    await watch.aclose()


async def test_a_watch_does_not_tell_of_ticks_that_change_nothing(node: MeshNode) -> None:
    watch = node.nodes.watch()
    await _until(watch, lambda nodes: len(nodes) == 1)
    answer = asyncio.create_task(asyncio.wait_for(anext(watch), _PATIENCE_S))
    await node.run_once()
    await node.run_once()
    node.presence.activity.text = "something new"
    await node.run_once()
    assert [each.activity for each in await answer] == ["something new"]
    await watch.aclose()


# --- coming and leaving ------------------------------------------------------------------------------


def _settings(case: HomeCase, folder: Path, request: pytest.FixtureRequest) -> Settings:
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    return _slow(case.settings(folder, server))


SHARED: Final = pytest.mark.parametrize("case", [FILE, MESH, MESH_REPLICA], ids=str)


@SHARED
async def test_coming_and_leaving_are_seen_at_once_by_others(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = _settings(case, tmp_path, request)
    async with Mesh.open(settings) as watching:
        watch = watching.nodes.watch()
        await _until(watch, lambda nodes: len(nodes) == 1)
        async with Mesh.open(settings) as other:
            node_id = other.identity.node_id
            found = await _until(watch, lambda nodes: node_id in _states(nodes))
            assert _states(found)[node_id] is NodeState.ALIVE
        found = await _until(watch, lambda nodes: _states(nodes)[node_id] is NodeState.LEFT)
        assert _states(found)[watching.identity.node_id] is NodeState.ALIVE
        live = await watching.nodes.live_nodes_from_db()
        assert [each.node_id for each in live] == [watching.identity.node_id]
        async with Mesh.open(settings):
            found = await _until(watch, lambda nodes: _states(nodes)[node_id] is NodeState.ALIVE)
            assert {each.node_id: each.incarnation for each in found}[node_id] == 2
        await watch.aclose()


async def test_a_tick_that_comes_late_does_not_bring_back_a_node_that_has_left(node: MeshNode) -> None:
    late = node.presence.beat()
    await node._heartbeat.leave()
    left = await _own(node)
    assert left.state is NodeState.LEFT
    await node.store.write(late)
    now = await _own(node)
    assert (now.state, now.left_ms) == (NodeState.LEFT, left.left_ms)


async def test_a_slow_answer_does_not_keep_the_next_tick_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def never(*_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with Mesh.open(MEMORY.settings(tmp_path, None, tick="100ms")) as node:
        monkeypatch.setattr(node.pending_ops, "refresh", never)
        async with asyncio.timeout(_PATIENCE_S):
            for _ in range(2):
                asked.clear()
                await asked.wait()


async def test_who_is_here_is_notified_of_one_mesh_only(tmp_path: Path) -> None:
    first = _slow(FILE.settings(tmp_path, None))
    elsewhere = [
        first.model_copy(update={"scope_id": "another"}),
        first.model_copy(update={"repository_id": "another"}),
    ]
    async with (
        Mesh.open(first) as here,
        Mesh.open(elsewhere[0]) as there,
        Mesh.open(elsewhere[1]) as nearby,
    ):
        for mesh in (here, there, nearby):
            assert [node.node_id for node in await mesh.nodes.all()] == [mesh.identity.node_id]
            owner = await mesh.roles.owner()
            assert owner is None or owner.node_id == mesh.identity.node_id
        assert await here.nodes.find(there.identity.node_id) is None


# --- many --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [MEMORY, FILE, MESH_REPLICA], ids=str)
async def test_hundreds_of_nodes_have_a_row_each(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with Mesh.open(_settings(case, tmp_path, request)) as node:
        store = node.store
        desk = DirectDatabase(store._engine, store.writer_id, store._prepare, store._prepare_again)
        names = [f"node-{number:03}" for number in range(_NODES)]
        for name in names:
            each = Presence(
                temporary_identity(name),
                store.writer_id,
                MeshClock(Dependencies()),
                place=name,
                tick_s=5.0,
                activity=Activity(load=int(name[-3:])),
            )
            assert (await each.register(desk)).incarnation == 1
            await store.write(each.beat())
        live = {each.node_id: each for each in await node.nodes.live_nodes_from_db()}
        assert live.keys() == {node.identity.node_id, *names}
        assert [live[name].load for name in names] == list(range(_NODES))
        assert len({live[name].public_key for name in names}) == _NODES


async def test_ticks_are_jittered_within_a_tenth_and_each_node_for_itself(tmp_path: Path) -> None:
    settings = MEMORY.settings(tmp_path, None, tick="5s")
    bounds = []
    for chance in (0.0, 0.5, 1.0):
        async with Mesh.open(settings, Dependencies(chance=lambda chance=chance: chance)) as node:  # type: ignore[misc]
            bounds.append(node._heartbeat.pause_s)
    assert bounds == pytest.approx([4.5, 5.0, 5.5])
    async with Mesh.open(settings) as one, Mesh.open(settings) as two:
        pauses = [_pauses(each._heartbeat) for each in (one, two)]
    assert all(4.5 <= pause <= 5.5 for own in pauses for pause in own)
    assert pauses[0] != pauses[1]
    assert len({*pauses[0], *pauses[1]}) > 100, "no two ticks of any node fall together for long"


def _pauses(heartbeat: Heartbeat) -> list[float]:
    return [heartbeat.pause_s for _ in range(100)]


# --- once a minute -----------------------------------------------------------------------------------


async def test_an_anchor_that_could_not_be_written_is_written_with_the_next_tick(
    tmp_path: Path, clock: Clock
) -> None:
    settings = FILE.settings(tmp_path, None, node_id="a", tick="1s")
    async with Mesh.open(settings.model_copy(update={"node_id": "b"})) as other:
        await other.oplog.anchor()
    async with Mesh.open(settings, Dependencies(monotonic=clock)) as node:
        await node.supervisor.stop_all()
        for _ in range(2):  # in one step its own last tick would be too old
            await node.run_once()
            clock.now += _HALF_MINUTE_S
        with _turn(settings.db_path), pytest.raises(MeshError):  # it can be read, but not written to
            await node.run_once()
        await node.run_once()
        (entry,) = await node.oplog.tail(node_id="a", kind=ANCHOR)
        assert set(orjson.loads(entry.payload)["heads"]) == {"b"}


@contextmanager
def _turn(database: Path) -> Iterator[None]:
    """Keep all others from writing: what they gave up meanwhile does not happen later either."""
    with Path(f"{database}.turn").open() as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield
