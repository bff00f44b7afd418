"""Idle nodes of a large mesh send fewer heartbeats, and still count as alive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tools.homes import MESH, MESH_REPLICA
from tools.sqld import Server
from vox_mesh import Mesh, Script, Statement
from vox_mesh.heartbeat.presence import Activity, Presence
from vox_mesh.model.nodes.features import SPARING_NODES
from vox_mesh.model.nodes.liveness import NodeState, missed_ticks, spare_ticks, state_of
from vox_mesh.node import MeshNode
from vox_mesh.nodes.identity import temporary_identity

_TICK_S: Final = 600
_PATIENCE_S: Final = 60.0
_SPARE_MS: Final = 15 * _TICK_S * 1_000
_ENROL: Final = (
    "INSERT INTO node_incarnations (scope_id, repository_id, node_id, incarnation) VALUES (?, ?, ?, 1)",
    "INSERT INTO node_versions (scope_id, repository_id, node_id, incarnation, schema_version) "
    "VALUES (?, ?, ?, 1, ?)",
)


def test_the_number_of_heartbeats_of_an_idle_mesh_does_not_grow_with_its_nodes() -> None:
    assert [spare_ticks(nodes) for nodes in (0, 1, 3)] == [0.0, 0.0, 0.0]
    assert [nodes / (1 + spare_ticks(nodes)) for nodes in (6, 30, 48)] == [3.0, 3.0, 3.0]
    assert spare_ticks(10_000) == spare_ticks(48) == 15.0


def test_a_node_that_has_announced_to_take_longer_misses_ticks_only_after_that() -> None:
    assert [missed_ticks(silent_ms, 1_000, 7_000) for silent_ms in (0, 8_400, 8_500, 10_500)] == [0, 0, 1, 3]
    states = [
        state_of(7_000 + silent_ms, 1_000, 7_000, has_left=False) for silent_ms in (1_400, 5_500, 10_500)
    ]
    assert states == [NodeState.ALIVE, NodeState.CRITICAL, NodeState.DEAD]


# --- on a server -------------------------------------------------------------------------------------


@pytest.fixture
async def node(tmp_path: Path, shared_server: Server) -> AsyncIterator[MeshNode]:
    """An idle node among 64 others."""
    settings = MESH_REPLICA.settings(tmp_path, shared_server, tick=f"{_TICK_S}s")
    async with Mesh.open(settings) as opened:
        for number in range(64):
            await _enrol(opened, f"other-{number}", SPARING_NODES)
        for _ in range(2):
            await _beat(opened)
        yield opened


async def test_an_idle_node_among_many_lets_ticks_pass_and_stays_alive(node: MeshNode) -> None:
    assert not await node._heartbeat.is_due()
    own = await node.nodes.require(node.identity.node_id)
    assert own.spare_ms == _SPARE_MS
    later = own._replace(now_ms=own.last_seen_ms + _SPARE_MS + _TICK_S * 1_000)
    assert (later.state, later.missed) == (NodeState.ALIVE, 0)
    assert node._heartbeat.spare_s == _SPARE_MS / 1_000


async def test_it_tells_at_the_next_tick_what_changes(node: MeshNode) -> None:
    node.presence.activity.text = "indexing the website"
    assert await node._heartbeat.is_due()
    await _beat(node)
    assert not await node._heartbeat.is_due()
    await node.locks.release(await node.locks.acquire("task:1"))
    assert await node._heartbeat.is_due(), "the count of heartbeats has to rise with what was written"


async def test_one_node_of_an_older_version_makes_all_send_every_tick(node: MeshNode) -> None:
    await _enrol(node, "older", SPARING_NODES - 1)
    await node.store.synced()
    assert await node._heartbeat.is_due()
    await _beat(node)
    assert (await node.nodes.require(node.identity.node_id)).spare_ms == 0


async def test_a_step_of_the_clock_that_another_node_has_noticed_makes_all_send_at_once(
    node: MeshNode,
) -> None:
    columns = "scope_id, repository_id, node_id, incarnation, epoch, low_ms, high_ms, seen_ms"
    epoch = "coalesce((SELECT epoch FROM database_clock), 0)"
    testimony = f"INSERT INTO clock_witnesses ({columns}) VALUES (?, ?, 'other-1', 1, {epoch}, -1, 1, ?)"
    now_ms = await node.nodes.now_ms()
    await node.store.write(Script(Statement(testimony, (*node.store.mesh_id, now_ms))))
    await node.store.synced()
    try:
        assert await node._heartbeat.is_due()
    finally:  # the server is shared, and the clock is that of all meshes
        await node.store.write(Script(Statement("UPDATE clock_witnesses SET low_ms = NULL, high_ms = NULL")))


async def test_without_a_replica_every_tick_is_due(tmp_path: Path, shared_server: Server) -> None:
    async with Mesh.open(MESH.settings(tmp_path, shared_server, tick=f"{_TICK_S}s")) as node:
        for number in range(64):
            await _enrol(node, f"other-{number}", SPARING_NODES)
        await node.run_once()
        assert await node._heartbeat.is_due()


async def _enrol(node: MeshNode, name: str, version: int) -> None:
    """Have another node start, and send one heartbeat."""
    store, whose = node.store, (*node.store.mesh_id, name)
    enrol, announce = _ENROL
    other = Presence(
        temporary_identity(name), store.writer_id, node.clock, place=name, tick_s=_TICK_S, activity=Activity()
    )
    start = Script(Statement(enrol, whose), Statement(announce, (*whose, version)))
    await store.write_all([start, other.beat()])


async def _beat(node: MeshNode) -> None:
    """Send a heartbeat at the pace that was decided before it."""
    async with asyncio.timeout(_PATIENCE_S):
        await node.store.synced()
        await node._heartbeat.is_due()
        await node._heartbeat.run_once()
        await node.store.synced()
