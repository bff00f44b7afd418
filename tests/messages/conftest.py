"""Fixtures: the homes on which messages differ, as one node, as several, and as any way to a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.messages.messaging import NodeGroup, crowd_on
from tests.support.oplog.authoring import RestartableNodes, scene
from tests.support.running.lengths import EVERY_HOME, LOCAL_AND_REPLICA
from tools.homes import FILE, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh, Message, Settings
from vox_mesh.node import MeshNode


def _server(request: pytest.FixtureRequest, case: HomeCase) -> Server | None:
    return request.getfixturevalue("shared_server") if case.needs_server else None


@pytest.fixture(params=LOCAL_AND_REPLICA, ids=str)
async def node(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MeshNode]:
    """A node on each home in turn, which ticks only when a test asks it to."""
    case: HomeCase = request.param
    settings = case.settings(tmp_path, _server(request, case), tick="1h")
    async with Mesh.open(settings) as node:
        yield node


@pytest.fixture(params=EVERY_HOME, ids=str)
async def any_node(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MeshNode]:
    """The same on each home, and by each way to a server."""
    case: HomeCase = request.param
    settings = case.settings(tmp_path, _server(request, case), tick="1h")
    async with Mesh.open(settings) as node:
        yield node


@pytest.fixture(params=LOCAL_AND_REPLICA, ids=str)
async def crowd(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[NodeGroup]:
    """Any number of nodes on each home in turn."""
    case: HomeCase = request.param
    async with crowd_on(case, tmp_path, _server(request, case)) as crowd:
        yield crowd


@pytest.fixture
async def there() -> AsyncIterator[RestartableNodes]:
    """A database in memory, behind a gate that loses what it is asked to."""
    async with scene() as there:
        yield there


@pytest.fixture
async def local(there: RestartableNodes) -> AsyncIterator[MeshNode]:
    """One node on it, where by which home makes no difference."""
    async with there.node() as node:
        await node.run_once()
        yield node


@pytest.fixture
def named(tmp_path: Path) -> Settings:
    """A node with a name on the file home, for commands next to it."""
    return FILE.settings(tmp_path, None, scope_id="", node_id="worker", tick="1h")


@pytest.fixture
async def sent(local: MeshNode) -> list[Message]:
    """Messages to z, two by a and one by b."""
    return [await local.messages.send("z", body, sender=body[0]) for body in ("a0", "b0", "a1")]
