"""Attacks with values that are nested too deeply, or that a row of the database can't hold honestly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.messages.messaging import row_of, write
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
from tools.homes import FILE, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh import Message, OpKind
from vox_mesh.errors import BadValue
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.mesh import Mesh
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import JobState
from vox_mesh.node import MeshNode
from vox_mesh.store import new_key

_MAX: Final = 64
_DEEP: Final = 252
"""The levels of the attack: it can be stored, but not encoded inside an answer."""

_KIND: Final = "test.deep"
_NOTE: Final = OpKind("test.note")
_INSERT: Final = """
    INSERT INTO a2a_messages (scope_id, repository_id, message_uuid, sender_agent, receiver_agent, msg_type,
        payload, priority, max_attempts, hlc, sender_node, sender_incarnation, signature)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, {payload}, ?7, ?8, ?9, ?10, ?11, ?12)
"""


def nested(depth: int) -> Any:
    """A value with that many levels."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def _text(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.fixture(params=[FILE, MESH_REPLICA], ids=str)
def shared_mesh(request: pytest.FixtureRequest, tmp_path: Path) -> SharedMesh:
    """A mesh in a file, and one on a server."""
    case: HomeCase = request.param
    server: Server | None = None if case is FILE else request.getfixturevalue("shared_server")
    return SharedMesh(case, tmp_path, server, new_key(), has_relay=True)


@pytest.fixture
async def node(shared_mesh: SharedMesh) -> AsyncIterator[MeshNode]:
    """A node with its service."""
    async with Mesh.open(shared_mesh.settings("ann", token=TOKEN, read_token=READ_TOKEN)) as node:
        yield node


async def _ask(node: MeshNode, method: str, path: str, token: str = TOKEN, **more: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=address_of(node), timeout=PATIENCE_S, trust_env=False) as client:
        return await client.request(method, path, headers=headers, **more)


async def _store(node: MeshNode, message: Message, payload: str = "?13") -> None:
    """Write a message as a hostile or older writer does, past all checks."""
    columns = (
        *(message.message_uuid, message.sender_agent, message.receiver_agent, message.msg_type),
        *(message.priority, message.max_attempts, message.hlc, message.sender_node),
        *(message.sender_incarnation, message.signature),
    )
    more = (message.payload,) if payload == "?13" else ()
    await write(node, _INSERT.format(payload=payload), *columns, *more)


async def _unreadable_messages(node: MeshNode) -> dict[str, Message]:
    """Store messages that can't be handed out, each first in the queue of its sender, by the reason."""
    deep = letter(node, payload=_text(_DEEP), sender_agent="deep")
    broken = letter(node, payload="{", sender_agent="broken")
    await _store(node, deep)
    await _store(node, broken)
    for name, sql in {"bytes": "x'ff'", "not-utf-8": "CAST(x'22ff22' AS TEXT)"}.items():
        await _store(node, letter(node, sender_agent=name), sql)
    return {"deep": deep, "broken": broken}


# --- messages ------------------------------------------------------------------------------------


async def test_a_body_nested_too_deeply_is_refused_and_64_levels_pass(node: MeshNode) -> None:
    refusals = {_MAX + 1: HTTPStatus.UNPROCESSABLE_ENTITY, _DEEP: HTTPStatus.BAD_REQUEST}
    for depth, status in refusals.items():
        answer = await _send(node, depth)
        assert_problem(
            answer, status, "bad_value" if status == HTTPStatus.UNPROCESSABLE_ENTITY else "bad_json"
        )
        with pytest.raises(BadValue, match="at most 64 levels"):
            await node.messages.send(AGENT, nested(depth), sender="coder")
    assert (await _send(node, _MAX)).is_success
    (claimed,) = (await _ask(node, "POST", f"/v1/inbox/{AGENT}/claim", json={})).json()
    assert claimed["payload"] == nested(_MAX)


async def _send(node: MeshNode, depth: int) -> httpx.Response:
    body = {"to": AGENT, "sender": "coder", "payload": nested(depth)}
    return await _ask(node, "POST", "/v1/messages", json=body)


async def test_unreadable_messages_do_not_keep_others_from_being_claimed(node: MeshNode) -> None:
    stored = await _unreadable_messages(node)
    for number in range(3):
        await node.messages.send(AGENT, number, sender="coder")
    await node.messages.send(AGENT, "later", sender="deep")
    answer = await _ask(node, "POST", f"/v1/inbox/{AGENT}/claim", json={})
    assert answer.is_success, answer.text
    assert sorted(map(str, (each["payload"] for each in answer.json()))) == ["0", "1", "2", "later"]
    for name, reason in {"deep": "at most 128 levels", "broken": "not JSON"}.items():
        row = await row_of(node, stored[name])
        assert (row["state"], row["delivery_attempts"]) == ("dead", 1)
        assert row["ended_reason"].startswith("unreadable: ")
        assert reason in row["ended_reason"]
    counts = await node.messages.queries.counts()
    assert counts == {"dead": 4, "delivered": 4}


async def test_a_consumer_receives_the_others_and_attempts_are_not_used_up(node: MeshNode) -> None:
    await _store(node, letter(node, payload=_text(_DEEP), sender_agent="deep"))
    await node.messages.send(AGENT, "hello", sender="coder")
    async for message in node.messages.receive(AGENT):
        assert (message.body, message.delivery_attempts) == ("hello", 1)
        await node.messages.ack(message, durable=True)
        break
    assert await node.messages.queries.counts() == {"acked": 1, "dead": 1}


@pytest.mark.parametrize("token", [TOKEN, READ_TOKEN])
async def test_lists_show_a_placeholder_for_an_unreadable_message(node: MeshNode, token: str) -> None:
    stored = await _unreadable_messages(node)
    await node.messages.send(AGENT, "hello", sender="coder")
    for path in ("/v1/messages", f"/v1/inbox/{AGENT}"):
        answer = await _ask(node, "GET", path, token)
        assert answer.is_success, answer.text
        payloads = {each["sender_agent"]: each["payload"] for each in answer.json()["items"]}
        assert len(payloads) == 5
        if token == TOKEN:
            assert payloads["coder"] == "hello"
            assert list(payloads["deep"]) == list(payloads["bytes"]) == ["unreadable"]
    uuid = stored["deep"].message_uuid
    assert (await _ask(node, "GET", f"/v1/messages/{uuid}", token)).is_success


async def test_a_relayed_body_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    shared_mesh = SharedMesh(FILE, tmp_path, None, new_key(), has_relay=True)
    async with open_pair(shared_mesh) as pair:
        for depth in (_MAX + 1, _DEEP):
            answer = await pair.bring(letter(pair.sender, payload=_text(depth)), stored=False)
            assert_problem(answer, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_value")
        deep = {"message_uuid": nested(_DEEP)}
        assert_problem(await pair.post(deep), HTTPStatus.BAD_REQUEST, "bad_json")
        await pair.assert_serving()


# --- jobs ----------------------------------------------------------------------------------------


_MANIFESTS: Final = {
    "deep": f"""'{{"lease":{_text(_DEEP)}}}'""",
    "very deep": f"'{_text(1_500)}'",
    "broken": """'{"lease":'""",
    "no object": """'["lease"]'""",
    "bytes": "x'ff'",
}


@pytest.mark.parametrize("manifest", _MANIFESTS.values(), ids=_MANIFESTS)
async def test_a_job_with_an_unreadable_manifest_is_not_run_and_stops_no_other(
    node: MeshNode, manifest: str
) -> None:
    done: list[Any] = []

    @node.worker.handles(_KIND)
    async def run(context: JobContext) -> None:
        done.append(context.payload)

    bad, *good = await node.jobs.schedule_all([Manifest.of(kind=_KIND, payload=n) for n in range(3)])
    of_job = "WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?3"
    await write(node, f"UPDATE jobs SET manifest = {manifest} {of_job}", bad.job_id)
    listed = await _ask(node, "GET", "/v1/jobs")
    assert listed.is_success, listed.text
    assert len(listed.json()["items"]) == 3
    async with asyncio.timeout(PATIENCE_S), node.worker.running():
        for each in good:
            await node.jobs.wait(each.job_id)
    assert sorted(done) == [1, 2]
    job = await node.jobs.find(bad.job_id)
    assert (job.state, job.attempts) == (JobState.PENDING, 0)  # it is not what its author scheduled
    assert node.jobs.authorship.forged >= 1
    shown = await _ask(node, "GET", f"/v1/jobs/{bad.job_id}", READ_TOKEN)
    assert shown.is_success, shown.text


async def test_a_job_with_counters_that_no_node_can_raise_stops_no_other(node: MeshNode) -> None:
    @node.worker.handles(_KIND)
    async def run(_: JobContext) -> None:
        pass

    jobs = await node.jobs.schedule_all([Manifest.of(kind=_KIND, payload=n) for n in range(5)])
    values: dict[str, int | str] = {
        "claim_token": 2**63 - 1,
        "attempts": 2**63 - 1,
        "backoff_ms": "x",
        "claim_token ": "x",
    }
    for job, (column, value) in zip(jobs, values.items(), strict=False):
        of_job = "WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?3"
        await write(node, f"UPDATE jobs SET {column} = ?4 {of_job}", job.job_id, value)
    async with asyncio.timeout(PATIENCE_S), node.worker.running():
        await node.jobs.wait(jobs[-1].job_id)
    rows = await node.store.read("SELECT DISTINCT typeof(claim_token) FROM jobs", fresh=True)
    assert "real" not in [row[0] for row in rows]
    for job in jobs[:-1]:
        ended = await node.jobs.find(job.job_id)
        assert ended.state == JobState.FAILED
        assert str(ended.reason).startswith("unreadable: ")


# --- the op log ----------------------------------------------------------------------------------


async def test_an_op_nested_too_deeply_is_refused_and_an_old_one_is_shown_as_text(node: MeshNode) -> None:
    node.oplog.register(_NOTE)
    with pytest.raises(BadValue, match="at most 64 levels"):
        await node.oplog.append(_NOTE.name, {"deep": nested(_MAX)})
    done = await node.oplog.append(_NOTE.name, {"deep": nested(_MAX - 1)})
    await write(
        node,
        "UPDATE agent_oplog SET payload = ?3 WHERE (scope_id, repository_id, op_id) = (?1, ?2, ?4)",
        _text(_DEEP),
        done.key,
    )
    for token in (TOKEN, READ_TOKEN):
        answer = await _ask(node, "GET", "/v1/oplog", token, params={"limit": 500})
        assert answer.is_success, answer.text
        (entry,) = [each for each in answer.json()["items"] if each["op_id"] == done.key]
        assert entry["payload"] == _text(_DEEP)
