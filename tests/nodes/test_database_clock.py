"""The database's clock is set while nodes are at work: nothing is lost, granted twice or held too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.support.nodes.stepped_databases import BOTH, HOUR_S, SteppedDatabase, clock_in, in_memory
from tests.support.oplog.authoring import NOTE, Scene, assert_sound, scene
from tools.homes import MESH
from tools.sqld import Server
from vox_mesh import Script, Statement, load_settings
from vox_mesh.errors import ClockOff, DatabaseClockJumped, LockHeld
from vox_mesh.jobs.worker.claimer import JobClaimer
from vox_mesh.mesh import Mesh as CommandMesh
from vox_mesh.model.locks.records import Lock
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.store.batch import Batch
from vox_mesh.store.engines.memory import SharedMemory
from vox_mesh.store.schema.statements import RAW_MS

TTL_S: Final = 60.0
_ROUNDS: Final = 10

DatabaseOf = Callable[[Path], AbstractAsyncContextManager[SteppedDatabase]]


class Mesh(NamedTuple):
    """Nodes on a database whose clock can be set."""

    database: SteppedDatabase
    there: Scene
    nodes: Sequence[MeshNode]

    async def settle(self, *nodes: MeshNode) -> None:
        """Have nodes tick until none of them finds anything wrong with the database's clock."""
        for _ in range(_ROUNDS):
            if all([await _ticks(node) for node in nodes or self.nodes]):
                return
        raise AssertionError("the nodes did not agree")


async def _ticks(node: MeshNode) -> bool:
    try:
        await node.run_once()
    except DatabaseClockJumped:
        return False
    return True


@asynccontextmanager
async def mesh_of(database_of: DatabaseOf, folder: Path, names: str = "abc") -> AsyncIterator[Mesh]:
    """This many nodes, each with a first tick."""
    async with database_of(folder) as database, scene(database.engine) as there, AsyncExitStack() as living:
        nodes = [await living.enter_async_context(there.node(name)) for name in names]
        for node in nodes:
            await node.run_once()
        yield Mesh(database, there, nodes)


class Held(NamedTuple):
    """What was granted before the clock was set."""

    lock: Lock
    job: Any
    message: Any


async def granted(node: MeshNode) -> Held:
    """A lock, a claimed job and a message that expires."""
    lock = await node.locks.acquire("x", ttl=TTL_S)
    job = await node.jobs.schedule("build")
    claimed = await claim(node, job.job_id)
    assert [each.job.job_id for each in claimed] == [job.job_id]
    message = await node.messages.send("reader", {"n": 1}, sender="writer", ttl=TTL_S)
    assert await node.rhythm.leadership.keep(TTL_S)
    return Held(lock, claimed[0].job, message)


async def claim(node: MeshNode, job_id: str) -> Sequence[Any]:
    """Claim a job as a worker does."""
    claiming: JobClaimer = node.worker._claimer
    return await claiming.claim([await node.jobs.find(job_id)], round(TTL_S * 1_000))


async def keep_in_order(node: MeshNode) -> None:
    """All that ends what is over: leases of jobs, messages, locks."""
    await node._job_maintenance.run_once()
    await node._message_maintenance.run_once()
    await node.locks.sweep_expired_distributed_locks()


# --- forward, and back again ---------------------------------------------------------------------


@BOTH
async def test_what_is_held_when_the_clock_jumps_ahead_is_held_still(
    database_of: DatabaseOf, tmp_path: Path
) -> None:
    async with mesh_of(database_of, tmp_path) as mesh:
        a, b, c = mesh.nodes
        held = await granted(a)
        mesh.database.set_ahead(HOUR_S)
        for node in (b, c):
            with pytest.raises((LockHeld, DatabaseClockJumped)):
                await node.locks.acquire("x", ttl=TTL_S)
        await mesh.settle()
        for node in mesh.nodes:
            await keep_in_order(node)
        with pytest.raises(LockHeld):
            await b.locks.acquire("x", ttl=TTL_S)
        await a.locks.renew(held.lock)  # raises if it was lost
        leader = await b.rhythm.leadership.leader()
        assert leader is not None
        assert leader.node_id == "a"
        assert not await b.rhythm.leadership.keep(TTL_S)
        job = await b.jobs.find(held.job.job_id)
        assert (job.state, job.claimer) == ("running", "a")
        (found,) = await b.messages.poll_inbox_from_db("reader")
        assert found.message_uuid == held.message.message_uuid, "it has not expired"
        assert [node.state for node in await b.nodes.all()] == ["alive"] * 3
        await assert_sound(b)


@BOTH
async def test_leases_taken_while_the_clock_was_ahead_end_in_time_when_it_goes_back(
    database_of: DatabaseOf, tmp_path: Path
) -> None:
    async with mesh_of(database_of, tmp_path) as mesh:
        a, b, _ = mesh.nodes
        mesh.database.set_ahead(HOUR_S)
        await mesh.settle()
        held = await granted(a)
        mesh.database.set_ahead(0.0)
        await mesh.settle()
        (holder,) = await b.locks.holders(["x"])
        assert holder.left_s <= TTL_S
        job = await b.jobs.find(held.job.job_id)
        assert job.lease_until_ms is not None
        assert job.lease_until_ms <= b.clock.now_ms + TTL_S * 1_000
        (leader,) = await b.locks.holders(["mesh:rhythm"])
        assert leader.left_s <= TTL_S
        await a.locks.renew(held.lock)  # what is held is not lost by it either
        assert b.clock.correction_ms == 0 or abs(b.clock.correction_ms) < 1_000


@BOTH
async def test_the_log_and_the_nodes_name_the_databases_clock(
    database_of: DatabaseOf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with mesh_of(database_of, tmp_path) as mesh:
        a, *_ = mesh.nodes
        mesh.database.set_ahead(HOUR_S)
        with pytest.raises(DatabaseClockJumped, match=r"database clock jumped by \+3600"):
            await a.locks.acquire("y")
        (check,) = [check for check in a.health.checks() if check.name == "clock"]
        assert not check.is_ok
        assert "database clock" in check.detail
        await mesh.settle()
        await mesh.settle()  # the op is written with the next tick
        (check,) = [check for check in a.health.checks() if check.name == "clock"]
        assert check.is_ok, "they can go on"
        assert "database's clock" in check.detail, "and still say that it is wrong"
        steps = [entry for entry in await a.oplog.tail(50) if entry.kind == "DatabaseClockStepped"]
        assert len(steps) == 1, "one of them has corrected it"
        assert '"step_ms":36' in steps[0].payload or '"step_ms":35' in steps[0].payload
        assert "this machine's clock" not in caplog.text
        assert not any(node.clock.is_off for node in mesh.nodes)


# --- until the nodes agree -----------------------------------------------------------------------


async def refused_alike(node: MeshNode, lock: Lock, job_id: str) -> None:
    """All that would be granted, begun or written again is refused with the same error."""
    attempts: tuple[Callable[[], Awaitable[object]], ...] = (
        partial(node.locks.acquire, "z"),
        partial(node.locks.acquire, ["z", "zz"], shared=True),
        partial(node.locks.renew, lock),
        partial(node.jobs.schedule, "test"),
        partial(claim, node, job_id),
        partial(node.messages.send, "reader", {}, sender="writer"),
        partial(node.messages.poll_inbox_from_db, "reader"),
        partial(node.oplog.append, NOTE, {}),
    )
    for attempt in attempts:
        with pytest.raises(DatabaseClockJumped):
            await attempt()


@BOTH
@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
async def test_all_planes_refuse_alike_until_the_nodes_agree(
    database_of: DatabaseOf, tmp_path: Path, step_s: float
) -> None:
    async with mesh_of(database_of, tmp_path) as mesh:
        a, b, _ = mesh.nodes
        held = await granted(a)
        waiting = await a.jobs.schedule("wait")
        mesh.database.set_ahead(step_s)
        assert not await _ticks(a), "the others have not said anything yet"
        await refused_alike(a, held.lock, waiting.job_id)
        await keep_in_order_if_it_may(a)
        assert await count_of(b, "a2a_messages WHERE ended_ms IS NOT NULL") == 0
        assert await count_of(b, "distributed_locks WHERE lock_key = 'x'") == 1
        assert (await b.jobs.find(held.job.job_id)).state == "running"
        assert await _ticks(b), "two of three agree"
        await mesh.settle()
        await a.locks.renew(held.lock)  # raises if it was lost
        assert [each.job.job_id for each in await claim(b, waiting.job_id)] == [waiting.job_id]


async def count_of(node: MeshNode, rows: str) -> int:
    """How many rows there are."""
    count: int = (await node.store.read(f"SELECT count(*) FROM {rows}")).value
    return count


async def keep_in_order_if_it_may(node: MeshNode) -> None:
    """What keeps things in order ends nothing, or says why it can't."""
    await node._job_maintenance.run_once()
    await node._message_maintenance.run_once()
    with pytest.raises(DatabaseClockJumped):
        await node.locks.sweep_expired_distributed_locks()


@pytest.mark.parametrize("statement", range(1, 9))
async def test_nothing_expires_if_the_clock_is_set_while_a_request_is_applied(
    tmp_path: Path, statement: int
) -> None:
    async with mesh_of(in_memory, tmp_path, "ab") as mesh:
        a, b = mesh.nodes
        await a.locks.acquire("x", ttl=TTL_S)
        with _clock_set_at(mesh.database, statement), suppress(DatabaseClockJumped):
            await b.locks.sweep_expired_distributed_locks()
        mesh.database.set_ahead(0)
        await mesh.settle()
        assert await b.locks.holders(["x"])


@contextmanager
def _clock_set_at(database: SteppedDatabase, statement: int) -> Iterator[None]:
    """Set the clock when the engine begins the given statement, in the middle of a transaction."""
    memory = database.engine
    assert isinstance(memory, SharedMemory)
    left = statement

    def count(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            database.set_ahead(HOUR_S)
            memory._clock.begin()

    memory._connection.set_trace_callback(count)
    try:
        yield
    finally:
        memory._connection.set_trace_callback(None)


@BOTH
async def test_a_node_that_is_alone_goes_on_at_once(database_of: DatabaseOf, tmp_path: Path) -> None:
    async with mesh_of(database_of, tmp_path, "a") as mesh:
        (a,) = mesh.nodes
        held = await granted(a)
        for ahead_s in (HOUR_S, -HOUR_S, 0.0):
            mesh.database.set_ahead(ahead_s)
            with pytest.raises(LockHeld):
                await a.locks.acquire("x", ttl=TTL_S)
            await a.locks.renew(held.lock)  # raises if it was lost
            (holder,) = await a.locks.holders(["x"])
            assert TTL_S - 10 < holder.left_s <= TTL_S


async def test_a_small_step_is_followed(tmp_path: Path) -> None:
    async with mesh_of(in_memory, tmp_path, "a") as mesh:
        (a,) = mesh.nodes
        mesh.database.set_ahead(3.0)
        await a.run_once()
        assert (a.clock.step, a.clock.correction_ms, a.clock.jumps) == (None, 0, 0)
        assert abs(a.clock.distance_ms + 3_000) < 1_000


# --- nodes that start meanwhile ------------------------------------------------------------------


@pytest.mark.parametrize("step_s", [5.5, 7.0, 9.5])
async def test_a_step_within_the_time_that_a_request_may_be_late_is_decided_too(
    tmp_path: Path, step_s: float
) -> None:
    async with mesh_of(in_memory, tmp_path) as mesh:
        mesh.database.set_ahead(step_s)
        for node in mesh.nodes:
            await _ticks(node)
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
        assert not await _ticks(a), "it waits for the others"
        async with mesh.there.node("c", remembers=remembers) as c:
            with pytest.raises(LockHeld):
                await c.locks.acquire("x", ttl=TTL_S)
            assert abs(c.clock.now_ms - a.clock.now_ms) < 1_000


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
        assert not await _ticks(a)
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
        assert not await _ticks(a)
        mesh.database.set_ahead(0)
        for other in others:
            assert await _ticks(other)
        step_ago = Batch()
        step_ago.add(f"UPDATE clock_witnesses SET seen_ms = seen_ms - {round(STEP_S * 1_000)}")
        await mesh.database.engine.run(step_ago.seal())
        async with mesh.there.node("d") as d:
            assert await _ticks(d), "the step was recorded as long ago as it was large, and looks recent"


async def test_nodes_that_only_registered_do_not_show_that_a_step_was_undone(tmp_path: Path) -> None:
    async with mesh_of(in_memory, tmp_path) as mesh:
        a, *_ = mesh.nodes
        mesh.database.set_ahead(STEP_S)
        assert not await _ticks(a)
        registered = Batch()
        now_ms = a.clock.now_ms + round(STEP_S * 1_000)
        times = f"last_seen_ms = {now_ms}, started_ms = {now_ms}"
        registered.add(f"UPDATE mesh_heartbeats SET {times} WHERE node_id <> 'a'")
        await mesh.database.engine.run(registered.seal())
        async with mesh.there.node("d") as d:
            with pytest.raises(DatabaseClockJumped):
                await d.locks.acquire("y", ttl=TTL_S)


async def test_a_node_that_has_only_registered_does_not_hide_that_the_clock_was_set_back(
    tmp_path: Path,
) -> None:
    async with mesh_of(in_memory, tmp_path, "ab") as mesh:
        mesh.database.set_ahead(-STEP_S)
        registered = Batch()
        now_ms = mesh.nodes[0].clock.now_ms - round(STEP_S * 1_000)
        times = f"last_seen_ms = {now_ms}, started_ms = {now_ms}"
        registered.add(f"UPDATE mesh_heartbeats SET {times} WHERE node_id = 'b'")
        await mesh.database.engine.run(registered.seal())
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
            await Mesh(database, there, (a, b)).settle()
            (holder,) = await b.locks.holders(["x"])
            assert abs(holder.left_s - TTL_S) < 10


async def test_one_heartbeat_ahead_does_not_show_that_the_clock_was_set_back(tmp_path: Path) -> None:
    """A node that registers while the clock is ahead writes such a heartbeat."""
    async with mesh_of(in_memory, tmp_path) as mesh:
        mesh.database.set_ahead(STEP_S)
        async with mesh.there.node("d") as d:
            await _ticks(d)
            await mesh.settle()
            ahead = "SELECT count(*) FROM mesh_heartbeats WHERE node_id = 'd' AND last_seen_ms > ?"
            now_ms = mesh.nodes[0].clock.now_ms + 5_000
            assert (await mesh.nodes[0].store.read(ahead, (now_ms,), fresh=True)).value == 1
            async with mesh.there.node("e") as e:
                assert await _ticks(e)
                assert abs(e.clock.correction_ms + STEP_S * 1_000) < 1_000


async def test_the_registration_of_a_node_does_not_show_that_it_goes_by_the_database(tmp_path: Path) -> None:
    async with mesh_of(in_memory, tmp_path, "ab") as mesh:
        a, _ = mesh.nodes
        mesh.database.set_ahead(STEP_S)
        assert not await _ticks(a)
        starts = Batch()
        for table in ("mesh_heartbeats", "node_incarnations"):
            starts.add(
                f"UPDATE {table} SET beats = beats + 2, incarnation = incarnation + 2 WHERE node_id = 'b'"
            )
        starts.add("UPDATE node_versions SET incarnation = incarnation + 2 WHERE node_id = 'b'")
        await mesh.database.engine.run(starts.seal())
        assert not await _ticks(a), "the step is not accepted"
        assert a.clock.step is not None


# --- whose clock is wrong ------------------------------------------------------------------------


class Machine:
    """A node's machine: its clocks can stand still."""

    def __init__(self) -> None:
        self.behind_s = 0.0
        usual = Dependencies()
        self.dependencies = Dependencies(elapsed=lambda: usual.elapsed() - self.behind_s)


async def test_a_node_whose_own_clock_stood_still_follows_the_others(tmp_path: Path) -> None:
    async with mesh_of(in_memory, tmp_path, "ab") as mesh:
        a, b = mesh.nodes
        machine = Machine()
        async with mesh.there.node("c", machine.dependencies) as c:
            await c.run_once()
            machine.behind_s = 300.0
            assert not await _ticks(c)
            for node in (a, b):
                for _ in range(2):
                    await node.run_once()
            assert await _ticks(c)
            assert abs(c.clock.now_ms - a.clock.now_ms) < 1_000
            assert a.clock.correction_ms == 0, "no one has corrected the database for that"


async def test_while_a_node_of_the_version_before_is_alive_nothing_is_corrected(tmp_path: Path) -> None:
    async with mesh_of(in_memory, tmp_path, "ab") as mesh:
        a, b = mesh.nodes
        await a.store.write(
            Script(Statement("UPDATE node_versions SET schema_version = 9 WHERE node_id = 'b'"))
        )
        mesh.database.set_ahead(HOUR_S)
        await a.run_once()
        assert a.clock.correction_ms == 0
        assert abs(a.clock.distance_ms + HOUR_S * 1_000) < 1_000
        assert b.clock.step is None


async def test_nothing_is_corrected_either_if_that_node_has_ticked_since_the_clock_went_back(
    tmp_path: Path,
) -> None:
    async with mesh_of(in_memory, tmp_path, "ab") as mesh:
        a, _ = mesh.nodes
        await a.store.write(Script(Statement("DELETE FROM node_versions WHERE node_id = 'b'")))
        mesh.database.set_ahead(-HOUR_S)
        tick = Batch()
        tick.add(f"UPDATE mesh_heartbeats SET last_seen_ms = {RAW_MS}, beats = beats + 1 WHERE node_id = 'b'")
        await mesh.database.engine.run(tick.seal())  # as code that knows of no correction does
        await a.run_once()
        assert a.clock.correction_ms == 0
        assert abs(a.clock.distance_ms - HOUR_S * 1_000) < 1_000


async def test_a_command_goes_by_the_time_that_the_nodes_have_accepted(tmp_path: Path) -> None:
    async with mesh_of(in_memory, tmp_path, "ab") as mesh:
        a, b = mesh.nodes
        assert isinstance(mesh.database.engine, SharedMemory)
        around = Dependencies(memory=mesh.database.engine)
        async with CommandMesh.open_command(load_settings(_env_file=None), around) as command:
            lock = await command.locks.acquire("x", ttl=TTL_S)
            forget = "DELETE FROM node_versions"  # older code: the nodes accept any step
            await a.store.write(Script(Statement(forget)))
            mesh.database.set_ahead(-30.0)
            with pytest.raises(DatabaseClockJumped):
                await command.locks.renew(lock)
            for _ in range(2):
                await mesh.settle()
            await command.locks.renew(lock)
            assert abs(command.clock.now_ms - b.clock.now_ms) < 1_000


async def test_the_database_is_believed_in_the_end_if_the_machines_clocks_agree_with_it(
    tmp_path: Path,
) -> None:
    ahead_s = 0.0
    usual = Dependencies()
    around = Dependencies(wall_ms=lambda: usual.wall_ms() + round(ahead_s * 1_000))
    async with in_memory(tmp_path) as database, scene(database.engine) as there:
        async with there.node("a", around) as node:
            await node.run_once()
            ahead_s = 100.0
            database.set_ahead(ahead_s)  # one machine, one clock, and someone has set it
            await node.run_once()
            assert -100_500 < node.clock.correction_ms < -99_500
            assert not node.clock.is_off
            for _ in range(3):
                await node.store.write(
                    Script(Statement("UPDATE database_clock SET slewed_ms = slewed_ms - 9000"))
                )
                await node.run_once()
            assert -99_500 < node.clock.correction_ms < -98_000, "a twentieth of the time that passed"
            assert node.clock.step is None
            await node.close()
        async with there.node("a", around) as node:
            await node.run_once()
            assert node.clock.correction_ms == 0, "no one else was there: nothing could end by it"


# --- requests that come late ---------------------------------------------------------------------


@pytest.mark.parametrize("late_s", [30.0, 300.0])
async def test_a_request_that_was_held_up_is_made_again(tmp_path: Path, late_s: float) -> None:
    passed_s = 0.0
    usual = Dependencies()
    around = Dependencies(elapsed=lambda: usual.elapsed() + passed_s)
    async with (
        in_memory(tmp_path) as database,
        scene(database.engine) as there,
        there.node("a", around) as node,
    ):
        await node.run_once()
        there.gate.hold()
        acquiring = asyncio.create_task(node.locks.acquire(["x", "y"], ttl=TTL_S))
        await there.gate.arrival()
        passed_s += late_s  # the server is slow, or this process was stopped
        database.set_ahead(passed_s)
        there.gate.release()
        lock = await acquiring
        await node.locks.release(lock)
        assert (node.clock.step, node.clock.jumps, node.clock.correction_ms) == (None, 0, 0)


async def test_commands_refuse_alike_when_the_database_is_far_from_this_machines_clock(
    tmp_path: Path,
) -> None:
    clock = clock_in(tmp_path)
    clock.set_ahead(HOUR_S)
    with Server(environment=clock.environment) as server:
        async with CommandMesh.open_command(MESH.settings(tmp_path, server)) as mesh:
            attempts: tuple[Callable[[], Awaitable[object]], ...] = (
                partial(mesh.locks.acquire, "x"),
                partial(mesh.jobs.schedule, "build"),
                partial(mesh.messages.send, "reader", {}, sender="writer"),
                partial(mesh.messages.poll_inbox_from_db, "reader"),
            )
            for attempt in attempts:
                with pytest.raises(ClockOff, match="from the database's"):
                    await attempt()
