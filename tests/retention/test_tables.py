"""Every table has a rule; and conflicts, inboxes and nodes go by it."""

from __future__ import annotations

import sqlite3

from tests.retention.test_messages import prune
from tests.support.messages.messaging import write
from vox_mesh.model.retention.subjects import OTHERWISE, RULES
from vox_mesh.node import MeshNode
from vox_mesh.store.schema.statements import ddl
from vox_mesh.testing import MeshHarness

_COLUMNS = 'conflict_id, table_name, row_key, "left", left_node, strategy, state, resolved_at, resolution'
_CONFLICT = (
    f"INSERT INTO occ_conflicts (scope_id, repository_id, {_COLUMNS})"
    " VALUES (?1, ?2, ?3, 'memories', 'k', '{}', 'n', 's', ?4, ?5, ?6)"
)
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
