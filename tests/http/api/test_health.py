"""The health of a node, as it reports it over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.support.messages.messaging import PATIENCE_S
from tests.support.messages.relaying import TOKEN, address_of
from tests.support.nodes.serving import READ_TOKEN
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.running.lengths import SHARED_HOMES
from vox_mesh import Mesh
from vox_mesh.node import MeshNode
from vox_mesh.store import new_key

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=SHARED_HOMES, ids=str)
async def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[MeshNode]:
    """A node that serves, on each home that can be shared."""
    server = request.getfixturevalue("shared_server") if request.param.needs_server else None
    shared_mesh = SharedMesh(
        request.param, tmp_path_factory.mktemp("mesh"), server, new_key(), has_relay=True
    )
    async with Mesh.open(shared_mesh.settings("ann", token=TOKEN, read_token=READ_TOKEN)) as node:
        await node.run_once()
        yield node


@pytest_asyncio.fixture(loop_scope="module")
async def reader(node: MeshNode) -> AsyncIterator[httpx.AsyncClient]:
    """A client that may only read."""
    headers = {"Authorization": f"Bearer {READ_TOKEN}"}
    async with httpx.AsyncClient(base_url=address_of(node), headers=headers, timeout=PATIENCE_S) as client:
        yield client


async def test_a_healthy_node_says_so_with_its_figures(node: MeshNode, reader: httpx.AsyncClient) -> None:
    before = (await reader.get("/v1/health")).json()
    async with node.locks.hold("task", agent="ada"):
        pass
    document = (await reader.get("/v1/health")).json()
    assert (document["node_id"], document["ready"], document["streams"]) == ("ann", True, 0)
    assert [each for each in document["checks"] if not each["ok"] or each["hint"]] == []
    assert {"database", "writes", "clock", "parts", "breaker"} <= {
        each["name"] for each in document["checks"]
    }
    assert document["writes"]["answered"] > before["writes"]["answered"]
    assert document["process"]["cpu_s"] >= before["process"]["cpu_s"] > 0
    assert document["process"]["memory_bytes"] > 2**20
    assert (document["replica"] is None) == (node.store.replica_status is None)
    assert (document["replica_lag_ms"] is None) == (node.store.replica_status is None)


async def test_latencies_are_counted_by_bounds(node: MeshNode, reader: httpx.AsyncClient) -> None:
    async def locks() -> list[int]:
        latencies = (await reader.get("/v1/health")).json()["latencies"]
        (found,) = [each for each in latencies if each["name"] == "lock"]
        assert found["buckets"][-1] == {"le": None, "count": found["count"]}
        counts = [each["count"] for each in found["buckets"]]
        assert counts == sorted(counts)
        return counts

    before = await locks()
    async with node.locks.hold("counted", agent="ada"):
        pass
    assert (await locks())[-1] == before[-1] + 1


async def test_a_check_that_fails_says_what_to_do(node: MeshNode, reader: httpx.AsyncClient) -> None:
    node.health.is_leaving = True
    try:
        document = (await reader.get("/v1/health")).json()
    finally:
        node.health.is_leaving = False
    (check,) = [each for each in document["checks"] if not each["ok"]]
    assert (document["ready"], check["name"]) == (False, "leaving")
    assert check["detail"]
    assert check["hint"]


async def test_open_streams_are_counted(node: MeshNode, reader: httpx.AsyncClient) -> None:
    async with reader.stream("GET", "/v1/events", params={"topics": "locks"}) as stream:
        lines = stream.aiter_lines()  # without it the response is closed
        assert await anext(lines) == "event: reset"
        assert (await reader.get("/v1/health")).json()["streams"] == 1
