"""Features: what is new waits until no live node is too old for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.nodes.clocks import Clock
from tests.support.running.lengths import LOCAL_AND_REPLICA
from tools.homes import HomeCase
from vox_mesh import Mesh, Settings, Statement
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.store.schema.schema import VERSION
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script

_OLD = VERSION - 1
_KEPT_S = 5.0


@pytest.fixture
def clock() -> Clock:
    """The clock of the node that asks."""
    return Clock()


@pytest.fixture(params=LOCAL_AND_REPLICA, ids=str)
async def node(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[MeshNode]:
    """A node on each home in turn."""
    case: HomeCase = request.param
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    settings: Settings = case.settings(tmp_path, server, tick="1h")
    async with Mesh.open(settings, Dependencies(monotonic=clock, elapsed=clock)) as node:
        began = clock.now
        yield node
        clock.now = began  # or it would leave with a word against the database's clock


async def another(node: MeshNode, name: str, announced: int | None, incarnation: int = 1) -> None:
    """Have another node be alive, which announced a version in its first incarnation."""
    mesh = node.store.mesh_id
    beat = node.presence.beat().statements[0]
    values = (*mesh, name, *beat.params[3:])
    raised = [Statement(named("nodes")["raise_incarnation"], (*mesh, name))]
    script = [*raised, Statement(beat.sql, values)]
    if announced is not None:
        script.append(Statement(named("nodes")["announce_version"], (*mesh, name, announced)))
    for _ in range(1, incarnation):
        script += [*raised, Statement(beat.sql, values)]
    await node.store.write(Script(*script))


async def test_with_nodes_of_this_version_everything_may_be_used(node: MeshNode) -> None:
    await another(node, "peer", VERSION)
    assert await node.features.is_known_to_all(VERSION)


async def test_what_is_new_waits_for_an_older_node_and_begins_when_it_has_left(
    node: MeshNode, clock: Clock
) -> None:
    await another(node, "older", _OLD)
    assert await node.features.oldest_live_version() == _OLD
    assert not await node.features.is_known_to_all(VERSION)
    assert await node.features.is_known_to_all(_OLD)
    mesh = node.store.mesh_id
    await node.store.write(Script(Statement(named("nodes")["leave"], (*mesh, "older"))))
    assert not await node.features.is_known_to_all(VERSION)  # it was asked just now
    clock.now += _KEPT_S
    assert await node.features.is_known_to_all(VERSION)


@pytest.mark.parametrize(("announced", "incarnation"), [(None, 1), (VERSION, 2)])
async def test_a_node_that_announced_nothing_since_it_began_is_older_than_announcements(
    node: MeshNode, announced: int | None, incarnation: int
) -> None:
    await another(node, "older", announced, incarnation)
    assert await node.features.oldest_live_version() == 7


async def test_a_dead_node_holds_nothing_back(node: MeshNode, clock: Clock) -> None:
    await another(node, "older", _OLD)
    assert not await node.features.is_known_to_all(VERSION)
    clock.now += 11 * 3_600  # it ticks once in an hour
    assert await node.features.is_known_to_all(VERSION)
