"""Leases: kept while there is work, lost for good, and what is done under a lost one counts for nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import orjson
import pytest

from proof.chaos.proxy import Proxy
from tests.support.jobs.job_desks import ControlledHandler, ended, idle
from tests.support.jobs.jobs_in_hand import accepted, claim, ids, lapse, ops
from tests.support.messages.messaging import PATIENCE_S, crowd_on, write
from tests.support.oplog.authoring import RestartableNodes, assert_sound
from tools.homes import FILE, MESH_REPLICA
from tools.sqld import Server
from vox_mesh import Mesh, Settings
from vox_mesh.errors import CircuitOpen, Unreachable
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.jobs.worker.executor import Attempt
from vox_mesh.model.jobs.records import CLAIM, COMPLETE, EXPIRE
from vox_mesh.node import MeshNode

_LEASE_S: Final = 0.6
_SHORT: Final = {"db_deadline": 1.0, "db_request_timeout": 0.5, "tick": 0.5, "db_max_stale_ms": 500}


async def renewals(node: MeshNode) -> int:
    """How often a lease was renewed."""
    return sum(orjson.loads(entry.payload).get("renews", False) for entry in await ops(node, CLAIM))


async def test_work_that_takes_longer_than_its_lease_is_done_once(node: MeshNode) -> None:
    desk = ControlledHandler(node, lease=_LEASE_S)
    job = await node.jobs.schedule("work")
    async with node.worker.running():
        await desk.next()
        async with asyncio.timeout(PATIENCE_S):
            seen = node.store.change_count
            while await renewals(node) < 4:  # more than one lease is long
                seen = await node.store.changed(seen)
        held = await node.jobs.find(job)
        assert (held.state, held.attempts) == ("running", 1)
        desk.may_end.set()
        (done,) = await ended(node, job)
    assert (done.state, done.attempts, done.failures) == ("succeeded", 1, 0)
    assert await ops(node, EXPIRE) == []


async def test_a_renewal_that_no_answer_came_to_is_sent_again_in_time(there: RestartableNodes) -> None:
    async with there.node() as node:
        await node.run_once()
        desk = ControlledHandler(node, lease=1.2)
        job = await node.jobs.schedule("work")
        async with node.worker.running():
            await desk.next()
            there.gate.before.append(Unreachable("away"))
            async with asyncio.timeout(PATIENCE_S):
                seen = node.store.change_count
                while await renewals(node) < 2:
                    seen = await node.store.changed(seen)
            assert desk.stopped.empty()
            desk.may_end.set()
            (done,) = await ended(node, job)
    assert done.state == "succeeded"


async def test_who_has_lost_a_lease_stops_its_work_and_the_next_one_does_the_job(tmp_path: Path) -> None:
    async with crowd_on(FILE, tmp_path, None) as crowd:
        one, two = await crowd.node("one"), await crowd.node("two")
        first, second = ControlledHandler(one), ControlledHandler(two)
        job = await one.jobs.schedule("work")
        await one.worker.start()
        await first.next()
        await two.worker.start()
        await lapse(two, job)
        assert await two.jobs.expire([await two.jobs.find(job)]) == [job.job_id]
        await first.next_stopped()
        await one.worker.stop()
        again = await second.next()
        assert again.attempt == 2
        second.may_end.set()
        (done,) = await ended(two, job)
        assert (done.state, done.claimer, done.interruptions) == ("succeeded", "two", 1)
        await two.worker.stop()


async def test_who_can_not_renew_stops_when_the_lease_is_over_by_its_own_clock(
    there: RestartableNodes,
) -> None:
    async with there.node() as node:
        await node.run_once()
        desk = ControlledHandler(node, lease=_LEASE_S)
        await node.jobs.schedule("work")
        await node.worker.start()
        await desk.next()
        there.gate.hold()  # neither an answer nor a refusal comes
        begun = node.worker._leases.now
        await desk.next_stopped()
        assert node.worker._leases.now - begun <= _LEASE_S + 1.0
        there.gate.release()
        await node.worker.stop()


async def test_what_a_zombie_says_while_its_successor_works_is_refused_and_recorded(tmp_path: Path) -> None:
    async with crowd_on(FILE, tmp_path, None) as crowd:
        one, two = await crowd.node("one"), await crowd.node("two")
        may_go_on, begun, successor = asyncio.Event(), asyncio.Event(), ControlledHandler(two)

        @one.worker.handles("work")
        async def never_stops(context: JobContext) -> str:
            begun.set()
            while True:
                try:
                    await may_go_on.wait()
                    return "by a zombie"
                except asyncio.CancelledError:
                    continue  # as one that was stopped in its tracks, and wakes later

        job = await one.jobs.schedule("work")
        await one.worker.start()
        await begun.wait()
        await lapse(two, job)
        await two.jobs.expire([await two.jobs.find(job)])
        async with two.worker.running():
            await successor.next()
            before = await two.jobs.find(job)
            may_go_on.set()
            await one.worker.stop()
            assert await two.jobs.find(job) == before
            successor.may_end.set()
            (done,) = await ended(two, job)
        assert (done.state, done.claimer, done.attempts) == ("succeeded", "two", 2)
        assert (done.outputs, one.worker.stats.refused) == ([], 1)
        said = [(entry.node_id, entry.accepted, entry.reason) for entry in await ops(two, COMPLETE)]
        assert said[-2:] == [("one", 0, "stale_claim"), ("two", 1, None)]
        assert sum(accepted for _, accepted, _ in said) == 1
        await assert_sound(two)


async def test_one_that_is_refused_spoils_none_of_the_ones_that_end_with_it(local: MeshNode) -> None:
    desk = ControlledHandler(local)
    jobs = [await local.jobs.schedule("work", number, max_attempts=1) for number in range(5)]
    async with local.worker.running():
        contexts = [await desk.next() for _ in jobs]
        # Its handler does not hear of it in time.
        local.worker._leases.release(contexts[2].job)
        await local.jobs.abort(jobs[2])
        desk.may_end.set()
        done = await ended(local, *jobs)
    assert [job.state for job in done].count("succeeded") == 4
    assert (done[2].state, local.worker.stats.refused) == ("aborted", 1)
    completed = [job_id for each in await accepted(local, COMPLETE) for job_id in each]
    assert sorted(completed) == sorted(set(ids(jobs)) - {jobs[2].job_id})


# --- while the database is away ------------------------------------------------------------------


def _behind(proxy: Proxy, folder: Path, server: Server) -> Settings:
    """A worker that reaches the database through a proxy."""
    settings = MESH_REPLICA.settings(folder, server, db_url=proxy.url, node_id="worker")
    return settings.model_copy(update=_SHORT)


@pytest.mark.timeout(120)
async def test_what_ends_while_the_database_is_away_is_kept_and_accepted_once(
    tmp_path: Path, shared_server: Server
) -> None:
    async with Proxy(shared_server.port) as proxy:
        settings = _behind(proxy, tmp_path / "here", shared_server)
        elsewhere = MESH_REPLICA.settings(tmp_path / "there", shared_server, scope_id=settings.scope_id)
        async with Mesh.open(settings) as node, Mesh.open(elsewhere) as other:
            desk = ControlledHandler(node)
            jobs = [await node.jobs.schedule("work", number) for number in range(6)]
            async with node.worker.running(concurrency=4):
                aborted, awaited = [await desk.next() for _ in range(4)][:2]
                await proxy.refuse()
                desk.may_end.set()
                await idle(node)
                kept = (await node.store.status()).spool
                # What others do meanwhile to one of them is no harm to the rest.
                await other.jobs.abort(aborted.job)
                jobs.append(await other.jobs.schedule("work", after=[awaited.job]))
                await proxy.accept()
                done = await ended(other, *jobs)
                done += await ended(other, await other.jobs.schedule("work", "after"))
            assert kept is not None
            assert kept.depth == 4
            done = [job for job in done if job.job_id != aborted.job.job_id]
            assert {(job.state, job.attempts, job.failures) for job in done} == {("succeeded", 1, 0)}
            completed = [job_id for each in await accepted(other, COMPLETE) for job_id in each]
            assert sorted(completed) == sorted(ids(done))
            await assert_sound(other)


@pytest.mark.timeout(120)
async def test_what_a_process_had_kept_when_it_ended_is_accepted_when_it_is_back(
    tmp_path: Path, shared_server: Server
) -> None:
    async with Proxy(shared_server.port) as proxy:
        settings = _behind(proxy, tmp_path, shared_server)
        async with Mesh.open(settings) as node:
            desk = ControlledHandler(node)
            jobs = [await node.jobs.schedule("work", number) for number in range(4)]
            await node.worker.start()
            for _ in jobs:
                await desk.next()
            await proxy.refuse()
            desk.may_end.set()
            await idle(node)
        await proxy.accept()
        async with Mesh.open(settings) as node:
            ControlledHandler(node).may_end.set()
            async with node.worker.running():
                done = await ended(node, *jobs)
            assert {(job.state, job.attempts, job.failures) for job in done} == {("succeeded", 1, 0)}
            await assert_sound(node)


async def test_a_job_that_can_not_be_begun_goes_back_and_has_not_failed(there: RestartableNodes) -> None:
    async with there.node() as node:
        await node.run_once()
        desk = ControlledHandler(node)
        job = await node.jobs.schedule("work")
        await write(node, "UPDATE jobs SET attempts = 1 WHERE scope_id = ?1 AND repository_id = ?2")
        await claim(node, job)
        held = await node.jobs.find(job)
        there.gate.asking.append(CircuitOpen("away"))  # what an earlier attempt has kept can't be read
        await node.worker._executor.execute(Attempt(held, node.worker.handlers.of("work")))
        back = await node.jobs.find(job)
        assert (back.state, back.failures, desk.begun.qsize()) == ("pending", 0, 0)


async def test_a_claim_that_is_over_is_not_renewed_again_while_the_job_is_completed(local: MeshNode) -> None:
    job = await local.jobs.find(await local.jobs.schedule("work"))
    leases = local.worker._leases
    lost = asyncio.Event()
    leases.hold(job._replace(claim_token=7), leases.now, round(_LEASE_S * 1_000), lost.set)
    leases.mark_ending(job)
    await leases._renewer.renew_all()
    assert leases.stale == 1
    await leases._renewer.renew_all()
    assert leases.stale == 1
    assert leases.holds(job)
    assert not lost.is_set()
    leases.release(job)


async def test_work_stops_with_its_lease_though_a_longer_one_waits_for_its_renewal(
    tmp_path: Path, server: Server
) -> None:
    async with Mesh.open(MESH_REPLICA.settings(tmp_path, server, tick="1h")) as node:
        loop, begun, stopped = asyncio.get_running_loop(), asyncio.Queue[str](), asyncio.Event()
        stopped_at = 0.0

        async def work(context: JobContext) -> None:
            nonlocal stopped_at
            begun.put_nowait(context.job.kind)
            try:
                await asyncio.Event().wait()
            finally:
                if context.job.kind == "short":
                    stopped_at = loop.time()
                    stopped.set()

        node.worker.handles("long", lease=30)(work)
        node.worker.handles("short", lease=1)(work)
        async with node.worker.running(grace=0.1):
            await node.jobs.schedule("long")
            await node.jobs.schedule("short")
            async with asyncio.timeout(PATIENCE_S):
                assert {await begun.get(), await begun.get()} == {"long", "short"}
                frozen_at = loop.time()
                server.freeze()
                renewal = asyncio.create_task(node.worker._leases._renewer.renew_all())
                await stopped.wait()
            assert renewal.cancel(), "it was still waiting for its answer"
            server.thaw()
    assert stopped_at - frozen_at < 3.0  # not the ten seconds that a request may take


async def test_what_is_taken_back_is_looked_up_without_its_manifest(local: MeshNode) -> None:
    job = await local.jobs.schedule("work", "x" * 1_000)
    await claim(local, job)
    await lapse(local, job)
    (overdue,) = await local.jobs.queries.overdue()
    (held,) = await local.jobs.queries.held_by(local.identity.node_id)
    assert (overdue.job_id, overdue.manifest, held.manifest) == (job.job_id, "{}", "{}")
