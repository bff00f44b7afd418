"""Handlers: what they are given, what becomes of what they return, raise, say and leave."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from tests.support.jobs.job_desks import ended
from tests.support.jobs.jobs_in_hand import lapse, ops
from tests.support.jobs.proofs import proof_in_log
from tests.support.messages.messaging import PATIENCE_S
from vox_mesh import Script, Statement
from vox_mesh.errors import JobNotSucceeded, Refused, StaleClaim
from vox_mesh.jobs.worker.attempt import GiveUp, Yield
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.model.jobs.inference import SNAPSHOT
from vox_mesh.model.jobs.proof import MAX_ERROR, faults_of
from vox_mesh.model.jobs.records import CLAIM, COMPLETE, YIELD, Job
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.node import MeshNode

_SOON: Final = timedelta(milliseconds=20)
_MUCH: Final = 300_000


async def done(node: MeshNode, payload: Any = None, *, kind: str = "work", **options: Any) -> Job:
    """Have the node's worker do a job to its end."""
    job = await node.jobs.schedule(kind, payload, backoff=_SOON, **options)
    async with node.worker.running():
        return (await ended(node, job))[0]


async def left_by(node: MeshNode, job: Job) -> dict[str, bytes]:
    """What a job has left, by name."""
    return {each["name"]: await node.worker._artifacts.body(each["hash"]) for each in job.outputs}


# --- how they end --------------------------------------------------------------------------------


async def test_what_an_async_handler_returns_is_the_result(node: MeshNode) -> None:
    @node.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        return {"twice": context.payload * 2, "attempt": context.attempt}

    job = await done(node, 21)
    assert (job.state, job.attempts, job.failures) == ("succeeded", 1, 0)
    assert await left_by(node, job) == {"result": b'{"attempt":1,"twice":42}'}


async def test_a_handler_has_the_results_of_its_predecessors(node: MeshNode) -> None:
    @node.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        results = await context.results()
        return [context.payload, *results.values()]

    first = await node.jobs.schedule("work", "first")
    second = await node.jobs.schedule("work", "second", after=[first])
    async with node.worker.running():
        assert await node.jobs.result(second, timeout=PATIENCE_S) == ["second", ["first"]]


async def test_an_async_handler_that_is_stopped_sees_that_it_is_cancelled(node: MeshNode) -> None:
    begun, seen = asyncio.Event(), list[bool]()

    @node.worker.handles("work")
    async def handle(context: JobContext) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(context.is_cancelled)

    job = await node.jobs.schedule("work")
    async with node.worker.running():
        await begun.wait()
        await node.jobs.abort(job)
        await node.jobs.wait(job, timeout=PATIENCE_S)
        await node.worker.catch_up()
    assert seen == [True]


async def test_a_job_without_success_has_no_result(node: MeshNode) -> None:
    @node.worker.handles("work")
    async def handle(context: JobContext) -> None:
        raise GiveUp("not today")

    job = await done(node)
    with pytest.raises(JobNotSucceeded, match="not today"):
        await node.jobs.result(job)


async def test_a_handler_that_is_not_async_runs_beside_the_others(local: MeshNode) -> None:
    met = threading.Barrier(2, timeout=PATIENCE_S)

    @local.worker.handles("work")
    def handle(context: JobContext) -> Any:
        met.wait()
        context.progress(0.5, "met")
        context.run(context.checkpoint({"at": context.payload}))
        return threading.current_thread() is threading.main_thread()

    jobs = [await local.jobs.schedule("work", number) for number in range(2)]
    async with local.worker.running():
        both = await ended(local, *jobs)
    assert [await left_by(local, job) for job in both] == [{"result": b"false"}] * 2
    notes = [await local.jobs.notes.of(job.job_id) for job in jobs]
    assert [(each.progress, each.message, each.checkpoint) for each in notes] == [
        (0.5, "met", '{"at":0}'),
        (0.5, "met", '{"at":1}'),
    ]


async def test_without_a_result_nothing_is_left(local: MeshNode) -> None:
    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        pass

    assert (await done(local)).outputs == []


def is_held_back(said: Sequence[Any], claims: Sequence[LogEntry], *bounds: tuple[int, int]) -> bool:
    """Whether each was, within its bounds in ms: from a moment between its claim and what is said of it."""
    claimed_ms = [orjson.loads(entry.payload)["at_ms"] for entry in claims]
    return all(
        since_ms + shortest <= each["jobs"][0]["not_before_ms"] <= each["at_ms"] + longest
        for each, since_ms, (shortest, longest) in zip(said, claimed_ms[: len(said)], bounds, strict=True)
    )


async def test_a_handler_that_fails_is_tried_again_later_and_in_the_end_no_more(node: MeshNode) -> None:
    @node.worker.handles("work")
    async def handle(context: JobContext) -> None:
        raise ValueError(f"attempt {context.attempt}")

    job = await done(node, max_attempts=3)
    assert (job.state, job.attempts, job.failures) == ("failed", 3, 3)
    assert job.reason == "ValueError: attempt 3"
    said = [orjson.loads(entry.payload) for entry in await ops(node, YIELD)]
    assert [each["jobs"][0]["reason"] for each in said] == ["ValueError: attempt 1", "ValueError: attempt 2"]
    assert is_held_back(said, await ops(node, CLAIM), (15, 20), (30, 40))


async def test_what_is_given_back_is_no_failure_and_comes_again_after_its_delay(local: MeshNode) -> None:
    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        if context.attempt < 3:
            raise Yield("the model is busy", delay=0.05)

    job = await done(local, max_attempts=1)
    assert (job.state, job.attempts, job.failures) == ("succeeded", 3, 0)
    said = [orjson.loads(entry.payload) for entry in await ops(local, YIELD)]
    assert [each["jobs"][0]["reason"] for each in said] == ["the model is busy"] * 2
    assert is_held_back(said, await ops(local, CLAIM), (50, 50), (50, 50))
    assert local.worker.stats.yielded == 2


async def test_without_a_delay_what_is_given_back_comes_again_after_its_backoff(local: MeshNode) -> None:
    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        if context.attempt == 1:
            raise Yield

    job = await done(local)
    assert (job.state, job.attempts, job.failures) == ("succeeded", 2, 0)
    (given,) = await ops(local, YIELD)
    payload = orjson.loads(given.payload)
    assert payload["jobs"][0]["not_before_ms"] > payload["at_ms"]


async def test_the_place_of_a_call_that_goes_on_in_its_thread_is_taken(local: MeshNode) -> None:
    begun, may_end = [], threading.Event()

    @local.worker.handles("work", concurrency=1)
    def handle(context: JobContext) -> None:
        begun.append(context.attempt)
        may_end.wait(PATIENCE_S)

    first = await local.jobs.schedule("work", 1, timeout=1, max_attempts=1)
    second = await local.jobs.schedule("work", 2)
    async with local.worker.running():
        (job,) = await ended(local, first)
        assert job.reason == "it took longer than 1 s"
        assert (len(begun), local.presence.activity.load) == (1, 1)
        may_end.set()
        (job,) = await ended(local, second)
    assert (job.state, len(begun)) == ("succeeded", 2)


async def test_who_gives_up_is_not_tried_again(local: MeshNode) -> None:
    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        raise GiveUp("there is no such page")

    job = await done(local)
    assert (job.state, job.attempts, job.reason) == ("failed", 1, "GiveUp: there is no such page")


async def test_a_handler_that_takes_too_long_is_stopped(local: MeshNode) -> None:
    stopped = []

    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(context.attempt)

    @local.worker.handles("other")
    async def hurry(context: JobContext) -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    jobs = [
        await local.jobs.schedule("work", timeout=1, max_attempts=1),
        await local.jobs.schedule("other", timeout=60, max_attempts=1),
    ]
    async with local.worker.running():
        job, other = await ended(local, *jobs)
    assert (job.state, job.reason, stopped) == ("failed", "it took longer than 1 s", [1])
    assert other.reason == "TimeoutError", "that was its own"


async def _exit(context: JobContext) -> None:
    sys.exit("no more")


async def _cancel(context: JobContext) -> None:
    raise asyncio.CancelledError


async def _cancel_itself(context: JobContext) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.Event().wait()


async def _cancel_itself_and_return(context: JobContext) -> None:
    task = asyncio.current_task()
    assert task is not None
    context.log("said last")
    task.cancel()


async def _cancel_itself_and_raise(context: JobContext) -> None:
    await _cancel_itself_and_return(context)
    raise ValueError("no more")


async def _surrogate(context: JobContext) -> None:
    raise ValueError("no text: \ud800 and \0")


async def _long(context: JobContext) -> None:
    raise ValueError("x" * _MUCH)


async def _no_json(context: JobContext) -> Any:
    return object()


class _Odd(BaseException):
    """What no one should raise, and someone does."""


async def _odd(context: JobContext) -> None:
    raise _Odd("no more")


def _odd_in_thread(context: JobContext) -> None:
    raise _Odd("no more")


def _exit_in_thread(context: JobContext) -> None:
    sys.exit(3)


def _stop_iteration(context: JobContext) -> None:
    next(iter(()))


@pytest.mark.parametrize(
    "handler",
    [
        *(_exit, _cancel, _cancel_itself, _cancel_itself_and_return, _cancel_itself_and_raise),
        *(_odd, _surrogate, _long, _no_json),
        *(_exit_in_thread, _stop_iteration, _odd_in_thread),
    ],
)
async def test_however_a_handler_fails_only_its_job_does(local: MeshNode, handler: Any) -> None:
    @local.worker.handles("good")
    async def good(context: JobContext) -> None:
        await met.wait()

    met = asyncio.Barrier(2)

    local.worker.handles("work")(handler)
    kinds = ("work", "good", "good")
    jobs = [await local.jobs.schedule(kind, max_attempts=2, backoff=_SOON) for kind in kinds]
    async with local.worker.running():
        bad, *others = await ended(local, *jobs)
    assert [bad.state, *(job.state for job in others)] == ["failed", "succeeded", "succeeded"]
    assert bad.failures == 2
    assert 0 < len(bad.reason or "") <= MAX_ERROR
    assert local.worker.running_count == 0


# --- what they say -------------------------------------------------------------------------------


async def test_the_next_attempt_goes_on_at_the_checkpoint(node: MeshNode) -> None:
    resumed = []

    @node.worker.handles("work")
    async def handle(context: JobContext) -> None:
        resumed.append(context.resumed)
        await context.checkpoint({"step": context.attempt})
        if context.attempt < 3:
            raise ValueError("not yet")

    await done(node)
    assert resumed == [None, {"step": 1}, {"step": 2}]


async def test_what_a_handler_says_is_there_when_its_job_has_ended(node: MeshNode) -> None:
    @node.worker.handles("work")
    async def handle(context: JobContext) -> None:
        context.log("begun")
        context.progress(0.25, "a quarter")
        context.log("going on\n")
        context.progress(0.75)
        context.log("half a \ud800 and \0 are no text")

    job = await done(node)
    assert job.state == "succeeded"
    pieces = await node.jobs.notes.logged(job.job_id)
    assert [(each.stream, each.text) for each in pieces] == [
        ("log", "begun\n"),
        ("log", "going on\n"),
        ("log", "half a ? and \N{REPLACEMENT CHARACTER} are no text\n"),
    ]
    note = await node.jobs.notes.of(job.job_id, fresh=True)
    assert (note.progress, note.message) == (0.75, "a quarter")


async def test_much_is_said_and_a_part_of_it_is_kept(local: MeshNode) -> None:
    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        for _ in range(3):
            context.log("x" * (_MUCH // 2))

    job = await done(local)
    pieces = await local.jobs.notes.logged(job.job_id)
    assert sum(len(each.text) for each in pieces) < _MUCH
    assert pieces[-1].text.endswith("in the artifacts)\n")


# --- what they leave -----------------------------------------------------------------------------


async def test_all_that_is_left_is_part_of_the_proof(node: MeshNode, tmp_path: Path) -> None:
    @node.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        (tmp_path / "made").write_bytes(bytes(_MUCH))
        await context.keep("words", "some")
        await context.keep_file("file", tmp_path / "made")
        await context.record_inference(model="m", version="1", prompt="p", output="o")
        return 1

    job = await done(node)
    left = await left_by(node, job)
    assert {name: len(body) for name, body in left.items() if name != "inference-1"} == {
        "words": 4,
        "file": _MUCH,
        "result": 1,
    }
    assert orjson.loads(left["inference-1"])["source_job"] == job.job_id
    (entry,) = await ops(node, COMPLETE)
    (item,) = orjson.loads(entry.payload)["jobs"]
    proof = await proof_in_log(node, job)
    assert faults_of(proof, job_id=job.job_id, worker_key=node.identity.key.public) == []
    assert proof.envelope["outputs"] == item["output_artifacts"] == job.outputs


async def test_an_audited_kind_does_not_succeed_without_its_inference(node: MeshNode) -> None:
    await node.job_kinds.audit("work")

    @node.worker.handles("work")
    async def handle(context: JobContext) -> None:
        if context.payload or context.attempt > 1:
            await context.record_inference(model="m", version="1", prompt="p", output="o")

    job = await done(node, False)
    assert (job.state, job.attempts, job.failures) == ("succeeded", 2, 1)
    assert [each["type"] for each in job.outputs] == [SNAPSHOT]
    refused = {entry.reason for entry in await ops(node, COMPLETE) if not entry.accepted}
    assert "inference_not_recorded" in refused


async def test_an_audited_kind_that_never_records_fails_and_says_why(local: MeshNode) -> None:
    await local.job_kinds.audit("work")

    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        pass

    job = await done(local, max_attempts=2)
    assert (job.state, job.failures) == ("failed", 2)
    assert "inference" in (job.reason or "")


# --- the fence -----------------------------------------------------------------------------------


async def test_what_is_written_behind_the_fence_is_refused_when_the_claim_is_lost(node: MeshNode) -> None:
    scope_id = node.store.writer_id[0]
    await node.store.write(Script(Statement("CREATE TABLE IF NOT EXISTS fenced (scope TEXT, step INTEGER)")))
    verdicts = asyncio.Queue[str]()

    async def put(context: JobContext, step: int) -> None:
        insert = Statement("INSERT INTO fenced VALUES (?, ?)", (scope_id, step))
        await node.store.write(Script(context.fence(), insert))

    async def refused(doing: Coroutine[None, None, None]) -> None:
        with pytest.raises(Refused) as refusal:
            await doing
        verdicts.put_nowait(refusal.value.reason)

    async def lose_claim_and_try(context: JobContext) -> None:
        await lapse(node, context.job.job_id)
        await node.jobs.expire([context.job])
        await asyncio.gather(refused(put(context, 10)), refused(context.checkpoint("late")))

    @node.worker.handles("work")
    async def handle(context: JobContext) -> None:
        await put(context, context.attempt)
        if context.attempt == 1:
            # It is cancelled as soon as the claim is lost: its further attempts run next to it.
            trials = asyncio.ensure_future(lose_claim_and_try(context))
            await asyncio.shield(trials)

    job = await done(node)
    said = [await asyncio.wait_for(verdicts.get(), PATIENCE_S) for _ in range(2)]
    rows = await node.store.read("SELECT step FROM fenced WHERE scope = ?", (scope_id,), fresh=True)
    assert sorted(row[0] for row in rows) == [1, 2]
    assert (job.state, job.attempts, job.interruptions) == ("succeeded", 2, 1)
    assert said == [StaleClaim.code] * 2


# --- steps ---------------------------------------------------------------------------------------


async def test_an_attempt_without_steps_makes_nothing_that_runs_them(local: MeshNode) -> None:
    contexts: list[JobContext] = []

    @local.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        contexts.append(context)
        return None if context.payload is None else await context.step("one", lambda: 1)

    assert (await done(local)).state == (await done(local, "with a step")).state == "succeeded"
    assert [context.used_steps is None for context in contexts] == [True, False]


async def test_no_first_step_begins_after_an_attempt_has_ended(local: MeshNode) -> None:
    contexts: list[JobContext] = []

    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        contexts.append(context)

    job = await done(local)
    with pytest.raises(StaleClaim):
        await contexts[0].step("late", lambda: 1)
    assert await local.jobs.steps.verified(job.job_id) == []
