"""Reports of agents: only of the one that holds the job, with what it has kept and what it was answered."""

from __future__ import annotations

import pytest

from vox_mesh import Script, Statement
from vox_mesh.errors import Refused, StaleClaim
from vox_mesh.jobs.work.reports import needs_input, succeeded
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


@pytest.mark.parametrize("verdict", ["accepted = accepted", "result = '[]'"])
async def test_no_earlier_answer_is_given_to_a_later_question(verdict: str) -> None:
    async with MeshHarness() as harness:
        node = await harness.node()
        job = await node.jobs.schedule("work")
        (taken,) = await node.work.take("agent")
        await node.work.report(job, taken.claim_token, needs_input("May I look?"))
        first = await node.jobs.questions.of(job.job_id)
        assert first is not None
        await node.jobs.questions.answer(await node.jobs.find(job.job_id), "yes")
        (taken,) = await node.work.take("agent", wait="10s")
        assert taken.answer == "yes"
        await node.work.report(job, taken.claim_token, needs_input("May I delete it?"))
        of_mesh = "WHERE scope_id = ?1 AND repository_id = ?2"
        for change in (
            f"UPDATE job_questions SET question_id = ?3, answered_by = 'lead' {of_mesh}",
            f"UPDATE jobs SET waits = 0 {of_mesh} AND ?3 <> ''",
            f"UPDATE agent_oplog SET {verdict} {of_mesh} AND ?3 <> '' AND instr(payload, 'delete it')",
        ):
            await node.store.write(Script(Statement(change, (*node.store.mesh_id, first.question_id))))
        assert [each.answer for each in await node.work.take("agent")] == [None]


async def test_no_answer_is_given_to_another_question_than_the_one_that_was_shown() -> None:
    async with MeshHarness() as harness:
        node = await harness.node()
        job = await node.jobs.schedule("work")
        (taken,) = await node.work.take("agent")
        await node.work.report(job, taken.claim_token, needs_input("May I look?"))
        shown = await node.jobs.questions.of(job.job_id)
        assert shown is not None
        waiting = await node.jobs.find(job.job_id)
        await node.jobs.questions.answer(waiting, "no", "accomplice")
        (taken,) = await node.work.take("agent", wait="10s")
        await node.work.report(job, taken.claim_token, needs_input("May I delete it?"))
        with pytest.raises(Refused, match="already_answered"):
            await node.jobs.questions.answer(waiting, "yes", "lead", question_id=shown.question_id)
        assert [each.document["text"] for each in await node.jobs.questions.open()] == ["May I delete it?"]
