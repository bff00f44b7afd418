"""Every table has a rule; and conflicts, inboxes and nodes go by it."""

from __future__ import annotations

import sqlite3

from tests.retention.test_messages import prune
from tests.support.messages.messaging import write
from vox_mesh.model.retention.subjects import OTHERWISE, RULES
from vox_mesh.node import MeshNode
from vox_mesh.store.rows import Value
from vox_mesh.store.schema.statements import ddl
from vox_mesh.store.script import Script, Statement
from vox_mesh.testing import MeshHarness

_COLUMNS = 'conflict_id, table_name, row_key, "left", left_node, strategy, state, resolved_at, resolution'
_CONFLICT = (
    f"INSERT INTO occ_conflicts (scope_id, repository_id, {_COLUMNS})"
    " VALUES (?1, ?2, ?3, 'memories', 'k', '{}', 'n', 's', ?4, ?5, ?6)"
)
_OF_MESH = ("scope_id", "repository_id")
_NAME = "stale"
_LONG_AGO = "2020-01-01T00:00:00.000Z"
_LOCK: dict[str, Value] = {"acquired_at": _LONG_AGO, "expires_at": _LONG_AGO}

STALE: dict[str, dict[str, Value]] = {
    "script_results": {"since_s": 1},
    "script_answers": {},
    "distributed_locks": _LOCK,
    "lock_shares": _LOCK,
    "lock_waiters": {"waits_since": _LONG_AGO, "alive_until": _LONG_AGO},
    "lock_patterns": {},
    "lock_overlaps": {},
    "lock_sessions": {},
    "agent_presence": {},
    "node_key_requests": {},
    "grants": {},
    "grant_usage": {"kind": "act"},
    "grant_reservations": {},
    "approvals": {},
    "agent_tokens": {},
    "a2a_receivers": {},
    "job_takes": {},
    "mcp_tasks": {},
    "job_counts": {"jobs": 0},
    "job_claims": {},
    "conversations": {"kind": "graph"},
    "graph_checkpoints": {},
    "graph_writes": {},
    "size_samples": {},
    "help_threads": {"state": "kept"},
    "phrase_ends": {"outcome": "done", "beats": "{}", "waited": "{}", "resources": "{}"},
    "job_tallies": {"delays": "{}"},
    "phrase_checkpoints": {},
    "spend_reservations": {},
    "token_spend": {},
}
"""A row of each table that has no policy, and whose rows go by time: columns that are no times or names."""

FEW = {
    # One row, or one for each thing that people or agents define, and remove.
    *("mesh_schema", "database_clock", "refusals", "lock_generations", "mesh_owner", "admitted_agents"),
    *("admitted_nodes", "job_kinds", "job_drains", "job_crons", "job_rules", "memories", "agent_sessions"),
    *("retention_policies", "retention_progress", "tempo_incidents", "budgets", "spend_limits"),
    # Pruned by the node that forwards, at a bound.
    "scope_arrivals",
    # One for each name or key of a node: the log is verified by them, and former processes are fenced.
    *("node_incarnations", "node_versions", "node_keys"),
    # The log, and what an entry of it is.
    *("agent_oplog", "deferred_ops"),
    # Removed when the job has ended, which is tested with questions; or with the session, tested there.
    *("job_questions", "job_waits", "job_cleanups", "session_items"),
    # The newest ones, tested elsewhere: the next row follows from the last.
    *("store_epochs", "tempo_policies", "status_claims", "status_signatures", "bar_reports"),
}
"""The tables that nothing makes grow by itself."""

_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"


def test_each_table_is_bounded_by_a_policy_or_otherwise() -> None:
    with sqlite3.connect(":memory:") as memory:
        for statement in ddl():
            memory.execute(statement)
        found = memory.execute(_TABLES)
        tables = {row[0] for row in found}
    by_policy = {table for rule in RULES.values() for table in rule.tables}
    assert by_policy | OTHERWISE.keys() == tables
    assert not by_policy & OTHERWISE.keys()
    assert STALE.keys() | FEW == OTHERWISE.keys()
    assert not STALE.keys() & FEW


async def test_without_a_policy_rows_go_by_time_alone(harness: MeshHarness) -> None:
    node = await harness.node()
    for table, values in STALE.items():
        await write_stale(node, table, values)
    for passed in ("2d", "8d", "80d", "400d"):
        await harness.clock.advance(passed)
        await node.run_once()
    await node.retention.prune_all()
    left = []
    for table in STALE:
        name = await stale_column(node, table)
        found = await node.store.read(f'SELECT 1 FROM {table} WHERE "{name}" = ?', (_NAME,), fresh=True)
        left += [table] if found else []
    assert left == []


async def columns_of(node: MeshNode, table: str) -> list[tuple[str, str, bool]]:
    """The columns of a table that must have a value: name, type, and whether it is a time."""
    rows = await node.store.read(f"PRAGMA table_info({table})", fresh=True)
    return [
        (row["name"], row["type"], row["name"].endswith("_ms"))
        for row in rows
        if row["name"].endswith("_ms") or (row["notnull"] and row["dflt_value"] is None)
    ]


async def stale_column(node: MeshNode, table: str) -> str:
    """A column by which the row is known."""
    return next(
        name
        for name, type_, _ in await columns_of(node, table)
        if type_ == "TEXT" and name not in (*_OF_MESH, *STALE[table], "job_id")
    )


async def write_stale(node: MeshNode, table: str, values: dict[str, Value]) -> None:
    """Write a row whose times are all in 1970."""
    row: dict[str, Value] = dict(zip(_OF_MESH, node.store.mesh_id, strict=True))
    for name, type_, is_time in await columns_of(node, table):
        default = 1 if is_time or type_ in ("INTEGER", "REAL") else "0" * 64 if name == "job_id" else _NAME
        row.setdefault(name, default)
    row |= values
    names = ", ".join(f'"{name}"' for name in row)
    places = ", ".join("?" * len(row))
    sql = f"INSERT INTO {table} ({names}) VALUES ({places})"
    await node.store.write(Script(Statement(sql, tuple(row.values()))))


async def keys(node: MeshNode, column: str, table: str) -> list[str]:
    """The values of a column, in order."""
    sql = f"SELECT {column} FROM {table} WHERE scope_id = ?1 AND repository_id = ?2 ORDER BY 1"
    return [str(row[0]) for row in await node.store.read(sql, node.store.mesh_id, fresh=True)]


async def test_resolved_conflicts_go_by_age_and_number(node: MeshNode) -> None:
    await write(node, _CONFLICT, "open", "open", None, None)
    await write(node, _CONFLICT, "old", "resolved", "2020-01-01T00:00:00.000Z", "{}")
    for day in (1, 2, 3):
        await write(node, _CONFLICT, f"new{day}", "resolved", f"2099-01-0{day}T00:00:00.000Z", "{}")
    assert await prune(node) == {"conflicts": (1, 0)}
    await node.retention.set("conflicts", kind="memories", age_ms=None, max_rows=2)
    assert await prune(node) == {"conflicts": (1, 0)}
    assert await keys(node, "conflict_id", "occ_conflicts") == ["new2", "new3", "open"]


async def test_an_inbox_that_is_not_received_from_goes_when_it_is_empty(node: MeshNode) -> None:
    for agent in ("y", "z"):
        await write(node, "INSERT INTO a2a_inboxes VALUES (?1, ?2, ?3, '', ?4)", agent, 1 + ord(agent))
    await node.messages.send("z", 1, sender="a")
    assert await prune(node) == {"inboxes": (1, 1)}
    assert await keys(node, "receiver_agent", "a2a_inboxes") == ["z"]


async def test_nodes_that_are_gone_are_removed_and_may_come_back(harness: MeshHarness) -> None:
    one = await harness.node("one")  # the owner
    await harness.node("two")
    await harness.node("three")
    await harness.kill("two")
    await harness.leave("three")
    await harness.clock.advance("29d")
    await one.run_once()
    assert await keys(one, "node_id", "mesh_heartbeats") == ["one", "three", "two"]
    await harness.clock.advance("3d")
    await one.run_once()
    await one.retention.prune_all()
    for table in ("mesh_heartbeats", "node_vitals"):
        assert await keys(one, "node_id", table) == ["one"]
    assert "two" in await keys(one, "node_id", "node_keys")
    await harness.node("two")
    assert await keys(one, "node_id", "mesh_heartbeats") == ["one", "two"]
    assert [each.problem for each in await one.oplog.verify_chains() if each.problem] == []


async def test_the_owner_and_a_node_with_artifacts_stay(harness: MeshHarness) -> None:
    await harness.node("one")  # the owner
    two = await harness.node("two")
    await harness.node("three")
    for name in ("one", "three"):
        await harness.leave(name)
    columns = "(scope_id, repository_id, hash, size, type, node_id, created_ms)"
    await write(two, f"INSERT INTO job_artifacts {columns} VALUES (?1, ?2, 'h', 9, 't', 'three', 1)")
    await harness.clock.advance("40d")
    await two.run_once()
    await two.retention.prune_all()
    assert await keys(two, "node_id", "mesh_heartbeats") == ["one", "three", "two"]
    await write(two, "DELETE FROM job_artifacts WHERE scope_id = ?1 AND repository_id = ?2")
    await two.retention.prune_all()
    assert await keys(two, "node_id", "mesh_heartbeats") == ["one", "two"]
