"""Traces: each op of a job names the ops that led to it, and the log is in that order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from tests.support.oplog.authoring import NOTE, NOTE_KIND
from vox_mesh import JobContext, Manifest, Mesh, Op, Script, Settings, Yield
from vox_mesh.jobs.job_trace import TracedJob, attempt_outcome, trace_job
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.node import MeshNode
from vox_mesh.store.script import new_key
from vox_mesh.views.graphs.job_trace import TraceView, find_trace


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[MeshNode]:
    """A node with handlers: one that yields once, one that records an inference."""
    settings = Settings(enabled=True, db_path=tmp_path / "mesh.db", home_dir=tmp_path / "home")
    async with Mesh.open(settings) as node:

        @node.worker.handles("plain")
        async def plain(context: JobContext) -> None:
            if context.payload == "twice" and context.attempt == 1:
                raise Yield("once more", delay=0)

        @node.worker.handles("thinking")
        async def think(context: JobContext) -> None:
            await context.record_inference(model="m", version="1", prompt="p", output="o")

        yield node


def causes(entry: LogEntry) -> list[str]:
    """The ops that an entry names."""
    return list(orjson.loads(entry.causal_deps))


def kinds(job: TracedJob) -> list[str]:
    """What was done to a job."""
    return [entry.kind for entry in job.ops]


async def test_claim_start_and_completion_name_what_led_to_them(node: MeshNode) -> None:
    async with node.worker.running():
        first = await node.jobs.schedule("plain", "twice")
        then = await node.jobs.schedule("thinking", after=[first])
        await node.jobs.wait(then, timeout=30)
    trace = await trace_job(node.store, then.job_id)
    assert [job.job_id for job in trace.jobs] == [then.job_id, first.job_id]
    later, earlier = trace.jobs
    assert later.predecessors == [first.job_id]
    assert kinds(earlier) == [
        *("ScheduleJob", "ClaimWork", "StartWork", "YieldWork"),
        *("ClaimWork", "StartWork", "CompleteJob"),
    ]
    for cause, effect in zip(earlier.ops, earlier.ops[1:], strict=False):
        assert causes(effect) == [cause.op_id]
    assert kinds(later) == ["ScheduleJob", "ClaimWork", "StartWork", "RecordInference", "CompleteJob"]
    scheduled, claimed, started, inferred, completed = later.ops
    assert causes(claimed) == [scheduled.op_id, earlier.ops[-1].op_id]
    assert causes(started) == [claimed.op_id]
    assert causes(inferred) == [started.op_id]
    assert causes(completed) == [started.op_id, inferred.op_id]
    assert all(chain.problem is None for chain in await node.oplog.verify())


async def test_a_trace_tells_how_each_attempt_ended_and_can_be_of_one_job_alone(node: MeshNode) -> None:
    first = await node.jobs.schedule("plain", "twice")
    then = await node.jobs.schedule("plain", after=[first])
    never = await node.jobs.schedule("unhandled")
    async with node.worker.running():
        await node.jobs.wait(then, timeout=30)
    await node.jobs.abort(never, reason="too late")
    (earlier,) = TraceView.of(await find_trace(node, first.job_id)).jobs
    ends = [(op.kind, op.outcome, op.detail) for op in earlier.ops if op.outcome is not None]
    assert ends == [("YieldWork", "yielded", "once more"), ("CompleteJob", "succeeded", None)]
    alone = await find_trace(node, then.job_id, limit=1)
    assert ([job.job_id for job in alone.jobs], alone.is_cut) == ([then.job_id], True)
    (aborted,) = TraceView.of(await find_trace(node, never.job_id)).jobs
    assert [(op.outcome, op.detail) for op in aborted.ops] == [(None, None), ("aborted", "too late")]


@pytest.mark.parametrize("payload", ["no JSON", "[]", '{"jobs": 7}', '{"jobs": [null]}', '{"jobs": []}'])
def test_an_op_that_cannot_be_read_ends_no_attempt(payload: str) -> None:
    assert attempt_outcome("YieldWork", payload, "a" * 64) == (None, None)


async def test_an_op_about_many_jobs_is_traced_for_each_alone(node: MeshNode) -> None:
    jobs = await node.jobs.schedule_all([Manifest(kind="plain", payload=number) for number in range(8)])
    async with node.worker.running(concurrency=8):
        for job in jobs:
            await node.jobs.wait(job, timeout=30)
    for job in jobs:
        (traced,) = (await trace_job(node.store, job.job_id)).jobs
        assert kinds(traced) == ["ScheduleJob", "ClaimWork", "StartWork", "CompleteJob"]


async def test_verifying_names_an_op_that_comes_before_its_cause(node: MeshNode) -> None:
    node.oplog.register(NOTE_KIND)
    cause = new_key()
    effect = (await node.store.write(Script(op=Op(NOTE, "{}", (cause,))))).key
    (missing,) = await node.oplog.verify()
    assert missing.problem is not None
    assert cause in missing.problem
    assert missing.op_id == effect
    await node.store.write(Script(key=cause, op=Op(NOTE, "{}")))
    (later,) = await node.oplog.verify()
    assert later.op_id == effect


async def test_a_job_that_failed_with_another_shows_the_op_that_ended_it(node: MeshNode) -> None:
    first = await node.jobs.schedule("plain")
    then = await node.jobs.schedule("plain", after=[first])
    await node.jobs.abort(first, reason="not today")
    later, earlier = (await trace_job(node.store, then.job_id)).jobs
    assert kinds(earlier) == ["ScheduleJob", "AbortJob"]
    assert kinds(later)[-1] == "AbortJob"
