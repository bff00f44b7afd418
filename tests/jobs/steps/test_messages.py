"""Waiting for messages: a suspended job goes on with the message it waits for, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.jobs.steps.test_waits import suspended
from tests.support.jobs.job_desks import ended
from tests.support.messages.messaging import PATIENCE_S
from vox_mesh import JobContext, Message, Script, Statement
from vox_mesh.errors import BadValue, StepTimedOut
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.jobs.steps.job_waits import FoundMessage, JobWaits
from vox_mesh.node import MeshNode
from vox_mesh.testing import MeshHarness


@pytest.fixture
async def harness() -> AsyncIterator[MeshHarness]:
    async with MeshHarness() as harness:
        yield harness


async def test_a_job_goes_on_with_a_message_to_it(kept_node: MeshNode) -> None:
    seen: list[Message] = []

    @kept_node.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        seen.append(await context.wait_message())
        await context.sleep("1ms")
        return seen[-1].body

    job = await kept_node.jobs.schedule("work")
    async with kept_node.worker.running():
        waiting = await suspended(kept_node, job.job_id)
        assert (waiting.claimer, waiting.waits, waiting.reason) == (None, 1, "it waits for a message")
        sent = await kept_node.messages.send(f"job:{job.ulid}", {"paid": True}, sender="shop")
        assert await kept_node.jobs.result(job, timeout=PATIENCE_S) == {"paid": True}
    assert [each.message_uuid for each in seen] == [sent.message_uuid] * 2
    assert {each.sender_agent for each in seen} == {"shop"}
    found = await kept_node.messages.queries.get(sent.message_uuid)
    assert found.state == "acked"
    await kept_node.store.synced()
    rebuild = Rebuild(kept_node.store)
    assert (await rebuild.check(), rebuild.findings) == ([], [])
    assert (await kept_node.store.read("SELECT count(*) FROM job_waits", fresh=True)).value == 0


async def test_a_message_that_was_there_before_is_taken_at_once_and_only_what_fits(kept: MeshNode) -> None:
    @kept.worker.handles("work")
    async def handle(context: JobContext) -> list[Any]:
        first = await context.wait_message(thread="order-7", msg_type="paid")
        second = await context.wait_message(thread="order-7", to="desk")
        return [first.body, second.body, context.attempt]

    for body, thread, msg_type in ((1, "order-8", "paid"), (2, "order-7", "sent"), (3, "order-7", "paid")):
        await kept.messages.send("other", body, sender="shop", thread=thread, msg_type=msg_type)
    await kept.messages.send("desk", 4, sender="shop", thread="order-7")
    job = await kept.jobs.schedule("work")
    async with kept.worker.running():
        assert await kept.jobs.result(job, timeout=PATIENCE_S) == [3, 4, 1]
    left = await kept.messages.queries.peek(["other", "desk"])
    assert [each.body for each in left] == [1, 2]


async def test_jobs_that_wait_for_the_same_each_get_one(kept: MeshNode) -> None:
    @kept.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        return (await context.wait_message(to="desk", msg_type="task")).body

    jobs = [await kept.jobs.schedule("work", number) for number in range(3)]
    async with kept.worker.running():
        for job in jobs:
            await suspended(kept, job.job_id)
        for number in range(3):
            await kept.messages.send("desk", number, sender="shop", msg_type="task")
        results = [await kept.jobs.result(job, timeout=PATIENCE_S) for job in jobs]
    assert sorted(results) == [0, 1, 2]


async def test_a_message_that_no_node_has_signed_wakes_no_job_twice(kept: MeshNode) -> None:
    @kept.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        return (await context.wait_message(thread="order-7")).body

    forged = await kept.messages.send("desk", "forged", sender="shop", thread="order-7")
    await kept.store.write(_forge(forged))
    job = await kept.jobs.schedule("work")
    async with kept.worker.running():
        await suspended(kept, job.job_id)
        await kept.messages.send("desk", "genuine", sender="shop", thread="order-7")
        (finished,) = await ended(kept, job)
    assert await kept.jobs.result(job) == "genuine"
    assert finished.attempts == 2


async def test_a_message_is_not_lost_with_the_attempt_that_has_found_it(
    kept: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, Any]] = []
    claim_message = JobWaits.claim

    @kept.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        async def claim_and_lose_the_job(waits: JobWaits, *awaited: Any) -> FoundMessage:
            found = await claim_message(waits, *awaited)
            if context.attempt == 1:
                await kept.jobs.yield_job(context.job.job_id)
            return found

        monkeypatch.setattr(JobWaits, "claim", claim_and_lose_the_job)
        seen.append((context.attempt, (await context.wait_message()).body))
        return seen[-1]

    job = await kept.jobs.schedule("work")
    sent = await kept.messages.send(f"job:{job.ulid}", "hello", sender="shop")
    async with kept.worker.running():
        assert await kept.jobs.result(job, timeout=PATIENCE_S) == [2, "hello"]
    assert seen == [(2, "hello")]
    assert (await kept.messages.queries.get(sent.message_uuid)).state == "acked"


def _forge(message: Message) -> Script:
    sql = "UPDATE a2a_messages SET payload = '\"changed\"' WHERE message_uuid = ?"
    return Script(Statement(sql, (message.message_uuid,)))


async def test_what_is_waited_for_must_be_addressable(kept: MeshNode) -> None:
    @kept.worker.handles("work")
    async def handle(context: JobContext) -> list[str]:
        errors: list[str] = []
        for options in ({"thread": "\n"}, {"msg_type": ""}, {"to": "*"}):
            try:
                await context.wait_message(**options)
            except BadValue as error:
                errors.append(str(error).split()[0])
        return errors

    job = await kept.jobs.schedule("work")
    async with kept.worker.running():
        assert await kept.jobs.result(job, timeout=PATIENCE_S) == ["thread", "msg_type", "agent"]


@pytest.mark.parametrize("what", ["message", "answer", "job"])
async def test_a_wait_ends_at_its_deadline_and_later_attempts_see_the_same(
    harness: MeshHarness, what: str
) -> None:
    seen: list[str] = []
    may_end = asyncio.Event()

    async def wait(context: JobContext) -> Any:
        if what == "message":
            return await context.wait_message(deadline="1h", name="wait")
        if what == "answer":
            return await context.ask("Which?", deadline="1h", name="wait")
        return await context.run_job("child", deadline="1h", name="wait")

    async def handle(context: JobContext) -> str:
        try:
            await wait(context)
        except StepTimedOut as error:
            seen.append(f"{error.code} {error.step}")
        await context.sleep("1ms")
        return "went on"

    async def child(context: JobContext) -> None:
        await may_end.wait()

    node = await harness.node()
    node.worker.handles("work")(handle)
    node.worker.handles("child")(child)
    job = await node.jobs.schedule("work")
    async with node.worker.running():
        await harness.clock.advance("1s")
        waiting = await suspended(node, job.job_id)
        assert waiting.waits == 1
        await harness.clock.advance("59m")
        assert (await node.jobs.find(job)).attempts == 1
        for _ in range(3):
            await harness.clock.advance("1m")
        (finished,) = await ended(node, job)
        may_end.set()
        await harness.clock.advance("1s")
    assert (finished.state, finished.failures) == ("succeeded", 0)
    assert set(seen) == {"step_timed_out wait"}
    assert len(seen) >= 2
    rows = await node.jobs.steps.verified(job.job_id)
    assert [row.state for row in rows if row.name == "wait"] == ["waiting", "failed"]


async def test_what_comes_before_its_deadline_counts(harness: MeshHarness) -> None:
    async def handle(context: JobContext) -> list[Any]:
        child = context.run_job("child", 7, deadline="1h")
        message = context.wait_message(deadline="2h")
        both = await context.gather(child, message, context.sleep("10m"))
        return [both[0], both[1].body, await context.ask("Which?", deadline="1h")]

    async def child(context: JobContext) -> int:
        return int(context.payload) * 2

    node = await harness.node()
    node.worker.handles("work")(handle)
    node.worker.handles("child")(child)
    job = await node.jobs.schedule("work")
    async with node.worker.running():
        await harness.clock.advance("1s")
        await suspended(node, job.job_id)
        await harness.clock.advance("11m")
        await node.messages.send(f"job:{job.ulid}", "hello", sender="ada")
        while not (asked := await node.jobs.questions.open()):
            await harness.clock.advance("1s")
        assert asked[0].document["text"] == "Which?"
        await node.jobs.questions.answer(await node.jobs.find(job), "this")
        await harness.clock.advance("1s")
        assert await node.jobs.result(job, timeout=PATIENCE_S) == [14, "hello", "this"]


async def test_a_question_is_asked_again_when_a_deadline_of_another_step_has_closed_it(
    harness: MeshHarness,
) -> None:
    async def late(context: JobContext) -> str:
        try:
            return str(await context.wait_message(deadline="1h"))
        except StepTimedOut:
            return "none"

    async def handle(context: JobContext) -> list[Any]:
        return await context.gather(context.ask("Which?"), late(context))

    node = await harness.node()
    node.worker.handles("work")(handle)
    job = await node.jobs.schedule("work")
    async with node.worker.running():
        await harness.clock.advance("1s")
        await suspended(node, job.job_id)
        first = await node.jobs.questions.of(job.job_id)
        for _ in range(3):
            await harness.clock.advance("30m")
        second = await node.jobs.questions.of(job.job_id)
        assert first is not None
        assert second is not None
        assert first.question_id != second.question_id
        await node.jobs.questions.answer(await node.jobs.find(job), "this")
        await harness.clock.advance("1s")
        assert await node.jobs.result(job, timeout=PATIENCE_S) == ["this", "none"]
