"""Typed jobs: scheduled with their arguments, called with them, and their results are of their type."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from tests.support.jobs.jobs_in_hand import ops
from tests.support.messages.messaging import PATIENCE_S
from vox_mesh import JobContext, Manifest, MeshApp, acting_as, load_settings
from vox_mesh.errors import BadArguments, BadValue, JobNotSucceeded, NotKnown, StepFailed, WrongThread
from vox_mesh.model.oplog.op_names import SET_KIND
from vox_mesh.node import MeshNode

_SOON: Final = timedelta(milliseconds=20)

app = MeshApp()
"""The jobs of these tests; each test runs them on a mesh of its own."""


@dataclass
class Report:
    title: str
    words: int


@app.job("report.build", retries=2, backoff=_SOON, priority=2)
async def build(context: JobContext, title: str, pages: int = 1) -> Report:
    """Build a report."""
    if pages < 0 and context.attempt <= -pages:
        raise RuntimeError("no paper")
    return Report(title, pages * 100)


@app.job("report.count")
def count(words: list[str]) -> int:
    """Count words, in a thread."""
    return len(words)


@app.job("report.all")
async def build_all(context: JobContext, titles: list[str]) -> list[Report]:
    """Build reports as children."""
    return await context.gather(*(build.run_child(context, each, 2) for each in titles))


@app.job("report.chain")
async def chain(title: str) -> str:
    """Schedule another job from within."""
    return (await build.schedule(title)).job_id


@app.job("report.chain_in_thread")
def chain_in_thread(context: JobContext, title: str) -> str:
    """Schedule another job from within a thread."""
    return context.run(build.schedule(title)).job_id


@app.job("report.notes")
async def take_notes(context: JobContext, tries: int) -> list[Any]:
    """Use what a context has."""
    calls = 0

    def fail_at_first() -> int:
        nonlocal calls
        calls += 1
        if calls < tries:
            raise RuntimeError("not yet")
        return calls

    context.progress(0.5, "half")
    context.log("a line")
    await context.checkpoint({"at": 1})
    await context.sleep("3h")
    context.charge(model="m", input_tokens=3)
    kept = await context.keep("note", "text")
    value = await context.step("flaky", fail_at_first, retries=2)
    return [value, kept.name, await context.version("v", 2), context.job.kind, context.attempt]


@pytest.fixture
async def mesh(node: MeshNode) -> AsyncIterator[MeshNode]:
    """A node that runs the jobs of the app."""
    node.worker.handlers.include(app.handlers)
    with app.using(node):
        async with node.worker.running():
            yield node


# --- scheduling and results --------------------------------------------------------------------------


async def test_a_call_is_a_job_whose_result_is_of_the_declared_type(mesh: MeshNode) -> None:
    handle = await build.schedule("bees", pages=3)
    assert await handle.result(timeout=PATIENCE_S) == Report("bees", 300)
    job = await mesh.jobs.find(handle.job_id)
    assert (job.kind, job.payload) == ("report.build", {"title": "bees", "pages": 3})
    assert (job.max_attempts, job.backoff_ms, job.priority) == (3, 20, 2)
    assert await build.handle(job.job_id).result() == Report("bees", 300)
    assert await (await count.delay(["a", "b"])).result(timeout=PATIENCE_S) == 2


async def test_many_calls_are_scheduled_in_one_write(local: MeshNode) -> None:
    handles = await build.on(local).schedule_all([build.payload("a"), {"title": "b", "pages": 2}])
    jobs = [await local.jobs.find(each.job_id) for each in handles]
    assert [each.payload for each in jobs] == [{"title": "a"}, {"title": "b", "pages": 2}]
    assert jobs[0].last_op == jobs[1].last_op


async def test_one_wrong_call_among_many_schedules_none(mesh: MeshNode) -> None:
    with pytest.raises(BadArguments, match=r"argument pages of report\.build: must be a valid integer"):
        await build.schedule_all([build.payload("a"), {"title": "b", "pages": "two"}])
    assert "report.build" not in await mesh.jobs.queries.counts()


async def test_options_of_a_call_do_not_change_the_job(local: MeshNode) -> None:
    on_local = build.on(local)
    urgent = on_local.with_options(priority=3, retries=0, delay="1h", tags=["gpu"], lease="90s")
    first = await urgent.schedule("bees")
    second = await on_local.with_options(after=[first], new=False).schedule("ants")
    third = await on_local.with_options(after=[first], new=False).schedule("ants")
    job, plain = [await local.jobs.find(each.job_id) for each in (first, second)]
    assert (job.priority, job.max_attempts, job.lease_ms, [*job.tags]) == (3, 1, 90_000, ["gpu"])
    assert 3_590_000 < job.not_before_ms - job.created_ms <= 3_600_000
    assert (plain.priority, plain.max_attempts, plain.waits) == (2, 3, 1)
    assert third.job_id == second.job_id
    with pytest.raises(BadValue, match="delay and run_at can't be combined"):
        on_local.with_options(delay=1, run_at=datetime(2030, 1, 1, tzinfo=UTC))


async def test_a_failed_attempt_is_retried_as_often_as_declared(mesh: MeshNode) -> None:
    assert await (await build.schedule("a", -2)).result(timeout=PATIENCE_S) == Report("a", -200)
    with pytest.raises(JobNotSucceeded, match="RuntimeError: no paper"):
        await (await build.schedule("b", -3)).result(timeout=PATIENCE_S)


async def test_a_handle_of_a_job_of_another_kind_has_no_result(mesh: MeshNode) -> None:
    handle = await count.schedule(["a"])
    with pytest.raises(BadValue, match=r"must be of kind report\.build, got report\.count"):
        await build.handle(handle.job_id).result(timeout=PATIENCE_S)


async def test_an_aborted_job_has_no_result(local: MeshNode) -> None:
    handle = await build.on(local).schedule("bees")
    assert await handle.abort("not needed")
    assert not await handle.abort()
    with pytest.raises(JobNotSucceeded, match="is aborted: not needed"):
        await handle.result(timeout=PATIENCE_S)


async def test_a_wrong_payload_of_another_program_fails_the_job_at_once(mesh: MeshNode) -> None:
    job = await mesh.jobs.wait(
        await mesh.jobs.schedule("report.build", {"title": 5, "pages": 1}, max_attempts=5), timeout=PATIENCE_S
    )
    assert (job.state, job.attempts) == ("failed", 1)
    assert job.reason is not None
    assert job.reason.startswith(
        "bad_arguments: argument title of report.build: must be a valid string, got 5"
    )


# --- within other jobs -------------------------------------------------------------------------------


async def test_children_of_a_job_are_typed_too(mesh: MeshNode) -> None:
    handle = await build_all.schedule(["a", "b"])
    assert await handle.result(timeout=PATIENCE_S) == [Report("a", 200), Report("b", 200)]


async def test_a_job_schedules_others_on_the_mesh_in_which_it_runs(node: MeshNode) -> None:
    node.worker.handlers.include(app.handlers)
    async with node.worker.running():  # the app is not open here, as in `worker run --app`
        for job in (chain.on(node), chain_in_thread.on(node)):
            job_id = await (await job.schedule("bees")).result(timeout=PATIENCE_S)
            assert await build.on(node).handle(job_id).result(timeout=PATIENCE_S) == Report("bees", 100)


async def test_without_an_open_mesh_nothing_is_scheduled() -> None:
    with pytest.raises(BadValue, match="the app has no open mesh"):
        await build.schedule("bees")


# --- here --------------------------------------------------------------------------------------------


async def test_run_inline_needs_no_mesh() -> None:
    assert await build.run_inline("bees", pages=2) == Report("bees", 200)
    assert await count.run_inline(["a"]) == 1
    assert await build_all.run_inline(["a"]) == [Report("a", 200)]
    assert await take_notes.run_inline(3) == [3, "note", 2, "report.notes", 1]
    with pytest.raises(StepFailed, match="step flaky failed: RuntimeError: not yet"):
        await take_notes.run_inline(4)
    with pytest.raises(BadArguments, match=r"argument pages of report\.build"):
        await build.run_inline("bees", pages="two")  # type: ignore[arg-type]


async def test_what_needs_a_mesh_says_so_inline() -> None:
    mesh = MeshApp()

    @mesh.job("asks")
    async def ask(context: JobContext) -> Any:
        return await context.ask("may I?")

    @mesh.job("runs")
    async def run(context: JobContext) -> Any:
        return await context.run_job("other")

    for job, call in ((ask, "context.ask"), (run, "context.run_job")):
        with pytest.raises(BadValue, match=f"{call} needs a mesh, and run_inline has none"):
            await job.run_inline()


async def test_a_result_that_is_not_of_the_declared_type_is_refused() -> None:
    mesh = MeshApp()

    @mesh.job("lies")
    async def lie() -> list[Report]:
        return "no list"  # type: ignore[return-value]

    with pytest.raises(BadValue, match="lies returned str, not what it declares"):
        await lie.run_inline()


async def test_context_run_on_the_loop_is_refused_instead_of_waiting_for_itself(mesh: MeshNode) -> None:
    refused: list[str] = []

    @mesh.worker.handles("blocks")
    async def block(context: JobContext) -> None:
        try:
            context.run(context.checkpoint(1))
        except WrongThread as error:
            refused.append(error.code)

    await mesh.jobs.result(await mesh.jobs.schedule("blocks"), timeout=PATIENCE_S)
    assert refused == ["wrong_thread"]


async def test_a_job_of_another_app_is_scheduled_on_the_mesh_that_is_open_there() -> None:
    ours, theirs = MeshApp(), MeshApp()

    @theirs.job("bill.send")
    async def send(number: int) -> int:
        return number

    @ours.job("bill.make")
    async def make(number: int) -> list[str]:
        other = await make.with_options(delay="1h").schedule(number + 1)
        return [(await send.schedule(number)).job_id, other.job_id]

    off = load_settings(_env_file=None, enabled=False)
    async with ours.open(off) as one, one.worker.running():
        await one.run_once()
        with_theirs_closed, _ = await (await make.schedule(1)).result(timeout=PATIENCE_S)
        assert (await one.jobs.find(with_theirs_closed)).kind == "bill.send"
        async with theirs.open(off) as two:
            sent, made = await (await make.schedule(2)).result(timeout=PATIENCE_S)
            assert (await two.jobs.find(sent)).kind == "bill.send"
            assert (await one.jobs.find(made)).kind == "bill.make"
            with pytest.raises(NotKnown):
                await one.jobs.find(sent)


# --- limits of the kind ------------------------------------------------------------------------------


async def test_workers_set_how_many_of_a_kind_may_run_in_the_mesh(local: MeshNode) -> None:
    most = running = 0

    @local.job("scarce", max_running=2, concurrency=5)
    async def work(number: int) -> int:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return number

    async with local.worker.running(concurrency=8):
        handles = await work.schedule_all([{"number": each} for each in range(8)])
        assert [await each.result(timeout=PATIENCE_S) for each in handles] == [*range(8)]
    assert {each.kind: each.max_running for each in await local.job_kinds.listed()} == {"scarce": 2}
    assert most <= 2


async def test_a_limit_that_is_set_already_is_not_written_again(local: MeshNode) -> None:
    @local.job("scarce", max_running=2)
    async def work() -> None: ...

    for _ in range(2):
        async with local.worker.running():
            pass
    assert len(await ops(local, SET_KIND)) == 1


async def test_a_worker_that_may_not_set_a_limit_works_without_it(
    local: MeshNode, caplog: pytest.LogCaptureFixture
) -> None:
    @local.job("scarce", max_running=2)
    async def work() -> int:
        return 1

    await local.grants.admit("ann")
    handle = await work.schedule()
    with acting_as("ann"):
        await local.worker.start()
    assert await handle.result(timeout=PATIENCE_S) == 1
    await local.worker.stop()
    assert await local.job_kinds.listed() == []
    assert "limits of kinds not set: kinds=scarce" in caplog.text


async def test_a_manifest_made_elsewhere_is_the_same_job_as_a_call(local: MeshNode) -> None:
    manifest = Manifest.of(kind="report.build", payload={"title": "bees"})
    (first,) = await local.jobs.schedule_all([manifest], new=False)
    handle = await build.on(local).with_options(new=False).schedule("bees")
    assert handle.job_id == first.job_id
