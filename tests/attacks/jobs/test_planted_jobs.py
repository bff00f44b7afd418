"""Planted jobs: a worker runs only what an author signed, and who took what was not its own is found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.attacks.ended_jobs import PATIENCE_S, end_job, put_back, run_until_done
from tests.support.attacks.hostile_writer import HostileWriter
from vox_mesh.jobs.queries import PlacedJob
from vox_mesh.model.base.canonical import canonical, text_id
from vox_mesh.model.jobs.records import SCHEDULE, Job
from vox_mesh.node import MeshNode
from vox_mesh.store import new_key
from vox_mesh.views.jobs import rebuild_roster, verify_proof


def planted(payload: str) -> dict[str, Any]:
    """Return the row of a job that no author scheduled."""
    manifest = canonical({"kind": "build", "nonce": new_key(), "payload": payload})
    return {
        "job_id": text_id(manifest),
        "ulid": new_key(),
        "kind": "build",
        "priority": 3,
        "not_before_ms": 0,
        "max_attempts": 3,
        "backoff_ms": 1_000,
        "created_ms": 0,
        "scheduled_by": "owner",
        "seed": "00" * 16,
        "last_op": new_key(),
        "manifest": manifest,
    }


async def test_a_job_without_a_signed_op_is_not_run(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    hostile.insert("jobs", **planted("only a row"))
    # With an entry in a chain of the owner's, which only the hostile key signed.
    row = planted("a row and an entry")
    item = {"job_id": row["job_id"], "manifest": {"kind": "build"}, "at_ms": 0}
    item |= {name: row[name] for name in ("ulid", "kind", "priority", "max_attempts", "backoff_ms", "seed")}
    entry = hostile.plant_entry("owner/cli", SCHEDULE, {"at_ms": 0, "jobs": [item]})
    hostile.plant_key("owner/cli", 0)
    hostile.insert("jobs", **row | {"last_op": new_key()})
    # With the op of another job, which is genuine.
    genuine = await owner.jobs.schedule("build", "genuine", priority=0)
    found = await owner.jobs.find(genuine.job_id)
    hostile.insert("jobs", **planted("with another's op") | {"last_op": found.last_op})
    # An entry in a chain without a key.
    hostile.plant_entry("stranger", SCHEDULE, {"at_ms": 0, "jobs": [item]}, node_id="stranger")
    assert entry.signature is not None
    await other.store.synced()
    assert await run_until_done(other, "genuine") == ["genuine"]
    assert other.jobs.authorship.forged >= 3
    assert len(await other.jobs.queries.listed(kind="build")) == 4


async def test_a_genuine_job_whose_row_was_changed_is_not_run(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    jobs = [await owner.jobs.schedule("build", name, priority=3) for name in ("one", "two", "early")]
    bound = ("bound", "otherwise bound")  # in a phase that is not now, whichever that is
    now = owner.rhythm.frame().phase
    phase = "plan" if now == "review" else "review"
    jobs += [await owner.jobs.schedule("build", name, priority=3, during=phase) for name in bound]
    await owner.jobs.schedule("build", "genuine", priority=0)
    of_job = "WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?3"
    hostile.run(f"UPDATE jobs SET manifest = replace(manifest, 'one', 'another') {of_job}", jobs[0].job_id)
    hostile.run(f"UPDATE jobs SET max_attempts = 1000 {of_job}", jobs[1].job_id)
    hostile.run(f"UPDATE jobs SET not_before_ms = 1 {of_job}", jobs[2].job_id)
    hostile.run(f"UPDATE jobs SET binding = NULL {of_job}", jobs[3].job_id)
    hostile.run(f"UPDATE jobs SET binding = 'during:{now}' {of_job}", jobs[4].job_id)
    await other.store.synced()
    assert await run_until_done(other, "genuine") == ["genuine"]


@pytest.mark.parametrize("how", ["completed", "aborted", "completed, with the op of another"])
async def test_a_job_that_has_ended_is_not_run_again_when_its_row_was_put_back(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter, how: str
) -> None:
    row = await end_job(owner, "ended", how)
    if "another" in how:  # of a job that was returned to the queue after it
        ended = await owner.jobs.find(row.job_id)
        put_back(hostile, row, claim_token=ended.claim_token, last_op=await _yielded(owner))
    else:
        put_back(hostile, row)
    await owner.jobs.schedule("build", "genuine", priority=0)
    await other.store.synced()
    assert await run_until_done(other, "genuine") == ["genuine"]
    assert other.jobs.authorship.forged == 1


async def _yielded(node: MeshNode) -> str:
    """Have a job claimed and returned to the queue; return the op."""
    job = await node.jobs.schedule("build", "returned", priority=0)
    item = {"job_id": job.job_id, "claim_token": 1}
    await node.store.write_all(node.jobs.transitions.take([item], [item], 60_000))
    held = {"job_id": job.job_id, "claim_token": 1, "not_before_ms": node.clock.now_ms + 10**8}
    outcome = await node.store.write(node.jobs.transitions.yield_jobs([held]))
    return outcome.key


async def test_a_job_that_was_returned_to_the_queue_is_run_by_another_node(
    owner: MeshNode, other: MeshNode
) -> None:
    job = await owner.jobs.schedule("build", "genuine")
    item = {"job_id": job.job_id, "claim_token": 1}
    await owner.store.write_all(owner.jobs.transitions.take([item], [item], 60_000))
    await owner.store.write(owner.jobs.transitions.yield_jobs([item]))
    await other.store.synced()
    assert await run_until_done(other, "genuine") == ["genuine"]
    assert other.jobs.authorship.forged == 0


async def _believe(jobs: Sequence[PlacedJob]) -> list[Job]:
    """Take every row for genuine, as a modified worker does."""
    return [job for job, *_ in jobs]


async def test_a_planted_job_that_was_completed_has_no_proof(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    row = planted("planted")
    hostile.insert("jobs", **row)
    await other.store.synced()
    other.jobs.authorship.genuine = _believe  # type: ignore[method-assign]
    assert await run_until_done(other, "planted") == ["planted"]
    await other.jobs.wait(row["job_id"], timeout=PATIENCE_S)
    await owner.store.synced()
    verified = await verify_proof(owner, row["job_id"])
    assert verified.faults == ["no op signed by 'owner' schedules it as the table of jobs has it"]


async def test_a_client_that_takes_what_is_routed_elsewhere_is_found(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    await owner.roles.route_kind("build", "owner")
    job = await owner.jobs.schedule("build", "routed")
    await other.store.synced()
    # A modified client leaves the guards out: here the route is gone while it claims.
    of_route = "WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'RouteKind'"
    hostile.run(f"UPDATE agent_oplog SET accepted = 0, reason = 'x' {of_route}")
    assert await run_until_done(other, "routed") == ["routed"]
    await other.jobs.wait(job.job_id, timeout=PATIENCE_S)
    hostile.run(f"UPDATE agent_oplog SET accepted = 1, reason = NULL {of_route}")
    await owner.store.synced()
    problem = f"job {job.job_id} was not allowed: build was routed to owner"
    (broken,) = [each for each in await owner.oplog.verify() if each.problem]
    (completion,) = await owner.oplog.tail(1, node_id="other", kind="CompleteJob")
    assert (broken.node_id, broken.op_id) == ("other", completion.op_id)
    assert broken.problem == f"its completion of {problem}"
    findings = (await rebuild_roster(owner)).findings
    what = "other was not allowed to claim it: build was routed to owner"
    assert [(each.kind, each.what) for each in findings] == [("ClaimWork", what), ("CompleteJob", what)]
    assert (await verify_proof(owner, job.job_id)).faults == [what]
