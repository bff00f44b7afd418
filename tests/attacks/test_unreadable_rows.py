"""Attacks with rows that no client can read: text that is not UTF-8, counters and JSON that are none."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from tests.cli.conftest import VoxCommand
from tests.support.messages.messaging import write
from tests.support.nodes.shared_mesh import SharedMesh
from tools.homes import FILE, MESH, MESH_HTTP, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh.errors import BadStatement, ConstraintFailed, UnreadableText
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode
from vox_mesh.store import new_key
from vox_mesh.store.schema.statements import ddl, named
from vox_mesh.store.script import Answer, Outcome, Script, Statement
from vox_mesh.views.overview import overview

_KIND: Final = "test.row"
_PATIENCE_S: Final = 30.0
_NOT_UTF_8: Final = "CAST(x'61ff' AS TEXT)"
_PLANTED: Final = {
    "not UTF-8": (_NOT_UTF_8, "0"),
    "bytes": ("x'ff'", "0"),
    "text for numbers": ("'x'", "'x'"),
    "bytes for numbers": ("x'fe'", "x'ff'"),
    "large numbers": ("'y'", "9223372036854775807"),
}
"""What the text columns and the integer columns of a planted row hold."""

_REMEMBER: Final = """
    INSERT INTO memories (scope_id, repository_id, memory_key, written_at) VALUES (?, ?, 'key', '')
"""
_WHOLE_DATABASE: Final = frozenset({"mesh_schema", "database_clock", "refusals", "lock_generations"})


@pytest.fixture(params=[FILE, MESH_REPLICA], ids=str)
def mesh(request: pytest.FixtureRequest, tmp_path: Path) -> SharedMesh:
    """A mesh in a file, and one on a server."""
    return _make_mesh(request, tmp_path)


@pytest.fixture(params=(FILE, MESH, MESH_HTTP), ids=str)
def direct_mesh(request: pytest.FixtureRequest, tmp_path: Path) -> SharedMesh:
    """A mesh for each way in which an answer arrives."""
    return _make_mesh(request, tmp_path)


def _make_mesh(request: pytest.FixtureRequest, folder: Path) -> SharedMesh:
    case: HomeCase = request.param
    server: Server | None = None if case is FILE else request.getfixturevalue("shared_server")
    return SharedMesh(case, folder, server, new_key())


@pytest.fixture
async def node(mesh: SharedMesh) -> AsyncIterator[MeshNode]:
    """A node that runs."""
    async with Mesh.open(mesh.settings("ann")) as node:
        yield node


@pytest.fixture
def vox(tmp_path: Path) -> VoxCommand:
    """Commands on a file."""
    return VoxCommand(tmp_path, VOX_MESH_ENABLED="1")


def _rows(text: str, number: str) -> Iterator[tuple[str, str]]:
    """The table and the `INSERT` of a planted row, for each table of the mesh."""
    with closing(sqlite3.connect(":memory:")) as schema:
        for statement in ddl():
            schema.execute(statement)
        for table, sql in schema.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
        ).fetchall():
            if table in _WHOLE_DATABASE or table.startswith("sqlite_"):
                continue
            values = {}
            for _, name, kind, _, _, is_key in schema.execute(f"PRAGMA table_info({table})"):
                one_of = re.search(rf"\b{name} IN \('(\w+)'", sql)
                if name in ("scope_id", "repository_id"):
                    values[name] = {"scope_id": "?1", "repository_id": "?2"}[name]
                elif one_of:
                    values[name] = f"'{one_of[1]}'"
                elif name == "priority":
                    values[name] = "1"
                elif not (name == "id" and is_key) and (name, table) not in _NULL:
                    values[name] = text if kind == "TEXT" else number
            yield table, f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(values.values())})"


_NULL: Final = frozenset(
    {("ended_ms", "a2a_messages"), ("ended_ms", "jobs"), ("lease_until_ms", "jobs")}
    | {("resolved_at", "occ_conflicts"), ("resolution", "occ_conflicts")}
)


async def _plant(node: MeshNode, text: str, number: str) -> set[str]:
    planted = set()
    for table, sql in _rows(text, number):
        try:
            await write(node, sql)
            planted.add(table)
        except (ConstraintFailed, BadStatement):
            pass
    return planted


async def _work(node: MeshNode) -> None:
    """Have a node do everything once."""
    done = asyncio.Event()

    @node.worker.handles(_KIND)
    async def run(_: JobContext) -> None:
        done.set()

    async with asyncio.timeout(_PATIENCE_S):
        job = await node.jobs.schedule(_KIND, payload=new_key())
        async with node.worker.running():
            await node.jobs.wait(job.job_id)
        await node.messages.send("bob", "hello", sender="coder")
        async for message in node.messages.receive("bob"):
            await node.messages.ack(message)
            break
        async with node.locks.hold(new_key(), agent="coder"):
            pass
        async with node.locks.hold([new_key(), new_key()], agent="coder"):
            pass
        await node.run_once()
        await node.catch_up()
        await node.oplog.verify()
        assert node.identity.node_id in [each.node_id for each in (await overview(node)).nodes]
    assert done.is_set()
    assert node.store.circuit in ("closed", "off")
    assert dict(node.store.faults.latest) == {}
    assert {part.fault for part in node.supervisor.parts.values()} == {""}


@pytest.mark.parametrize("values", _PLANTED.values(), ids=_PLANTED)
async def test_a_planted_row_in_each_table_stops_no_node(
    mesh: SharedMesh, node: MeshNode, values: tuple[str, str]
) -> None:
    assert len(await _plant(node, *values)) > 30
    await _work(node)
    async with Mesh.open(mesh.settings("ben")) as other:
        await _work(other)


# --- answers -------------------------------------------------------------------------------------


async def test_one_value_that_is_not_utf_8_fails_no_answer(direct_mesh: SharedMesh) -> None:
    async with Mesh.open(direct_mesh.settings("ann")) as node:
        await _plant_inbox(node, _NOT_UTF_8, "1")
        await _plant_inbox(node, "'fine'", "2")
        await _plant_inbox(node, "x'ff'", "3")
        sql = "SELECT receiver_agent, seen_ms, NULL AS empty, 1.5 AS half FROM a2a_inboxes WHERE scope_id = ?"
        for _ in range(7):  # as often as would open the circuit breaker
            rows = await node.store.read(f"{sql} ORDER BY seen_ms", [node.store.mesh_id[0]], fresh=True)
            assert rows.columns == ("receiver_agent", "seen_ms", "empty", "half")
            assert [tuple(row) for row in rows] == [
                ("a\ufffd", 1, None, 1.5),
                ("fine", 2, None, 1.5),
                (b"\xff", 3, None, 1.5),
            ]
        assert node.store.circuit in ("closed", "off")


async def test_a_write_whose_answer_is_not_utf_8_fails_alone_and_is_not_retried(
    direct_mesh: SharedMesh,
) -> None:
    async with Mesh.open(direct_mesh.settings("ann")) as node:
        await _plant_inbox(node, _NOT_UTF_8, "1")
        sql = "SELECT receiver_agent FROM a2a_inboxes WHERE scope_id = ?"
        answer = Answer(sql, (node.store.mesh_id[0],), ("receiver_agent",))
        answering = Script(Statement("UPDATE memories SET content = '' WHERE false"), answer=answer)
        good = Script(Statement(_REMEMBER, node.store.mesh_id))
        bad, done = await node.store.write_all([answering, good])
        if direct_mesh.case is FILE:
            assert isinstance(bad, Outcome)
            assert bad.rows.value == "a\ufffd"
        else:
            assert isinstance(bad, UnreadableText), bad
            assert "vox-mesh doctor" in bad.hint
        assert isinstance(done, Outcome)
        assert node.store.circuit in ("closed", "off")


async def _plant_inbox(node: MeshNode, name: str, seen: str) -> None:
    columns = "scope_id, repository_id, receiver_agent, node_id, seen_ms"
    await write(node, f"INSERT INTO a2a_inboxes ({columns}) VALUES (?1, ?2, {name}, 'x', {seen})")


# --- jobs ----------------------------------------------------------------------------------------


async def test_planted_counters_and_ids_in_front_of_the_queue_stop_no_other_job(node: MeshNode) -> None:
    done = asyncio.Event()

    @node.worker.handles(_KIND)
    async def run(_: JobContext) -> None:
        done.set()

    for column, value in _UNCLAIMABLE.items():
        await _plant_jobs(node, 60, {column.strip(): value})
    job = await node.jobs.schedule(_KIND)
    async with asyncio.timeout(_PATIENCE_S), node.worker.running():
        await node.jobs.wait(job.job_id)
    assert (await node.store.read(_REASONS, node.store.mesh_id, fresh=True))[0].as_dict() == {
        "jobs": 60 * len(_UNCLAIMABLE),
        "state": "failed",
        "reason": "unreadable: a column of its row holds a value that no node writes",
    }
    assert done.is_set()
    assert dict(node.store.faults.latest) == {}


async def test_planted_counters_of_held_jobs_keep_no_other_lease_from_expiring(node: MeshNode) -> None:
    held = {"state": "'running'", "claimer": "'x'"}
    await _plant_jobs(node, 100, {"attempts": "'x'", "lease_until_ms": "1", **held})
    await _plant_jobs(node, 1, {"lease_until_ms": "'x'", **held})
    await _plant_jobs(node, 1, {"lease_until_ms": "2", "manifest": """'{"sound":1}'""", **held})
    await write(
        node,
        "INSERT INTO job_crons (scope_id, repository_id, name, expression, timezone, manifest, options,"
        " next_ms, added_ms) VALUES (?1, ?2, 'x', '', '', '', '', 'x', 0)",
    )
    await node.catch_up()
    sql = "SELECT state FROM jobs WHERE scope_id = ? AND manifest = '{\"sound\":1}'"
    assert (await node.store.read(sql, [node.store.mesh_id[0]], fresh=True)).value == "pending"
    assert dict(node.store.faults.latest) == {}


_UNCLAIMABLE: Final = {
    "claim_token": "9223372036854775807",
    "claim_token ": "'x'",
    "attempts": "1.5",
    "job_id": "CAST(x'ff' || randomblob(8) AS TEXT)",
    "seed": "x'ff'",
}
_REASONS: Final = """
    SELECT count(*) AS jobs, state, reason FROM jobs
    WHERE scope_id = ? AND repository_id = ? AND manifest = '{}' GROUP BY state, reason
"""


async def _plant_jobs(node: MeshNode, count: int, columns: dict[str, str]) -> None:
    """Plant jobs in front of all others, each with these expressions in its columns."""
    values = {
        "scope_id": "?1",
        "repository_id": "?2",
        "kind": "?3",
        "job_id": "lower(hex(randomblob(32)))",
        "ulid": "hex(randomblob(13))",
        "priority": "3",
        "not_before_ms": "0",
        "max_attempts": "3",
        "backoff_ms": "0",
        "created_ms": "0",
        "scheduled_by": "'x'",
        "seed": "'x'",
        "last_op": "'x'",
        "manifest": "'{}'",
        **columns,
    }
    source = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?4)"
    await write(
        node,
        f"INSERT INTO jobs ({', '.join(values)}) {source} SELECT {', '.join(values.values())} FROM n",
        *(_KIND, count),
    )


async def test_routes_that_are_no_json_do_not_stop_claims(node: MeshNode) -> None:
    await node.roles.route_kind(_KIND, node.identity.node_id)
    await write(
        node,
        "UPDATE agent_oplog SET payload = '{' "
        "WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'RouteKind'",
    )
    await _work(node)


# --- the clock and doctor ------------------------------------------------------------------------


@pytest.mark.parametrize("planted", ["9223372036854775807", "'x'", "x'ff'"])
def test_a_planted_epoch_of_the_clock_is_replaced_by_an_integer(planted: str) -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        for statement in ddl():
            database.execute(statement)
        database.execute(f"INSERT INTO database_clock (id, correction_ms, epoch) VALUES (1, 5, {planted})")
        epoch = database.execute(named("database_clock")["read"]).fetchone()[2]
        assert database.execute(named("database_clock")["correct"], (epoch, 1_000, 0)).fetchall() == [(-995,)]
        assert database.execute("SELECT epoch FROM database_clock").fetchall() == [(1,)]


def test_doctor_names_the_rows_and_how_to_delete_them(vox: VoxCommand) -> None:
    vox("init")
    path = vox.folder / ".vox/cache/db/local.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        columns = "scope_id, repository_id, memory_key, written_at, content"
        rows = f"('s', 'r', 'ok', '', 'é'), ('s', 'r', {_NOT_UTF_8}, '', NULL)"
        rows += ", ('s', 'r', 'k', CAST(x'00ff' AS TEXT), '')"
        database.execute(f"INSERT INTO memories ({columns}) VALUES {rows}")
        (finding,) = (each for each in vox("doctor", "--json").document if each["check"] == "unreadable_text")
        assert finding["state"] == "fail"
        assert finding["found"] == "not UTF-8: memories.memory_key; memories.written_at"
        for statement in finding["advice"].split(": ")[1].split("; "):
            database.execute(statement)
        assert database.execute("SELECT memory_key FROM memories").fetchall() == [("ok",)]
