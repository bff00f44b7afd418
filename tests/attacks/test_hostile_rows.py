"""Rows that no node wrote: one of them, in any table, must not stop the work of the others."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tools.homes import FILE
from vox_mesh import JobContext, Mesh
from vox_mesh.errors import DatabaseFault
from vox_mesh.node import MeshNode
from vox_mesh.nodes.census import take_census
from vox_mesh.views.jobs import job_counts
from vox_mesh.views.overview import OverviewReader

PATIENCE_S = 30.0


class Attacker:
    """Writes to the file of a mesh, past its nodes."""

    def __init__(self, folder: Path, mesh: tuple[str, str]) -> None:
        self._file = folder / "vox" / "local.db"
        self._mesh = mesh

    def copy(self, table: str, **changed: Any) -> None:
        """Insert a row like an existing one, with some columns changed."""
        with closing(sqlite3.connect(self._file, timeout=PATIENCE_S)) as database, database:
            database.row_factory = sqlite3.Row
            row = dict(database.execute(f"SELECT * FROM {table} LIMIT 1").fetchone()) | changed
            self._insert(database, table, row)

    def insert(self, table: str, **row: Any) -> None:
        """Insert a row of this mesh."""
        scope_id, repository_id = self._mesh
        with closing(sqlite3.connect(self._file, timeout=PATIENCE_S)) as database, database:
            self._insert(database, table, {"scope_id": scope_id, "repository_id": repository_id, **row})

    @staticmethod
    def _insert(database: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
        names, places = ", ".join(row), ", ".join("?" * len(row))
        database.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", tuple(row.values()))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[MeshNode]:
    async with Mesh.open(FILE.settings(tmp_path, None, node_id="ann")) as node:
        yield node


@pytest.fixture
def attacker(node: MeshNode, tmp_path: Path) -> Attacker:
    return Attacker(tmp_path, node.store.mesh_id)


async def assert_works(node: MeshNode) -> None:
    """Run a job, and look at everything."""
    done = asyncio.Event()

    @node.worker.handles("build")
    async def build(_: JobContext) -> None:
        done.set()

    await node.jobs.schedule("build", {})
    async with asyncio.timeout(PATIENCE_S), node.worker.running():
        await done.wait()
    assert node.store.faults.counts == {}
    await OverviewReader(node).read()
    await take_census(node.store, node.clock, kinds=10, budgets=10, timeout=PATIENCE_S)
    assert "ann" in [each.node_id for each in await node.nodes.all()]
    assert [each.age_s for each in await node.locks.holders() if each.age_s < 0] == []
    assert await node.jobs.queries.count_open(10) >= 0
    assert "build" in [each.kind for each in await job_counts(node)]


@pytest.mark.parametrize(
    "columns",
    [
        {"kinds": '[{"a":1}]', "capacity": 4},
        {"kinds": "not JSON", "capacity": 4},
        {"tick_ms": 0},
        {"tick_ms": "soon"},
        {"last_seen_ms": b"\x00", "tick_ms": b"\x01"},
        {"capacity": "many"},
    ],
    ids=str,
)
async def test_a_planted_heartbeat_does_not_stop_workers(
    node: MeshNode, attacker: Attacker, columns: dict[str, Any]
) -> None:
    attacker.copy("mesh_heartbeats", node_id="evil", **columns)
    await assert_works(node)


async def test_planted_budgets_times_and_counts_do_not_stop_workers(
    node: MeshNode, attacker: Attacker
) -> None:
    attacker.insert("budgets", subject="account:evil", document="not JSON", since_ms=1, hlc="x")
    attacker.insert("tempo_incidents", reason=b"\x01", declared_ms=2**60, node_id=1, op_id="evil")
    attacker.insert("job_counts", kind="evil", state="no such state", jobs=1)
    await node.locks.acquire("mine", agent="ann", ttl=60)
    attacker.copy("distributed_locks", lock_key="evil", acquired_at="no time", expires_at="x")
    assert {each.lock_key for each in await node.locks.holders()} == {"mine", "evil"}
    await assert_works(node)


async def test_entries_whose_ids_have_no_sum_do_not_stop_workers(node: MeshNode, attacker: Attacker) -> None:
    await node.rules.add("rule", "AddCron", {"kind": "build"})
    kinds = ("AddCron", "RemoveRule", "RekeyNode", "RouteKind", "TransferOwnership")
    for seq, kind in enumerate(kinds * 2, 1):
        names = {"op_id": f"planted-{seq}", "hlc": f"planted-{seq:02}", "node_id": "planted"}
        attacker.copy("agent_oplog", **names, id=2**62 + seq, seq=seq, kind=kind)
    await assert_works(node)
    await node.crons.fire_due()
    await node.rules.fire()


@pytest.mark.parametrize("correction", ["soon", b"\x00", 0.5])
async def test_a_node_that_can_t_read_the_clock_says_so(
    node: MeshNode, attacker: Attacker, tmp_path: Path, correction: Any
) -> None:
    settings = FILE.settings(tmp_path / "late", None, node_id="late", db_path=tmp_path / "vox" / "local.db")
    with closing(sqlite3.connect(tmp_path / "vox" / "local.db", timeout=PATIENCE_S)) as database, database:
        database.execute("INSERT INTO database_clock (id, correction_ms) VALUES (1, ?)", (correction,))
    with pytest.raises(DatabaseFault, match="clock can't be read"):
        async with Mesh.open(settings):
            pass


@pytest.mark.parametrize(
    "change", ["node_incarnations SET incarnation = 'x'", "store_epochs SET detected_ms = x'00'"]
)
async def test_a_node_whose_own_numbers_are_none_says_so(node: MeshNode, tmp_path: Path, change: str) -> None:
    await node.close()
    with closing(sqlite3.connect(tmp_path / "vox" / "local.db", timeout=PATIENCE_S)) as database, database:
        database.execute(f"UPDATE {change}")
    again = FILE.settings(tmp_path, None, node_id="ann", scope_id=node.store.mesh_id[0])
    with pytest.raises(DatabaseFault, match=r"whole number|no integers"):
        async with Mesh.open(again):
            pass


async def test_an_epoch_that_is_no_number_counts_as_a_rollback(node: MeshNode, tmp_path: Path) -> None:
    await node.close()
    with closing(sqlite3.connect(tmp_path / "vox" / "local.db", timeout=PATIENCE_S)) as database, database:
        database.execute("UPDATE store_epochs SET epoch = 'x'")
    again = FILE.settings(tmp_path, None, node_id="ann", scope_id=node.store.mesh_id[0])
    async with Mesh.open(again) as started:
        await assert_works(started)
        rows = await started.store.read("SELECT epoch FROM store_epochs WHERE typeof(epoch) = 'integer'")
        assert [row["epoch"] for row in rows] == [0, 1]
