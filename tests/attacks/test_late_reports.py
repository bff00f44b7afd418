"""Reports of agents: only of the one that holds the job, and only with what it has kept."""

from __future__ import annotations

import pytest

from vox_mesh import Script, Statement
from vox_mesh.errors import StaleClaim
from vox_mesh.jobs.work.reports import succeeded
from vox_mesh.testing.harness import MeshHarness


async def test_a_late_report_of_an_agent_is_refused() -> None:
    async with MeshHarness() as harness:
        node = await harness.node()
        job = await node.jobs.schedule("work")
        (late,) = await node.work.take("late", lease="30s")
        await harness.clock.advance("31s")
        (current,) = await node.work.take("current")
        with pytest.raises(StaleClaim):
            await node.work.report(job, late.claim_token, succeeded("of the late one"))
        await node.work.report(job, current.claim_token, succeeded("of the current one"))
        assert await node.jobs.result(job) == "of the current one"


async def test_no_planted_artifact_becomes_an_output_of_an_agent() -> None:
    async with MeshHarness() as harness:
        node = await harness.node()
        jobs = [await node.jobs.schedule("work", number) for number in range(3)]
        taken = {each.job.job_id: each for each in await node.work.take("agent", count=3)}
        genuine, changed, planted = (taken[job.job_id] for job in jobs)
        for each in (genuine, changed):
            await node.work.keep(each.job, each.claim_token, "out", b"made by the agent", "text/plain")
        forged = await node.artifacts.keep(b"forged", name="out", type="text/plain")
        for job, artifacts in (
            (changed, "json_set(artifacts, '$[0].hash', ?4)"),
            (planted, "(SELECT artifacts FROM job_takes WHERE job_id = ?5)"),
        ):
            sql = (
                f"UPDATE job_takes SET artifacts = {artifacts} WHERE scope_id = ?1 AND repository_id = ?2 "
                "AND job_id = ?3 AND ?4 <> ?5"
            )
            values = (*node.store.mesh_id, job.job.job_id, forged.hash, genuine.job.job_id)
            await node.store.write(Script(Statement(sql, values)))
        reported = [
            await node.work.report(each.job, each.claim_token, succeeded()) for each in taken.values()
        ]
        assert {each.job_id: len(each.outputs) for each in reported} == {
            genuine.job.job_id: 1,
            changed.job.job_id: 0,
            planted.job.job_id: 0,
        }
