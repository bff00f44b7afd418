"""Processes that start while the database's clock is wrong: they expect the time that the others do."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.support.nodes.stepped_databases import in_memory
from tests.support.nodes.stepped_meshes import SteppedMesh, mesh_of, ticks
from tests.support.oplog.authoring import NOTE, scene
from vox_mesh.errors import DatabaseClockJumped, LockHeld
from vox_mesh.store.batch import Batch

TTL_S: Final = 60.0


@pytest.mark.parametrize("step_s", [5.5, 7.0, 9.5])
async def test_a_step_within_the_time_that_a_request_may_be_late_is_decided_too(
    tmp_path: Path, step_s: float
) -> None:
    async with mesh_of(in_memory, tmp_path) as mesh:
        mesh.database.set_ahead(step_s)
        for node in mesh.nodes:
            await ticks(node)
        await mesh.settle()
        for node in mesh.nodes:
            await node.oplog.append(NOTE, {})
            assert abs(node.clock.correction_ms + step_s * 1_000) < 1_000


STEP_S: Final = 30.0


@pytest.mark.parametrize("remembers", [False, True])
async def test_a_node_that_starts_in_the_middle_of_a_step_expects_what_the_others_do(
    tmp_path: Path, remembers: bool
) -> None:
    async with mesh_of(in_memory, tmp_path, "ab") as mesh:
        a, _ = mesh.nodes
        async with mesh.there.node("c", remembers=remembers) as c:
            await c.run_once()
        await a.locks.acquire("x", ttl=STEP_S - 5)
        mesh.database.set_ahead(STEP_S)
        assert not await ticks(a), "it waits for the others"
        async with mesh.there.node("c", remembers=remembers) as c:
            with pytest.raises(LockHeld):
                await c.locks.acquire("x", ttl=TTL_S)
            assert abs(c.clock.now_ms - a.clock.now_ms) < 1_000


@pytest.mark.parametrize("step_s", [STEP_S, -STEP_S])
async def test_a_node_that_starts_knows_a_step_no_better_than_its_witness(
    tmp_path: Path, step_s: float
) -> None:
    async with mesh_of(in_memory, tmp_path, "ab") as mesh:
        a, _ = mesh.nodes
        await a.locks.acquire("x", ttl=TTL_S)
        mesh.database.set_ahead(step_s)
        assert not await ticks(a)
        inexact = Batch()
        inexact.add("UPDATE clock_witnesses SET low_ms = low_ms - 3000")
        await mesh.database.engine.run(inexact.seal())
        async with mesh.there.node("c") as c:
            with pytest.raises(LockHeld):
                await c.locks.acquire("x", ttl=TTL_S)
            assert abs(c.clock.now_ms - a.clock.now_ms) < 1_000, "no lease ends 3 s too soon"
            assert abs(c.clock.correction_ms + step_s * 1_000) < 1_000


async def test_heartbeats_tell_a_node_that_starts_that_the_clock_was_set_back(tmp_path: Path) -> None:
    async with mesh_of(in_memory, tmp_path, "ab") as mesh:
        a, b = mesh.nodes
        mesh.database.set_ahead(-STEP_S)
        async with mesh.there.node("c") as c:
            with pytest.raises(DatabaseClockJumped):
                await c.locks.acquire("y", ttl=TTL_S)
            await mesh.settle(a, b, c)
            assert abs(c.clock.now_ms - a.clock.now_ms) < 1_000
            assert abs(c.clock.correction_ms - STEP_S * 1_000) < 1_000


async def test_a_node_that_starts_waits_while_an_older_record_of_a_step_is_not_decided(
    tmp_path: Path,
) -> None:
    async with mesh_of(in_memory, tmp_path, "ab") as mesh:
        a, b = mesh.nodes
        mesh.database.set_ahead(STEP_S)
        assert not await ticks(a)
        older = Batch()
        older.add("UPDATE clock_witnesses SET seen_ms = seen_ms - 10000")
        await mesh.database.engine.run(older.seal())
        async with mesh.there.node("c") as c:
            with pytest.raises(DatabaseClockJumped):
                await c.locks.acquire("y", ttl=TTL_S)
            await mesh.settle(a, b)
            await c.locks.acquire("y", ttl=TTL_S)
            assert abs(c.clock.now_ms - a.clock.now_ms) < 1_000


async def test_a_node_that_starts_does_not_believe_a_step_that_was_undone_since(tmp_path: Path) -> None:
    async with mesh_of(in_memory, tmp_path) as mesh:
        a, *others = mesh.nodes
        mesh.database.set_ahead(STEP_S)
        assert not await ticks(a)
        mesh.database.set_ahead(0)
        for other in others:
            assert await ticks(other)
        step_ago = Batch()
        step_ago.add(f"UPDATE clock_witnesses SET seen_ms = seen_ms - {round(STEP_S * 1_000)}")
        await mesh.database.engine.run(step_ago.seal())
        async with mesh.there.node("d") as d:
            assert await ticks(d), "the step was recorded as long ago as it was large, and looks recent"


async def _register_others(mesh: SteppedMesh, now_ms: int) -> None:
    """Make it look as if all nodes but a had registered at this time, and sent no heartbeat since."""
    registered = Batch()
    times = f"last_seen_ms = {now_ms}, started_ms = {now_ms}"
    registered.add(f"UPDATE mesh_heartbeats SET {times} WHERE node_id <> 'a'")
    await mesh.database.engine.run(registered.seal())


async def test_nodes_that_only_registered_do_not_show_that_a_step_was_undone(tmp_path: Path) -> None:
    async with mesh_of(in_memory, tmp_path) as mesh:
        a, *_ = mesh.nodes
        mesh.database.set_ahead(STEP_S)
        assert not await ticks(a)
        await _register_others(mesh, a.clock.now_ms + round(STEP_S * 1_000))
        async with mesh.there.node("d") as d:
            with pytest.raises(DatabaseClockJumped):
                await d.locks.acquire("y", ttl=TTL_S)


async def test_registrations_from_before_a_correction_do_not_show_that_the_clock_was_set_back(
    tmp_path: Path,
) -> None:
    async with mesh_of(in_memory, tmp_path) as mesh:
        a, *_ = mesh.nodes
        mesh.database.set_ahead(STEP_S)
        noticed_ms = a.clock.now_ms + round(STEP_S * 1_000)
        await mesh.settle()
        await _register_others(mesh, noticed_ms)
        async with mesh.there.node("d") as d:
            assert await ticks(d)
            assert abs(d.clock.now_ms - a.clock.now_ms) < 1_000


async def test_a_node_that_has_only_registered_does_not_hide_that_the_clock_was_set_back(
    tmp_path: Path,
) -> None:
    async with mesh_of(in_memory, tmp_path, "ab") as mesh:
        mesh.database.set_ahead(-STEP_S)
        await _register_others(mesh, mesh.nodes[0].clock.now_ms - round(STEP_S * 1_000))
        async with mesh.there.node("c") as c:
            with pytest.raises(DatabaseClockJumped):
                await c.locks.acquire("y", ttl=TTL_S)


async def test_nodes_that_all_start_after_a_step_back_go_on_from_the_last_heartbeat(tmp_path: Path) -> None:
    async with in_memory(tmp_path) as database, scene(database.engine) as there:
        async with there.node("a") as a:
            await a.run_once()
            await a.locks.acquire("x", ttl=TTL_S)
        database.set_ahead(-STEP_S)
        async with there.node("a") as a, there.node("b") as b:
            await SteppedMesh(database, there, (a, b)).settle()
            (holder,) = await b.locks.holders(["x"])
            assert abs(holder.left_s - TTL_S) < 10


async def test_one_heartbeat_ahead_does_not_show_that_the_clock_was_set_back(tmp_path: Path) -> None:
    """A node that registers while the clock is ahead writes such a heartbeat."""
    async with mesh_of(in_memory, tmp_path) as mesh:
        mesh.database.set_ahead(STEP_S)
        async with mesh.there.node("d") as d:
            await ticks(d)
            await mesh.settle()
            ahead = "SELECT count(*) FROM mesh_heartbeats WHERE node_id = 'd' AND last_seen_ms > ?"
            now_ms = mesh.nodes[0].clock.now_ms + 5_000
            assert (await mesh.nodes[0].store.read(ahead, (now_ms,), fresh=True)).value == 1
            async with mesh.there.node("e") as e:
                assert await ticks(e)
                assert abs(e.clock.correction_ms + STEP_S * 1_000) < 1_000


async def test_the_registration_of_a_node_does_not_show_that_it_goes_by_the_database(tmp_path: Path) -> None:
    async with mesh_of(in_memory, tmp_path, "ab") as mesh:
        a, _ = mesh.nodes
        mesh.database.set_ahead(STEP_S)
        assert not await ticks(a)
        starts = Batch()
        for table in ("mesh_heartbeats", "node_incarnations"):
            starts.add(
                f"UPDATE {table} SET beats = beats + 2, incarnation = incarnation + 2 WHERE node_id = 'b'"
            )
        starts.add("UPDATE node_versions SET incarnation = incarnation + 2 WHERE node_id = 'b'")
        await mesh.database.engine.run(starts.seal())
        assert not await ticks(a), "the step is not accepted"
        assert a.clock.step is not None
