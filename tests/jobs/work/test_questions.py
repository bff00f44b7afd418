"""Questions: an attempt asks, the job waits without a worker, and goes on with the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.jobs.steps.test_waits import suspended
from tests.support.jobs.job_desks import idle
from tests.support.jobs.jobs_in_hand import ops
from tests.support.messages.messaging import PATIENCE_S
from tests.support.oplog.authoring import assert_sound
from vox_mesh.errors import BadValue, NoAnswer, NotKnown, Refused
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.jobs.work.reports import needs_input, succeeded
from vox_mesh.jobs.worker.attempt import NeedsInput
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.model.jobs.question import ANSWER, ESCALATE, EXPIRED, Question
from vox_mesh.node import MeshNode
from vox_mesh.store.acting import acting_as
from vox_mesh.store.script import Script, Statement
from vox_mesh.testing.harness import MeshHarness


@pytest.fixture
async def harness() -> AsyncIterator[MeshHarness]:
    async with MeshHarness() as harness:
        yield harness


async def asked(node: MeshNode, question: Question | str, agent: str = "coder", **more: Any) -> str:
    """A job of which an agent has asked this."""
    job = await node.jobs.schedule("work", **more)
    (taken,) = await node.work.take(agent, wait=PATIENCE_S)
    waiting = await node.work.report(job, taken.claim_token, needs_input(question))
    assert (waiting.state, waiting.waits, waiting.failures) == ("pending", 1, 0)
    return job.job_id


async def test_a_job_waits_for_its_answer_and_goes_on_with_it(node: MeshNode) -> None:
    job_id = await asked(node, Question("Which branch?", choices=["main", "next"], to="lead"))
    assert await node.work.take("coder") == []
    (question,) = await node.jobs.questions.open("lead")
    assert (question.job_id, question.asked_by) == (job_id, "coder")
    assert question.document["text"] == "Which branch?"
    (message,) = await node.messages.poll_inbox_from_db("lead")
    assert (message.msg_type, message.body["job_id"]) == ("question", job_id)
    job = await node.jobs.find(job_id)
    with pytest.raises(BadValue):
        await node.jobs.questions.answer(job, "other")
    with acting_as("lead"):
        for _ in range(2):  # the same answer again is the same
            answered = await node.jobs.questions.answer(job, "next")
    assert answered.answered_by == "lead"
    with pytest.raises(Refused, match="already_answered"):
        await node.jobs.questions.answer(job, "main")
    assert await node.jobs.questions.open() == []
    (taken,) = await node.work.take("other", wait=PATIENCE_S)
    assert (taken.answer, taken.job.attempts, taken.job.failures) == ("next", 2, 0)
    await node.work.report(job, taken.claim_token, succeeded())
    (op,) = await ops(node, ANSWER)
    assert (op.op_id, op.agent) == (question.question_id, "lead")
    rebuild = Rebuild(node.store)
    assert (await rebuild.check(), rebuild.findings) == ([], [])
    await assert_sound(node)


async def test_a_handler_asks_and_gets_the_answer(local: MeshNode) -> None:
    @local.worker.handles("ask")
    async def ask(context: JobContext) -> Any:
        if context.answer is None:
            raise NeedsInput(Question("How many?", schema={"type": "integer"}))
        return context.answer

    job = await local.jobs.schedule("ask")
    async with local.worker.running():
        while not await local.jobs.questions.open():
            await local.store.changed(local.store.change_count)
        with pytest.raises(BadValue, match="integer"):
            await local.jobs.questions.answer(await local.jobs.find(job), True)
        await local.jobs.questions.answer(await local.jobs.find(job), 3)
        await local.jobs.wait(job, timeout=PATIENCE_S)
    assert await local.jobs.result(job) == 3


async def test_an_answer_that_is_only_a_row_is_not_given(local: MeshNode) -> None:
    job_id = await asked(local, "Which?")
    with pytest.raises(NotKnown):
        await local.jobs.questions.answer(await local.jobs.find(await local.jobs.schedule("other")), 1)
    planted = "UPDATE job_questions SET answered_by = 'mallory'"
    await local.store.write(Script(Statement(planted, ()), Statement("UPDATE jobs SET waits = 0", ())))
    (taken,) = await local.work.take("coder", ["work"], wait=PATIENCE_S)
    assert (taken.job.job_id, taken.answer) == (job_id, None)


async def test_a_question_is_passed_on_and_expires(harness: MeshHarness) -> None:
    node = await harness.node()
    question = Question("Go on?", to="one", escalate_to="two", escalate_s=60, expires_s=300)
    job_id = await asked(node, question)
    after = await node.jobs.schedule("after", after=[job_id])
    await harness.clock.advance("61s")
    assert [each.asked_of for each in await node.jobs.questions.open()] == ["two"]
    assert len(await node.messages.poll_inbox_from_db("two")) == 1
    assert len(await ops(node, ESCALATE)) == 1
    await harness.clock.advance("240s")
    ended = await node.jobs.find(job_id)
    assert (ended.state, ended.reason) == ("aborted", EXPIRED)
    assert (await node.jobs.find(after)).state == "failed"
    assert await node.jobs.questions.of(job_id) is None
    with pytest.raises(NotKnown):
        await node.jobs.questions.answer(ended, True)


@pytest.mark.parametrize(
    "wrong",
    [
        Question(""),
        Question("a", choices=["x", "x"]),
        Question("a", choices=["x"], schema={}),
        Question("a", schema={"pattern": "x"}),
        Question("a", schema={"type": "any"}),
        Question("a", escalate_to="two"),
    ],
)
def test_questions_that_cannot_be_asked_are_refused(wrong: Question) -> None:
    with pytest.raises(BadValue):
        wrong.checked()


async def test_a_job_waits_though_its_question_can_not_be_sent(
    local: MeshNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was written stands: the question is in the list."""
    read = local.store.read

    async def away(sql: str, *values: Any, **options: Any) -> Any:
        if "job_questions" in sql:
            raise NoAnswer("the answer did not come")
        return await read(sql, *values, **options)

    @local.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        return await context.ask(Question("Go on?", to="lead"))

    async with local.worker.running():
        with monkeypatch.context() as outage:
            outage.setattr(local.store, "read", away)
            job = await local.jobs.schedule("work")
            await suspended(local, job.job_id)
            await idle(local)
        assert not [each for each in caplog.records if each.levelname == "ERROR"]
        assert [each.getMessage() for each in caplog.records if "question not sent" in each.getMessage()] == [
            f"question not sent: job_id={job.job_id}: the answer did not come"
        ]
        await local.jobs.questions.answer(await local.jobs.find(job), True)
        assert await local.jobs.result(job, timeout=PATIENCE_S) is True
