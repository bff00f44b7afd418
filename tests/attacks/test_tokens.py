"""Attacks with a token that allows less, a database that lies about addresses, and a relay that reorders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import SecretStr

from tests.support.messages.relaying import (
    AGENT,
    PATIENCE_S,
    TOKEN,
    address_of,
    assert_problem,
    letter,
    open_pair,
)
from tests.support.nodes.serving import READ_TOKEN
from tests.support.nodes.shared_mesh import SharedMesh
from tools.homes import FILE
from vox_mesh import load_settings
from vox_mesh.errors import BadSettings, Unreachable
from vox_mesh.http.limits import Quotas
from vox_mesh.http.problems import Problem
from vox_mesh.http.relay.endpoint import wire
from vox_mesh.http.relay.keys import RelayKeys
from vox_mesh.mesh import Mesh
from vox_mesh.model.rhythm.tempo import Window
from vox_mesh.node import MeshNode
from vox_mesh.store import Script, Statement, new_key
from vox_mesh.store.engines.hrana.ws import WsEngine

_METRICS: Final = "a-token-for-those-who-only-count"
_SECRET: Final = "hunter2-hunter2-hunter2"
_HOUR_MS: Final = 3_600_000


@pytest.fixture
def shared_mesh(tmp_path: Path) -> SharedMesh:
    """A mesh in a file."""
    return SharedMesh(FILE, tmp_path, None, new_key(), has_relay=True)


@pytest.fixture
async def node(shared_mesh: SharedMesh) -> AsyncIterator[MeshNode]:
    """A node with a token of each kind, and low limits."""
    tokens = {"token": TOKEN, "read_token": READ_TOKEN, "metrics_token": _METRICS}
    async with Mesh.open(shared_mesh.settings("ann", **tokens, rate_limit=10, open_limit=25)) as node:
        yield node


async def _ask(node: MeshNode, token: str, method: str, path: str, **more: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}", **more.pop("headers", {})}
    async with httpx.AsyncClient(base_url=address_of(node), timeout=PATIENCE_S, trust_env=False) as client:
        return await client.request(method, path, headers=headers, **more)


# --- weak tokens ---------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["x", "a" * 64, "0123456789abcdef" + "0" * 15])
@pytest.mark.parametrize("variable", ["token", "read_token", "metrics_token"])
def test_a_token_that_can_be_guessed_is_refused_with_the_command_that_makes_a_good_one(
    variable: str, token: str
) -> None:
    with pytest.raises(BadSettings) as raised:
        load_settings(_env_file=None, **{variable: SecretStr(token)})
    assert f"VOX_MESH_{variable.upper()}: must have at least 128 bits" in raised.value.line
    assert "`vox-mesh token random`" in raised.value.line


# --- what a token shows --------------------------------------------------------------------------


async def test_a_read_only_token_shows_no_mail_no_variables_and_nothing_to_act_with(node: MeshNode) -> None:
    lock = await node.locks.acquire("task:1", agent="coder")
    sent = await node.messages.send(AGENT, {"password": _SECRET}, sender="coder")
    (claimed,) = await node.messages.poll_inbox_from_db(AGENT)
    command = {"command": ["/bin/true"], "timeout": 5, "env": {"API_KEY": _SECRET}}
    (job,) = (await _ask(node, TOKEN, "POST", "/v1/jobs", json={"manifests": [command]})).json()
    shown = {}
    for path in (
        *("/v1/locks", "/v1/messages", f"/v1/messages/{sent.message_uuid}", f"/v1/inbox/{AGENT}"),
        *("/v1/jobs", f"/v1/jobs/{job['job_id']}", "/v1/jobs/ready", "/v1/oplog", "/v1/overview"),
    ):
        answer = await _ask(node, READ_TOKEN, "GET", path)
        assert answer.status_code == HTTPStatus.OK, answer.text
        assert _SECRET not in answer.text, path
        assert str(claimed.claim_owner) not in answer.text, path
        assert str(lock.fence_token) not in answer.text, path
        shown[path] = answer.json()
    (hold,) = shown["/v1/locks"]["items"]
    assert (hold["lock_key"], hold["fence_token"]) == ("task:1", None)
    message = shown[f"/v1/messages/{sent.message_uuid}"]
    assert (message["sender_agent"], message["payload"], message["claim_owner"]) == ("coder", None, None)
    assert shown[f"/v1/jobs/{job['job_id']}"]["manifest"]["env"] == {"API_KEY": None}
    full = (await _ask(node, TOKEN, "GET", "/v1/locks")).json()["items"]
    assert full[0]["fence_token"] == lock.fence_token


@pytest.mark.parametrize("path", ["/v1/oplog/export", "/v1/jobs/abcdef/bundle", "/v1/jobs/abcdef/logs"])
async def test_what_cannot_be_redacted_is_not_for_a_read_only_token(node: MeshNode, path: str) -> None:
    assert_problem(await _ask(node, READ_TOKEN, "GET", path), HTTPStatus.FORBIDDEN, "read_only")


async def test_the_event_stream_of_a_read_only_token_is_redacted(node: MeshNode) -> None:
    lock = await node.locks.acquire("task:1", agent="coder")
    headers = {"Authorization": f"Bearer {READ_TOKEN}"}
    async with (
        httpx.AsyncClient(base_url=address_of(node), timeout=PATIENCE_S, trust_env=False) as client,
        client.stream("GET", "/v1/events?topics=locks", headers=headers) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                (hold,) = orjson.loads(line.removeprefix("data: "))["locks"]
                assert (hold["lock_key"], hold["fence_token"]) == ("task:1", None)
                assert str(lock.fence_token) not in line
                return


async def test_a_token_for_monitoring_reads_metrics_and_nothing_else(node: MeshNode) -> None:
    for path in ("/metrics", "/readyz?verbose"):
        assert (await _ask(node, _METRICS, "GET", path)).status_code == HTTPStatus.OK
    for path in ("/v1/nodes", "/v1/jobs", "/v1/messages", "/v1/events", "/v1/oplog", "/v1/overview"):
        assert_problem(await _ask(node, _METRICS, "GET", path), HTTPStatus.FORBIDDEN, "metrics_only")
    body = {"keys": ["a"], "agent": "thief"}
    assert_problem(await _ask(node, _METRICS, "POST", "/v1/locks", json=body), 403, "metrics_only")


# --- quotas --------------------------------------------------------------------------------------


async def test_a_token_cannot_flood_the_mesh_with_jobs(node: MeshNode) -> None:
    made, refused = 0, []
    for request in range(8):
        manifests = [{"kind": f"flood.k{request}", "payload": each} for each in range(10)]
        answer = await _ask(node, TOKEN, "POST", "/v1/jobs", json={"manifests": manifests})
        if answer.status_code == HTTPStatus.OK:
            made += len(manifests)
        else:
            refused.append(answer)
    assert made <= 40, "two seconds' worth at once, and what is added meanwhile; never more than are open"
    assert refused
    for answer in refused:
        assert answer.json()["code"] in ("too_many_requests", "too_many_open")
        assert (answer.status_code, "Retry-After" in answer.headers) == (429, True)
    assert (await _ask(node, READ_TOKEN, "GET", "/v1/nodes")).status_code == HTTPStatus.OK, "others go on"


async def test_open_items_have_an_end(shared_mesh: SharedMesh) -> None:
    async with Mesh.open(shared_mesh.settings("ann", token=TOKEN, open_limit=5)) as node:
        for each in range(5):
            await node.jobs.schedule("demo.x", each)
        body = {"manifests": [{"kind": "demo.y"}]}
        answer = await _ask(node, TOKEN, "POST", "/v1/jobs", json=body)
        assert_problem(answer, HTTPStatus.TOO_MANY_REQUESTS, "too_many_open")
        for each in range(5):
            await node.messages.send(AGENT, each, sender="coder")
        answer = await _ask(
            node, TOKEN, "POST", "/v1/messages", json={"to": AGENT, "sender": "coder", "payload": 6}
        )
        assert_problem(answer, HTTPStatus.TOO_MANY_REQUESTS, "too_many_open")


async def test_open_items_that_can_not_be_counted_go_to_the_spool() -> None:
    answers: list[int | Unreachable] = [3, Unreachable("away"), Unreachable("away")]
    seconds = iter(range(10, 100, 10))  # each call counts again

    async def count(_: int) -> int:
        answer = answers.pop(0)
        if isinstance(answer, Unreachable):
            raise answer
        return answer

    quotas = Quotas(500, 5, lambda: next(seconds))
    await quotas.open_items("jobs", 1, count)
    await quotas.open_items("jobs", 1, count)
    with pytest.raises(Problem) as raised:  # what this node has added meanwhile counts
        await quotas.open_items("jobs", 1, count)
    assert (raised.value.code, answers) == ("too_many_open", [])


# --- addresses that the database claims ------------------------------------------------------------


@pytest.mark.parametrize("trick", ["another host", "a path and a query", "unsigned"])
async def test_no_message_goes_to_an_address_that_its_node_did_not_sign(
    shared_mesh: SharedMesh, trick: str
) -> None:
    caught: list[bytes] = []

    async def catch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caught.append(await reader.read(2**16))
        writer.close()

    trap = await asyncio.start_server(catch, "127.0.0.1", 0)
    evil = f"http://127.0.0.1:{trap.sockets[0].getsockname()[1]}"
    if trick == "a path and a query":
        evil += "/latest/meta-data?x="
    async with trap, open_pair(shared_mesh) as pair:
        stream = pair.receiver.messages.receive(AGENT)
        waiting = asyncio.ensure_future(anext(stream))
        await _announced(pair.sender, pair.receiver)
        whose = (shared_mesh.scope_id, pair.receiver.identity.node_id)
        for table in ("mesh_heartbeats", "node_addresses"):
            if await _exists(pair.sender, table):
                change = f"UPDATE {table} SET control_addr = ?3 WHERE scope_id = ?1 AND node_id = ?2"
                await pair.sender.store.write(Script(Statement(change, (*whose, evil))))
        if trick == "unsigned" and await _exists(pair.sender, "node_addresses"):
            change = "UPDATE node_addresses SET signature = '' WHERE scope_id = ?1 AND node_id = ?2"
            await pair.sender.store.write(Script(Statement(change, whose)))
        pair.sender.messages.directory._known.clear()
        assert await pair.sender.messages.directory.find_receiver(AGENT) is None
        sent = await pair.sender.messages.send(AGENT, "hello")
        async with asyncio.timeout(PATIENCE_S):
            received = await waiting
        assert received.message_uuid == sent.message_uuid, "the database brings it"
        await pair.receiver.messages.ack(received)
        await stream.aclose()
    assert caught == []


async def _announced(sender: MeshNode, receiver: MeshNode) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await sender.messages.directory.find_receiver(AGENT) is None:
            await receiver.store.synced()
            sender.messages.directory._known.clear()


async def _exists(node: MeshNode, table: str) -> bool:
    found = await node.store.read("SELECT 1 FROM sqlite_master WHERE name = ?", (table,), fresh=True)
    return bool(found)


@pytest.mark.parametrize("address", ["http://10.0.0.7:7400/a?b=", "http://10.0.0.7/a", "http://u:p@10.0.0.7"])
def test_an_address_is_a_scheme_a_host_and_a_port(address: str) -> None:
    with pytest.raises(BadSettings, match="a scheme, a host and a port"):
        load_settings(_env_file=None, control_addr=address)


# --- keys and order of the relay -------------------------------------------------------------------


def test_a_key_of_the_relay_lives_for_minutes_however_slow_the_tempo() -> None:
    now_ms = 10 * _HOUR_MS + 1

    async def look() -> None:
        pass

    keys = RelayKeys(
        TOKEN,
        ("", "default"),
        now_ms=lambda: now_ms,
        window_at=lambda _: Window(0, 60 * _HOUR_MS),
        revoke_after_bars=lambda: 64,
        check_clock=look,
    )
    captured = keys.current()
    assert keys.fault(captured) is None
    now_ms += 4 * 60_000
    assert keys.fault(captured) == "stale"
    assert keys.fault(keys.current()) is None


@pytest.mark.parametrize("signature", [None, "stale"])
async def test_the_order_of_relayed_messages_cannot_be_changed_on_the_way(
    shared_mesh: SharedMesh, signature: str | None
) -> None:
    async with open_pair(shared_mesh) as pair:
        receiver = pair.receiver.identity.node_id
        second = letter(pair.sender)._replace(after=new_key())
        headers = pair.headers(stored=False)
        if signature is not None:
            headers["Vox-Mesh-Order"] = pair.sender.messages.sign_order([second], receiver, stored=False)
        stream = pair.receiver.messages.receive(AGENT)
        waiting = asyncio.ensure_future(anext(stream))
        await _announced(pair.sender, pair.receiver)
        answer = await pair.post([wire(second._replace(after=None))], headers)
        kept = pair.receiver.messages.relay_buffer._kept.get(second.message_uuid)
        if signature is not None:
            assert_problem(answer, HTTPStatus.FORBIDDEN, "sender_refused")
            assert kept is None
        else:
            assert answer.status_code == HTTPStatus.OK
            assert kept is None or kept.after is not None, "it claims to be the first, and that is not signed"
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await stream.aclose()


async def test_no_token_follows_a_redirect_to_another_server() -> None:
    heard: list[str] = []

    async def take(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("hrana3",))
        await socket.prepare(request)
        heard.append(await socket.receive_str())
        return socket

    async def redirect(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": str(thief.make_url("/"))})

    async with TestServer(_answering(take)) as thief, TestServer(_answering(redirect)) as server:
        engine = WsEngine(str(server.make_url("")), "a-token-of-the-user", 5.0)
        with pytest.raises(Unreachable, match="status 302"):
            await engine.connect()
        await engine.close()
    assert heard == []


def _answering(handler: Any) -> web.Application:
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    return app
