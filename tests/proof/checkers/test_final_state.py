"""What is read of a database in the end, and what the witness in it has seen."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from proof import final_state
from proof.checkers.database import DATABASE_CHECKS
from proof.final_state import Row, final_rows, record_final_state
from proof.witness import INSTALL
from tests.proof.checkers.story import Story, faults
from tools.homes import FILE, MESH, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh
from vox_mesh.errors import DatabaseFault
from vox_mesh.store.schema.statements import ddl
from vox_mesh.store.script import Script, Statement


def _asking(connection: sqlite3.Connection) -> final_state.Ask:
    connection.row_factory = sqlite3.Row

    async def ask(statement: str) -> list[Row]:
        return [dict(row) for row in connection.execute(statement)]

    return ask


@pytest.fixture
def connection() -> sqlite3.Connection:
    """An empty database of the mesh, with its witness."""
    connection = sqlite3.connect(":memory:")
    for statement in (*ddl(), *INSTALL, *INSTALL):
        connection.execute(statement)
    return connection


async def test_large_tables_are_read_in_pages(connection: sqlite3.Connection) -> None:
    rows = [("s", "r", f"it's {number}", "a", "1") for number in range(1_203)]
    columns = "scope_id, repository_id, memory_key, content, written_at"
    insert = f"INSERT INTO memories ({columns}) VALUES (?, ?, ?, ?, ?)"
    with closing(connection):
        connection.executemany(insert, rows)
        story = Story()
        await record_final_state(_asking(connection), story.node("stage"))
    history = story.history()
    assert {row["memory_key"] for row in final_rows(history, "memories")} == {row[2] for row in rows}
    assert len(final_rows(history, "memories")) == len(rows)
    assert final_rows(history, "jobs") == []
    assert faults(DATABASE_CHECKS, "integrity", story) == []


async def test_a_server_that_does_not_look_at_itself_is_not_blamed(connection: sqlite3.Connection) -> None:
    plain = _asking(connection)

    async def ask(statement: str) -> list[Row]:
        if statement.startswith("PRAGMA"):
            raise DatabaseFault("not here")
        return await plain(statement)

    story = Story()
    with closing(connection):
        await record_final_state(ask, story.node("stage"))
    (event,) = story.history().notes("final.integrity")
    assert event.data["ok"] is None


def test_damage_and_a_replica_that_differs_are_found() -> None:
    story = Story()
    story.node("stage").note("final.integrity", ok=False, said=["row 1 missing"])
    story.node("stage").note("final.replica", equal=True, player="ada")
    assert faults(DATABASE_CHECKS, "replica-equal", story) == []
    story.node("stage").note("final.replica", equal=False, player="bob")
    assert "row 1 missing" in faults(DATABASE_CHECKS, "integrity", story)[0]
    assert "bob" in faults(DATABASE_CHECKS, "replica-equal", story)[0]


@pytest.mark.parametrize("case", [FILE, MESH], ids=str)
async def test_the_witness_sees_every_move_by_the_databases_clock(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # Not the shared server: other processes refuse a database with these triggers.
    server: Server | None = request.getfixturevalue("server") if case.needs_server else None
    settings = case.settings(tmp_path, server)
    async with Mesh.open(settings) as node:
        await node.store.write(Script(*map(Statement, INSTALL)))
        job = await node.jobs.schedule("proof.none")
        await node.jobs.abort(job)
        message = await node.messages.send("bob", {})
        (claimed,) = await node.messages.inbox("bob")
        await node.messages.ack(claimed)

        async def ask(statement: str) -> list[Row]:
            return [row.as_dict() for row in await node.store.read(statement, fresh=True)]

        story = Story()
        await record_final_state(ask, story.node("stage"))
        now_ms = node.clock.now_ms
    history = story.history()
    jobs = [row for row in final_rows(history, "proof_job_moves") if row["job_id"] == job.job_id]
    assert [row["state"] for row in jobs] == ["pending", "aborted"]
    assert all(abs(row["at_ms"] - now_ms) < 60_000 for row in jobs)
    messages = final_rows(history, "proof_message_moves")
    states = [row["state"] for row in messages if row["message_uuid"] == message.message_uuid]
    assert states == ["stored", "delivered", "acked"]
    assert faults(DATABASE_CHECKS, "integrity", story) == []
