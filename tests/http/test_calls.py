"""Calls: none outlives its client or the node, and an answer without a client is undone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

import httpx
import pytest

from tests.support.messages.relaying import TOKEN, address_of, assert_problem, until
from tests.support.nodes.shared_mesh import SharedMesh
from vox_mesh.http import admission
from vox_mesh.http import requests as calls
from vox_mesh.http.access import credential_of
from vox_mesh.http.connections import Connections, Patience
from vox_mesh.http.problems import Problem
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode

_PATIENCE_S: Final = 30.0
_BEARER: Final = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
async def node(village: SharedMesh) -> AsyncIterator[MeshNode]:
    """A node that serves, and ticks only when it is asked to."""
    async with Mesh.open(village.settings("ann", token=TOKEN)) as node:
        yield node


@pytest.fixture
async def client(node: MeshNode) -> AsyncIterator[httpx.AsyncClient]:
    """A client that asks it."""
    async with httpx.AsyncClient(base_url=address_of(node), headers=_BEARER, timeout=_PATIENCE_S) as client:
        yield client


async def _until(node: MeshNode, holds: Callable[[], Any]) -> None:
    """Wait for what a commit makes true."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            seen = node.store.change_count
            if await holds():
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await node.store.changed(seen)


def _waiting(node: MeshNode) -> int:
    front = node._server
    assert front is not None
    return len(front._performer._scope._waiting)


async def test_who_hangs_up_while_waiting_for_a_lock_does_not_get_it(
    node: MeshNode, client: httpx.AsyncClient
) -> None:
    held = await node.locks.acquire("task:1", agent="ann")
    asked = {"keys": ["task:1"], "agent": "ben", "wait": "60s", "ttl": "1h"}
    waiting = asyncio.create_task(client.post("/v1/locks", json=asked))

    async def waits() -> bool:
        return (await node.locks.holders())[0].waiting == 1

    await _until(node, waits)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    async def waits_no_more() -> bool:
        return (await node.locks.holders())[0].waiting == 0

    await _until(node, waits_no_more)
    await node.locks.release(held)
    assert await node.locks.holders() == []


async def test_what_was_granted_to_one_who_is_gone_is_given_back() -> None:
    undone: list[str] = []

    async def undo(answer: str) -> None:
        undone.append(answer)

    async def granted() -> str:
        request.lost.set()
        return "a lock"

    request: Any = _Request()
    assert await calls.RequestScope().do(request, granted(), 5.0, undo=undo) == "a lock"
    assert undone == ["a lock"]


class _Request:
    """A request, and its connection."""

    def __init__(self) -> None:
        self.protocol = self
        self.lost = asyncio.Event()
        self.running: set[asyncio.Task[Any]] = set()


async def test_a_node_that_leaves_lets_no_one_wait(node: MeshNode, client: httpx.AsyncClient) -> None:
    job = await node.jobs.schedule("a.kind")
    polling = asyncio.create_task(client.get(f"/v1/jobs/{job.job_id}/wait", params={"timeout": "60s"}))
    await until(lambda: _waiting(node) == 1)
    node.begin_to_leave()
    assert_problem(await polling, 503, "leaving")
    assert_problem(await client.get(f"/v1/jobs/{job.job_id}/wait"), 503, "leaving")
    ready = await client.get("/readyz", params={"verbose": ""})
    assert (ready.status_code, ready.json()["checks"][0]["name"]) == (503, "leaving")
    assert (await client.get("/livez")).status_code == 200


async def test_more_who_wait_than_there_is_room_for_are_notified(
    node: MeshNode, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(admission._LIMITS, admission.Load.WAIT, admission.PoolLimits(total=0, each=1))
    assert node._server is not None
    node._server._performer.admission = admission.Admission()
    job = await node.jobs.schedule("a.kind")
    assert_problem(await client.get(f"/v1/jobs/{job.job_id}/wait"), 503, "overloaded")


@pytest.mark.parametrize("load", ["wait", "lock_wait", "take", "events"])
async def test_an_agent_that_waits_as_often_as_it_can_leaves_room_for_others(load: str) -> None:
    places, sort = admission.Admission(), admission.Load(load)
    async with AsyncExitStack() as held:

        async def wait_for_ever() -> None:
            while True:
                await held.enter_async_context(places.place(sort, credential_of("eve")))

        with pytest.raises(Problem, match="at a time"):
            await wait_for_ever()
        for agent in ("ann", "bob", "cid"):
            await held.enter_async_context(places.place(sort, credential_of(agent)))


async def test_a_call_that_takes_too_long_is_cancelled_and_notified() -> None:
    cancelled = asyncio.Event()

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    request: Any = _Request()
    with pytest.raises(Problem, match=r"timed out after 0\.01 s"):
        await calls.RequestScope().do(request, for_ever(), 0.01)
    assert cancelled.is_set()


async def test_a_connection_on_which_something_is_under_way_is_not_idle(node: MeshNode) -> None:
    front = node._server
    assert front is not None
    connections: Connections = front.service.connections
    connections._patience = Patience(first_s=0.0, kept_s=0.0)
    async with httpx.AsyncClient(base_url=address_of(node), headers=_BEARER, timeout=_PATIENCE_S) as client:
        job = await node.jobs.schedule("a.kind")
        polling = asyncio.create_task(client.get(f"/v1/jobs/{job.job_id}/wait", params={"timeout": "60s"}))
        await until(lambda: _waiting(node) == 1)
        connections.run_once()
        await node.jobs.abort(job)
        assert (await polling).json()["state"] == "aborted"


async def test_pages_of_other_sites_learn_nothing(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/nodes", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers
    del client.headers["Authorization"]
    answer = await client.post("/v1/locks/sweep", headers={"Origin": "https://evil.example"})
    assert_problem(answer, 401, "token_missing")
