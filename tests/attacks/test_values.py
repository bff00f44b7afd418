"""Attacks with values that readers disagree about, counters that overflow, and locks of the mesh itself."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.messages.messaging import write
from tests.support.messages.relaying import AGENT, PATIENCE_S, TOKEN, address_of, assert_problem, open_pair
from tests.support.nodes.shared_mesh import SharedMesh
from tools.homes import FILE, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh.cli.app import run
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.errors import BadManifest, BadValue, DatabaseFault, MeshError
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.canonical import decode_row
from vox_mesh.model.jobs.manifest import parse_manifests
from vox_mesh.node import MeshNode
from vox_mesh.store import new_key

_LARGEST: Final = 2**63 - 1
_OF_MESH: Final = "WHERE scope_id = ?1 AND repository_id = ?2"
_COUNTERS: Final = {
    "lock_generations": ("generation",),
    "distributed_locks": ("fence_token",),
    "node_incarnations": ("incarnation", "beats"),
    "mesh_heartbeats": ("incarnation", "beats"),
}


@pytest.fixture(params=[FILE, MESH_REPLICA], ids=str)
def shared_mesh(request: pytest.FixtureRequest, tmp_path: Path) -> SharedMesh:
    """A mesh in a file, and one on a server."""
    case: HomeCase = request.param
    server: Server | None = None if case is FILE else request.getfixturevalue("shared_server")
    return SharedMesh(case, tmp_path, server, new_key(), has_relay=True)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[MeshNode]:
    """A node on a file, with its service."""
    shared_mesh = SharedMesh(FILE, tmp_path, None, new_key(), has_relay=True)
    async with Mesh.open(shared_mesh.settings("ann", token=TOKEN)) as node:
        yield node


async def _post(node: MeshNode, path: str, body: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    async with httpx.AsyncClient(base_url=address_of(node), timeout=PATIENCE_S, trust_env=False) as client:
        return await client.post(path, headers=headers, content=body)


# --- JSON that readers disagree about ------------------------------------------------------------

_AMBIGUOUS: Final = {
    "duplicate": '{"a": 1, "a": 2}',
    "duplicate by an escape": '{"a": 1, "\\u0061": 2}',
    "duplicate inside": '[{"b": {"a": 1, "a": 1}}]',
    "past 64 bits": "18446744073709551617",
    "past a signed integer": "[9223372036854775808]",
    "negative": '{"n": -9223372036854775809}',
    "long": "1" + 40 * "0",
}


@pytest.mark.parametrize("value", _AMBIGUOUS.values(), ids=_AMBIGUOUS)
async def test_a_value_that_would_be_changed_silently_is_refused(node: MeshNode, value: str) -> None:
    answer = await _post(node, "/v1/messages", f'{{"to": "{AGENT}", "sender": "coder", "payload": {value}}}')
    assert_problem(answer, HTTPStatus.BAD_REQUEST, "bad_json")
    answer = await _post(node, "/v1/jobs", f'{{"manifests": [{{"kind": "test.x", "payload": {value}}}]}}')
    assert_problem(answer, HTTPStatus.BAD_REQUEST, "bad_json")
    assert await node.messages.queries.listed() == []
    assert await node.jobs.queries.listed() == []


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", '"\\ud800"', '"\\udc00x"'])
async def test_what_is_no_json_is_refused(node: MeshNode, value: str) -> None:
    answer = await _post(node, "/v1/messages", f'{{"to": "{AGENT}", "sender": "coder", "payload": {value}}}')
    assert_problem(answer, HTTPStatus.BAD_REQUEST, "not_json")


async def test_a_field_that_is_given_twice_is_refused(node: MeshNode) -> None:
    body = f'{{"to": "{AGENT}", "sender": "coder", "sender": "boss", "payload": 1}}'
    assert_problem(await _post(node, "/v1/messages", body), HTTPStatus.BAD_REQUEST, "bad_json")


async def test_exact_integers_and_hard_texts_pass_unchanged(node: MeshNode) -> None:
    for value in (
        2**53 - 1,
        -(2**53) + 1,
        "\0",
        "\U0001f600",
        {"a:": "b:c", "t": "2026-01-01T00:00:00Z"},
        0.1,
    ):
        body = json.dumps({"to": AGENT, "sender": "coder", "payload": value})
        (sent,) = (await _post(node, "/v1/messages", body)).json()
        assert (await node.messages.queries.get(sent["message_uuid"])).body == value
    for inexact in (2**53, 2**63 - 1):
        body = json.dumps({"to": AGENT, "sender": "coder", "payload": inexact})
        assert_problem(await _post(node, "/v1/messages", body), HTTPStatus.UNPROCESSABLE_ENTITY, "bad_value")


async def test_the_relay_refuses_fields_that_are_given_twice(tmp_path: Path) -> None:
    shared_mesh = SharedMesh(FILE, tmp_path, None, new_key(), has_relay=True)
    async with open_pair(shared_mesh) as pair:
        answer = await pair.post(b'[{"message_uuid": "a", "message_uuid": "b"}]')
        assert_problem(answer, HTTPStatus.BAD_REQUEST, "bad_json")
        await pair.assert_serving()


@pytest.mark.parametrize("value", ['{"a": 1, "a": 2}', '{"n": 18446744073709551617}', "[" * 65 + "]" * 65])
def test_commands_refuse_such_values(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VOX_MESH_ENABLED", "1")
    for command in (
        ["send", "ben", value, "--from", "ann"],
        ["job", "schedule", "--kind", "test.x", "--payload", value],
        ["conflicts", "resolve", "x", "--value", value],
    ):
        assert run(command) == ExitCode.USAGE, command
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "Traceback" not in shown.err
        assert any(words in shown.err for words in ("occurs twice", "64 bits", "64 levels")), shown.err


@pytest.mark.parametrize("value", ['{"a": 1, "a": 2}', '{"n": 18446744073709551617}', "[" * 65 + "]" * 65])
def test_files_of_manifests_refuse_such_values(value: str) -> None:
    with pytest.raises(BadManifest):
        parse_manifests(f'{{"kind": "test.x", "payload": {value}}}')


@pytest.mark.parametrize("value", [{"$int": str(2**63)}, {"$real": "nan"}, {"$real": "inf"}])
def test_a_column_never_gets_another_value_than_was_given(value: dict[str, str]) -> None:
    with pytest.raises(BadValue):
        decode_row({"a": value})


# --- counters ------------------------------------------------------------------------------------


async def _types(mesh: Mesh) -> set[str]:
    """Return the types of all counters of the mesh."""
    found: set[str] = set()
    for table, columns in _COUNTERS.items():
        for column in columns:
            sql = f"SELECT DISTINCT typeof({column}) FROM {table} {_OF_MESH}"
            found |= {str(row[0]) for row in await mesh.store.read(sql, mesh.store.mesh_id, fresh=True)}
    return found


@pytest.mark.parametrize("planted", [_LARGEST, 2**53 - 1, 9.3e18, 1.5e16, "x"])
async def test_a_planted_generation_is_refused_and_no_token_becomes_a_float(
    shared_mesh: SharedMesh, planted: Any
) -> None:
    async with Mesh.open(shared_mesh.settings("ann")) as node:
        await node.locks.release(await node.locks.acquire("task:0"))
        await write(node, f"UPDATE lock_generations SET generation = ?3 {_OF_MESH}", planted)
        for key in ("task:1", ["task:2", "task:3"], "file:src/*.py"):
            with pytest.raises(DatabaseFault, match="no fencing token can be issued"):
                await node.locks.acquire(key)
        assert await node.locks.holders() == []
        rows = await node.store.read("SELECT count(*) FROM distributed_locks " + _OF_MESH, node.store.mesh_id)
        assert rows.value == 0


async def test_a_planted_token_of_one_key_keeps_no_other_key_from_its_locks(shared_mesh: SharedMesh) -> None:
    async with Mesh.open(shared_mesh.settings("ann")) as node:
        held = await node.locks.acquire("task:1")
        past = "expires_at = '2000-01-01T00:00:00.000Z'"
        await write(node, f"UPDATE distributed_locks SET fence_token = ?3, {past} {_OF_MESH}", _LARGEST)
        with pytest.raises(DatabaseFault, match="no fencing token can be issued"):
            await node.locks.acquire("task:1")
        other = await node.locks.acquire("task:2")
        assert held.fence_token < other.fence_token < 2**53
        assert "real" not in await _types(node)


@pytest.mark.parametrize("column", ["incarnation", "beats"])
async def test_a_node_whose_counters_were_planted_does_not_join(shared_mesh: SharedMesh, column: str) -> None:
    async with (
        Mesh.open(shared_mesh.settings("ann")) as node,
        Mesh.open(shared_mesh.settings("ben")) as other,
    ):
        of_node = f"{_OF_MESH} AND node_id = 'ann'"
        await write(other, f"UPDATE node_incarnations SET {column} = ?3 {of_node}", _LARGEST)
        with pytest.raises(MeshError, match="its counters in the database"):
            await node.locks.acquire("task:1")
        await node.close()
        with pytest.raises(DatabaseFault, match="its counters in the database"):
            async with Mesh.open(shared_mesh.settings("ann")):
                pass
        assert await _types(other) == {"integer"}


async def test_a_planted_count_of_heartbeats_does_not_hide_the_next_ones(shared_mesh: SharedMesh) -> None:
    async with Mesh.open(shared_mesh.settings("ann")) as node:
        await write(node, f"UPDATE mesh_heartbeats SET beats = ?3 {_OF_MESH}", _LARGEST)
        await node.run_once()
        sql = f"SELECT beats FROM mesh_heartbeats {_OF_MESH}"
        assert (await node.store.read(sql, node.store.mesh_id, fresh=True)).value == 1


# --- locks of the mesh itself --------------------------------------------------------------------


async def test_no_token_breaks_renews_or_releases_a_lock_of_the_mesh(node: MeshNode) -> None:
    own = await node.locks.acquire_own("rhythm", 60.0)
    named = {"lock_key": "mesh:rhythm"}
    held = {**named, "fence_token": own.fence_token}
    for path, body in {
        "/v1/locks/break": {**named, "reason": "mine"},
        "/v1/locks/release": held,
        "/v1/locks/renew": {**held, "ttl": "1d"},
        "/v1/locks": {"keys": ["mesh:rhythm"], "agent": "coder"},
    }.items():
        answer = await _post(node, path, json.dumps(body))
        assert_problem(answer, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_value")
        assert "mesh:" in answer.json()["detail"]
    with pytest.raises(BadValue, match="must not begin with 'mesh:'"):
        await node.locks.break_lock("mesh:rhythm", "mine")
    (holder,) = await node.locks.holders(["mesh:rhythm"])
    assert (holder.fence_token, holder.expires_at) == (own.fence_token, own.expires_at)
