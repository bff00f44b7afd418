"""Changed checkpoints: an attempt resumes only from what a worker of its job has signed."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.attacks.hostile_writer import HostileWriter
from vox_mesh import JobContext, Yield
from vox_mesh.jobs.steps.attempt_signatures import AttemptSignatures
from vox_mesh.jobs.steps.job_checkpoints import JobCheckpoints
from vox_mesh.model.jobs.records import START
from vox_mesh.node import MeshNode

PATIENCE_S = 30.0
OF_JOB = "WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?3"


async def interrupt(node: MeshNode, names: list[str]) -> dict[str, str]:
    """Have a node begin jobs, save a checkpoint of each, and return them to the queue; their ids."""
    begun: dict[str, str] = {}

    @node.worker.handles("work")
    async def work(context: JobContext) -> None:
        await context.checkpoint({"of": context.payload})
        begun[context.payload] = context.job.job_id
        raise Yield(delay=0)

    jobs = [await node.jobs.schedule("work", name) for name in names]
    async with asyncio.timeout(PATIENCE_S), node.worker.running(concurrency=1):
        async for turn in node.store.changes():
            with turn.retry_if_unavailable():
                if all([(await node.jobs.find(job)).attempts for job in jobs]) and len(begun) == len(jobs):
                    break
    return begun


async def resume(node: MeshNode, names: list[str]) -> dict[str, Any]:
    """Run the jobs, and return what each has resumed from."""
    resumed: dict[str, Any] = {}
    done = asyncio.Event()

    @node.worker.handles("work")
    async def work(context: JobContext) -> None:
        resumed[context.payload] = context.resumed
        if len(resumed) == len(names):
            done.set()

    async with asyncio.timeout(PATIENCE_S), node.worker.running(concurrency=1):
        await done.wait()
    return resumed


async def test_an_attempt_resumes_only_from_what_a_worker_of_its_job_signed(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    names = ["genuine", "changed", "unsigned", "of another", "by a stranger", "with an op of a stranger"]
    ids = await interrupt(owner, names)
    forged = '{"of":"forged"}'

    def change(name: str, settings: str, *values: Any) -> None:
        hostile.run(f"UPDATE job_notes SET {settings} {OF_JOB}", ids[name], *values)

    change("changed", "checkpoint = ?4", forged)
    change("unsigned", "checkpoint = ?4, signature = NULL, start_op = NULL", forged)
    (signed,) = hostile.run(f"SELECT checkpoint, start_op, signature FROM job_notes {OF_JOB}", ids["genuine"])
    change("of another", "checkpoint = ?4, start_op = ?5, signature = ?6", *signed)
    signatures = AttemptSignatures(owner.store, owner.trusted_keys, lambda: hostile.key)
    signer = JobCheckpoints(owner.store, signatures)
    for name in ("by a stranger", "with an op of a stranger"):
        job = await owner.jobs.find(ids[name])
        (row,) = hostile.run(f"SELECT start_op FROM job_notes {OF_JOB}", ids[name])
        start_op = str(row[0])
        if "op" in name:
            item = {"job_id": job.job_id, "claim_token": job.claim_token}
            start_op = hostile.plant_entry("owner/cli", START, {"at_ms": 1, "jobs": [item]}).op_id
            hostile.plant_key("owner/cli", 0)
        text, *signature = signer.sign(job._replace(last_op=start_op), forged)
        change(name, "checkpoint = ?4, start_op = ?5, signature = ?6", text, *signature)
    await other.store.synced()
    resumed = await resume(other, names)
    assert resumed == dict.fromkeys(names) | {"genuine": {"of": "genuine"}}
