"""Attacks with a token that only reads: on the event loop, on the places of others, and on memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import httpx
import orjson
import pytest

from tests.support.messages.relaying import PATIENCE_S, TOKEN, Wire, address_of, assert_problem, until
from tests.support.nodes.serving import READ_TOKEN
from tests.support.nodes.shared_mesh import SharedMesh
from tools.homes import FILE
from vox_mesh.http.api import messages, oplog
from vox_mesh.http.api.jobs import jobs
from vox_mesh.http.connections import Patience
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode
from vox_mesh.oplog.op_kinds import OpKind
from vox_mesh.store import new_key

_NASTY: Final = "*" + "?a" * 120 + "b*"
_WAITING: Final = 300
_REBUILDS: Final = 30


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[MeshNode]:
    """A node in a file that serves, with a token that only reads."""
    shared_mesh = SharedMesh(FILE, tmp_path, None, new_key(), has_relay=True)
    async with Mesh.open(shared_mesh.settings("ann", token=TOKEN, read_token=READ_TOKEN)) as node:
        yield node


@pytest.fixture
async def client(node: MeshNode) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a token, with as many connections as it likes."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=address_of(node), timeout=PATIENCE_S, limits=limits, trust_env=False
    ) as client:
        yield client


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _request(method: str, path: str, body: Any = None, token: str = READ_TOKEN) -> bytes:
    content = b"" if body is None else orjson.dumps(body)
    lines = [f"{method} {path} HTTP/1.1", "Host: node", f"Authorization: Bearer {token}"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join((*lines, "", "")).encode() + content


# --- places --------------------------------------------------------------------------------------


async def test_reads_that_wait_keep_no_lock_and_no_other_token_from_waiting(
    node: MeshNode, client: httpx.AsyncClient
) -> None:
    job = await node.jobs.schedule("a.kind")
    held = await node.locks.acquire("task:1", agent="coder")
    server = node._server
    assert server is not None
    refused = 0
    port = int(address_of(node).rpartition(":")[2])
    async with AsyncExitStack() as stack:

        async def wait() -> None:
            nonlocal refused
            wire = await stack.enter_async_context(Wire(port))
            await wire.send(_request("GET", f"/v1/jobs/{job.job_id}/wait?timeout=60s"))
            status, _ = await wire.answer()
            refused += status == HTTPStatus.SERVICE_UNAVAILABLE

        waits = [asyncio.create_task(wait()) for _ in range(_WAITING)]
        await until(lambda: refused + len(server._performer._scope._waiting) == _WAITING)
        body = {"keys": ["task:1"], "agent": "reviewer", "wait": "60s"}
        lock = asyncio.create_task(client.post("/v1/locks", json=body, headers=_bearer(TOKEN)))
        path = f"/v1/jobs/{job.job_id}/wait"
        polled = asyncio.create_task(client.get(path, params={"timeout": "60s"}, headers=_bearer(TOKEN)))
        await until(lambda: lock.done() or refused + len(server._performer._scope._waiting) == _WAITING + 2)
        await node.locks.release(held)
        assert (await lock).status_code == HTTPStatus.CREATED, (await lock).text
        await node.jobs.abort(job)
        assert (await polled).status_code == HTTPStatus.OK, (await polled).text
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def test_a_token_reads_everything_once_at_a_time_and_leaves_a_place_for_others(
    node: MeshNode, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, check = asyncio.Event(), Rebuild.check
    running = most = begun = 0

    async def check_at_gate(self: Rebuild) -> Any:
        nonlocal running, most, begun
        running, begun = running + 1, begun + 1
        most = max(most, running)
        try:
            await gate.wait()
            return await check(self)
        finally:
            running -= 1

    async def rebuild(token: str) -> httpx.Response:
        return await client.get("/v1/jobs/rebuild", headers=_bearer(token))

    monkeypatch.setattr(Rebuild, "check", check_at_gate)
    hostile = [asyncio.create_task(rebuild(READ_TOKEN)) for _ in range(_REBUILDS)]
    await until(lambda: (begun == 1 and sum(each.done() for each in hostile) == _REBUILDS - 5) or most > 1)
    assert most == 1
    good = asyncio.create_task(rebuild(TOKEN))
    await until(lambda: running == 2)
    gate.set()
    answers = await asyncio.gather(*hostile)
    assert most == 2
    assert Counter(each.status_code for each in answers) == {200: 5, 503: _REBUILDS - 5}
    for answer in answers:
        if answer.status_code != HTTPStatus.OK:
            assert_problem(answer, 503, "overloaded")
    assert (await good).status_code == HTTPStatus.OK


async def test_a_read_only_token_does_not_take_all_event_streams(node: MeshNode) -> None:
    port = int(address_of(node).rpartition(":")[2])
    statuses: Counter[int] = Counter()
    async with AsyncExitStack() as stack:

        async def listen(token: str) -> int:
            wire = await stack.enter_async_context(Wire(port))
            await wire.send(_request("GET", "/v1/events?topics=beats", token=token))
            async with asyncio.timeout(PATIENCE_S):
                return int((await wire.reader.readuntil(b"\r\n")).split()[1])

        statuses.update(await asyncio.gather(*(listen(READ_TOKEN) for _ in range(70))))
        assert statuses[503] > statuses[200] > 0
        assert await listen(TOKEN) == HTTPStatus.OK


async def test_a_client_that_repeats_what_is_refused_is_slowed(tmp_path: Path, pauses: list[float]) -> None:
    shared_mesh = SharedMesh(FILE, tmp_path, None, new_key(), has_relay=True)
    async with (
        Mesh.open(shared_mesh.settings("ann", token=TOKEN, read_token=READ_TOKEN, rate_limit=1)) as node,
        httpx.AsyncClient(base_url=address_of(node), timeout=PATIENCE_S, trust_env=False) as client,
    ):
        for _ in range(40):
            answer = await client.get("/v1/kinds", headers=_bearer(READ_TOKEN))
        assert_problem(answer, 429, "too_many_requests")
        assert len(pauses) >= 10
        assert len({*pauses}) > 1, "they do not all end at once"
        assert (await client.get("/livez")).status_code == HTTPStatus.OK


# --- the event loop ------------------------------------------------------------------------------


async def test_the_event_loop_goes_on_while_many_paths_are_matched(
    node: MeshNode, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each slice is made as short as it can be: then the loop goes on after every path."""
    monkeypatch.setattr("vox_mesh.store.slices.SLICE_S", 0.0, raising=False)
    await node.locks.acquire(f"file:{_NASTY}", agent="coder")
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count_turns())
    body = {"paths": [f"{'a' * 200}{n}" for n in range(300)], "agent": "reviewer"}
    checked = await client.post("/v1/locks/check", json=body, headers=_bearer(READ_TOKEN))
    turns_of_check, turns = turns, 0
    listed = await client.get("/v1/locks", params={"key": f"file:{'a' * 200}"}, headers=_bearer(READ_TOKEN))
    counting.cancel()
    assert (checked.json(), listed.json()["items"]) == ([], [])
    assert turns_of_check > len(body["paths"])


async def test_a_page_is_bounded_by_size_and_pages_have_every_item_once(
    node: MeshNode, client: httpx.AsyncClient
) -> None:
    large = [await node.jobs.schedule("a.kind", {"n": n, "text": "x" * 200_000}) for n in range(12)]
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 500}
    while True:
        answer = await client.get("/v1/jobs", params=query, headers=_bearer(READ_TOKEN))
        assert len(answer.content) < 2 * 2**20
        page = answer.json()
        seen += [each["job_id"] for each in page["items"]]
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert seen == [each.job_id for each in reversed(large)]
    for path in ("/v1/jobs/ready", "/v1/oplog"):
        answer = await client.get(path, params={"limit": 500}, headers=_bearer(READ_TOKEN))
        assert len(answer.content) < 2 * 2**20, path


@pytest.mark.parametrize(
    ("path", "module", "query"),
    [
        ("/v1/jobs", jobs, {"kind": "b.*"}),
        ("/v1/messages", messages, {"sender": "b"}),
        ("/v1/oplog", oplog, {"kind": "test.b"}),
    ],
)
async def test_a_filter_that_matches_little_looks_at_few_rows_for_each_page(
    node: MeshNode,
    client: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    module: ModuleType,
    query: dict[str, str],
) -> None:
    monkeypatch.setattr(module, "MAX_SCANNED", 4, raising=False)
    for kind in ("test.a", "test.b"):
        node.oplog.register(OpKind(kind))
    for name in "abaaaaaaaaaaba":
        await node.jobs.schedule(f"{name}.kind", new=True)
        await node.messages.send("anyone", {}, sender=name)
        await node.oplog.append(f"test.{name}", {})
    pages = []
    cursor: dict[str, str] = {}
    while True:
        answer = await client.get(path, params={**query, **cursor, "limit": 500}, headers=_bearer(READ_TOKEN))
        pages.append(answer.json())
        if pages[-1]["next"] is None:
            break
        cursor = {"cursor": pages[-1]["next"]}
    assert sum(len(page["items"]) for page in pages) == 2
    assert len(pages) >= 3


# --- memory --------------------------------------------------------------------------------------


async def test_answers_that_are_not_read_are_dropped_before_they_fill_the_memory(node: MeshNode) -> None:
    server = node._server
    assert server is not None
    for n in range(6):
        await node.jobs.schedule("a.kind", {"n": n, "text": "x" * 200_000})
    connections = server.service.connections
    port = int(address_of(node).rpartition(":")[2])
    async with AsyncExitStack() as stack:
        for _ in range(8):
            wire = await stack.enter_async_context(Wire(port))
            wire.reader._transport.pause_reading()  # type: ignore[attr-defined]  # it reads nothing, ever
            await wire.send(_request("GET", "/v1/jobs?limit=500") * 8)
        await until(lambda: sum(each.unread_bytes > 0 for each in connections.open_connections) == 8)
        connections._patience = Patience(unread_bytes=0)
        await until(lambda: not any(each.under_way for each in connections.open_connections))
        connections.run_once()
        await until(lambda: not connections.open_connections)
