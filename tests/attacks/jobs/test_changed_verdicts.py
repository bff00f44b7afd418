"""Changed verdicts: whether an op was accepted is not in its hash, so a mark that says so is not believed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.attacks.ended_jobs import PATIENCE_S, end_job, put_back, run_until_done
from tests.support.attacks.hostile_writer import HostileWriter
from tests.support.nodes.shared_mesh import SharedMesh, assert_whole
from tests.support.oplog.tampering import stranger
from vox_mesh import JobContext, Mesh
from vox_mesh.errors import Refused
from vox_mesh.jobs.worker.leases import Leases
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import REKEY, Key
from vox_mesh.node import MeshNode
from vox_mesh.views.jobs import verify_proof

ENDING = ("ClaimWork", "StartWork", "CompleteJob", "AbortJob", "ExpireWork")


async def take(node: MeshNode, payload: str, **options: Any) -> Job:
    """Schedule, claim and start a job, which is not run."""
    scheduled = await node.jobs.schedule("build", payload, priority=3, **options)
    item = {"job_id": scheduled.job_id, "claim_token": 1}
    await node.store.write_all(node.jobs.transitions.take([item], [item], 60_000))
    return await node.jobs.find(scheduled.job_id)


def expire_lease(hostile: HostileWriter, job: Job, **columns: Any) -> None:
    """Have a row say that the job runs, under a lease that is over."""
    put_back(hostile, job, state="running", claimer="owner", lease_until_ms=1, ended_ms=None, **columns)


async def expire(node: MeshNode) -> None:
    """End the leases that are over, as the maintenance of a node does."""
    await node.store.synced()
    await node.jobs.expire(await node.jobs.queries.overdue())


async def runs(owner: MeshNode, other: MeshNode) -> list[Any]:
    """Return what the other node runs, up to a genuine job of a low priority."""
    await owner.jobs.schedule("build", "genuine", priority=0)
    await other.store.synced()
    return await run_until_done(other, "genuine")


@pytest.mark.parametrize("is_sealed", [False, True], ids=["unsealed", "sealed"])
@pytest.mark.parametrize("how", ["completed", "aborted"])
async def test_a_job_whose_end_is_marked_as_refused_is_not_run_again(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter, how: str, is_sealed: bool
) -> None:
    if is_sealed:  # and seen by a worker that follows the log
        await other.jobs.queries.situation(other.jobs.authorship.history)
    row = await end_job(owner, "ended", how)
    if is_sealed:
        await owner.store.write(owner.oplog.seal_script())
        await other.store.synced()
        await other.jobs.queries.situation(other.jobs.authorship.history)
        assert other.jobs.authorship.history.names(row.job_id)
    hostile.mark_refused(*ENDING)
    put_back(hostile, row)
    assert await runs(owner, other) == ["genuine"]


async def test_a_worker_that_saw_a_claim_runs_no_job_whose_ops_were_changed_since(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    await other.jobs.queries.situation(other.jobs.authorship.history)
    row = await end_job(owner, "ended", "completed")
    await other.store.synced()
    await other.jobs.queries.situation(other.jobs.authorship.history)
    hostile.mark_refused("ClaimWork", "StartWork")
    hostile.run(
        "UPDATE agent_oplog SET payload = '{}' "
        "WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'CompleteJob'"
    )
    put_back(hostile, row)
    assert await runs(owner, other) == ["genuine"]


async def test_a_claim_whose_result_was_changed_hides_no_end(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    row = await end_job(owner, "ended", "completed")
    hostile.mark_refused("CompleteJob")
    hostile.run(
        'UPDATE agent_oplog SET result = \'{"moved":"[]"}\' '
        "WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'ClaimWork'"
    )
    put_back(hostile, row)
    assert await runs(owner, other) == ["genuine"]


async def test_a_job_that_was_interrupted_too_often_is_not_run_again(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    row = await take(owner, "ended", max_interruptions=0)
    expire_lease(hostile, row)
    await expire(owner)
    assert (await owner.jobs.find(row.job_id)).state == "failed"
    hostile.mark_refused(*ENDING)
    (schedule,) = await owner.oplog.tail(1, kind="ScheduleJob")
    put_back(
        hostile,
        row,
        state="pending",
        claimer=None,
        claim_token=0,
        lease_until_ms=None,
        last_op=schedule.op_id,
    )
    assert await runs(owner, other) == ["genuine"]


async def test_no_expired_lease_of_an_ended_job_has_it_run_again(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    row = await end_job(owner, "ended", "completed")
    ended = await owner.jobs.find(row.job_id)
    expire_lease(hostile, ended)
    await expire(owner)  # a genuine op, about a row that is not
    assert (await owner.jobs.find(row.job_id)).state == "pending"
    assert await runs(owner, other) == ["genuine"]


async def test_no_refused_release_that_is_marked_as_accepted_has_a_job_run_again(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    row = await take(owner, "ended")
    with pytest.raises(Refused):
        await other.jobs.expire([row])  # its lease is not over
    (release,) = await other.oplog.tail(1, kind="ExpireWork")
    item = {"job_id": row.job_id, "claim_token": 1, "state": "succeeded", "exit_code": 0}
    await owner.store.write(owner.jobs.transitions.complete([item]))
    hostile.mark_refused("CompleteJob")
    hostile.mark_accepted("ExpireWork")
    put_back(hostile, row, state="pending", claimer=None, lease_until_ms=None, last_op=release.op_id)
    assert await runs(owner, other) == ["genuine"]


async def complete_too_late(owner: MeshNode, other: MeshNode, hostile: HostileWriter) -> LogEntry:
    """Have the owner run a job for longer than its lease, without noticing; return its refused completion."""
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    @owner.worker.handles("build")
    async def build(_: JobContext) -> None:
        has_begun.set()
        await may_end.wait()

    await owner.jobs.schedule("build", "late")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Leases, "verify_soon", lambda _: None)
        async with asyncio.timeout(PATIENCE_S), owner.worker.running(concurrency=1):
            await has_begun.wait()
            await owner.job_kinds.drain("owner")  # it must not take the job again
            hostile.run(  # the time passes
                "UPDATE jobs SET lease_until_ms = 1 WHERE scope_id = ?1 AND repository_id = ?2"
            )
            await expire(other)
            may_end.set()
    (refused,) = await owner.oplog.tail(1, node_id="owner", kind="CompleteJob")
    assert (refused.accepted, refused.reason) == (0, "stale_claim")
    return refused


async def test_a_job_whose_completion_came_too_late_is_run_by_another_node(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    await complete_too_late(owner, other, hostile)
    await other.store.synced()
    assert await run_until_done(other, "late") == ["late"]
    assert other.jobs.authorship.forged == 0


async def test_a_job_whose_end_is_not_sealed_yet_is_looked_at_again_without_a_change(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    row = await take(owner, "late")
    expire_lease(hostile, row)
    await expire(owner)
    item = {"job_id": row.job_id, "claim_token": 1, "state": "succeeded", "exit_code": 0}
    with pytest.raises(Refused, match="stale_claim"):
        await owner.store.write(owner.jobs.transitions.complete([item]))
    await other.store.synced()
    other.worker.handles("build")(lambda _: None)
    async with other.worker.running(concurrency=1):
        async with asyncio.timeout(PATIENCE_S):
            while not other.jobs.authorship.doubted_count:
                await other.worker._claim_loop.run_once()
        assert 0 < ((await other.worker._claim_loop.run_once()).delay_s or 0) <= 2
        await owner.store.write(owner.oplog.seal_script())
        assert (await other.jobs.wait(row, timeout=PATIENCE_S)).state == "succeeded"


async def test_verifying_a_job_reports_a_refused_completion_that_is_marked_as_accepted(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    refused = await complete_too_late(owner, other, hostile)
    hostile.mark_accepted("CompleteJob")
    hostile.run(
        "UPDATE jobs SET state = 'succeeded', ended_ms = 1, exit_code = 0, claimer = 'owner', last_op = ?3 "
        "WHERE scope_id = ?1 AND repository_id = ?2",
        refused.op_id,
    )
    await other.store.synced()
    (job,) = await other.jobs.queries.listed(kind="build")
    (fault,) = [each for each in (await verify_proof(other, job.job_id)).faults if "verdict" in each]
    assert fault.startswith(f"the verdict on op {refused.op_id}, or on one near it, was changed")


async def test_no_refused_completion_that_is_marked_as_accepted_gives_a_successor_its_outputs(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    refused = await complete_too_late(owner, other, hostile)
    (late,) = await other.jobs.queries.listed(kind="build")
    await owner.jobs.schedule("build", "successor", after=[late], priority=3)
    hostile.run(
        "UPDATE agent_oplog SET accepted = 1, reason = NULL "
        "WHERE scope_id = ?1 AND repository_id = ?2 AND op_id = ?3",
        refused.op_id,
    )
    hostile.run(
        "UPDATE jobs SET state = 'succeeded', ended_ms = 1, exit_code = 0, claimer = 'owner', last_op = ?3 "
        "WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?4",
        *(refused.op_id, late.job_id),
    )
    hostile.run("UPDATE jobs SET waits = 0 WHERE scope_id = ?1 AND repository_id = ?2")
    assert await runs(owner, other) == ["genuine"]
    assert not await other.jobs.authorship.ends.find([late.job_id])


async def test_a_job_whose_claim_was_refused_is_run_by_another_node(owner: MeshNode, other: MeshNode) -> None:
    await owner.job_kinds.pause("build")
    job = await owner.jobs.schedule("build", "paused")
    claim = owner.jobs.transitions.claim([{"job_id": job.job_id, "claim_token": 1}], 60_000)
    with pytest.raises(Refused, match="held_back"):
        await owner.store.write(claim)
    await owner.job_kinds.resume("build")
    await other.store.synced()
    assert await run_until_done(other, "paused") == ["paused"]
    assert other.jobs.authorship.forged == 0


async def test_a_new_key_whose_op_is_marked_as_refused_stays_in_force(
    owner: MeshNode, other: MeshNode, shared_mesh: SharedMesh, hostile: HostileWriter
) -> None:
    async with Mesh.open(shared_mesh.settings("third")) as third:
        await third.messages.send("z", "before", sender="a")
    key = stranger().public
    await owner.roles.rekey("third", key)
    hostile.mark_refused(REKEY)
    await other.store.synced()
    keys = await other.oplog.trusted_keys("third")
    assert keys[-1].public_key == key
    hostile.mark_accepted(REKEY)
    assert await other.oplog.trusted_keys("third") == keys


async def test_a_new_key_that_was_refused_does_not_count(owner: MeshNode, other: MeshNode) -> None:
    with pytest.raises(Refused, match="owner_keeps_its_key"):
        await owner.roles.rekey("owner", stranger().public)
    await other.store.synced()
    assert await other.oplog.trusted_keys("owner") == [Key("owner", 1, owner.identity.key.public)]
    await assert_whole(owner)
