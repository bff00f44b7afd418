"""The worker: which jobs it takes, how many at a time, what stops its work, and how it stops itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tests.support.jobs.job_desks import ControlledHandler, ended, idle, scheduled
from tests.support.jobs.jobs_in_hand import accepted, claim, ids, most_in_hand, ops
from tests.support.messages.messaging import PATIENCE_S, NodeGroup, crowd_on
from tests.support.oplog.authoring import RestartableNodes, assert_sound
from tests.support.running.lengths import SHARED_HOMES, SOAK
from tools.homes import FILE
from vox_mesh import Mesh
from vox_mesh.errors import BadValue
from vox_mesh.jobs.queries import ClaimableJobs
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import CLAIM
from vox_mesh.node import MeshNode

_ROUNDS: Final = 20 if SOAK else 1


@pytest.fixture(params=SHARED_HOMES, ids=str)
async def several(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[NodeGroup]:
    """Any number of nodes that hear of each other's commits."""
    server = request.getfixturevalue("shared_server") if request.param.needs_server else None
    async with crowd_on(request.param, tmp_path, server) as crowd:
        yield crowd


@pytest.fixture
async def desk(local: MeshNode) -> ControlledHandler:
    """One for the kind `work`, of a node where the home makes no difference."""
    return ControlledHandler(local)


# --- what it takes -------------------------------------------------------------------------------


async def test_kinds_without_a_handler_are_left_alone(local: MeshNode, desk: ControlledHandler) -> None:
    ControlledHandler(local, "other.*")
    desk.may_end.set()
    left = [await local.jobs.schedule(kind) for kind in ("another", "other.one", "works", "exec.not")]
    async with local.worker.running(kinds=["work"]):
        await ended(local, await local.jobs.schedule("work"))
    assert {(await local.jobs.find(job)).state for job in left} == {"pending"}
    assert [entry.accepted for entry in await ops(local, CLAIM)] == [1]


async def test_there_must_be_something_to_work_with(local: MeshNode) -> None:
    with pytest.raises(BadValue, match="no handlers and runs no commands"):
        await local.worker.start()
    ControlledHandler(local)
    with pytest.raises(BadValue, match="no handler for other"):
        await local.worker.start(kinds=["other"])
    for places in (0, 100_000):
        with pytest.raises(BadValue, match="concurrency must be between 1 and 1000"):
            await local.worker.start(concurrency=places)


@pytest.mark.parametrize("name", ["claimable", "still_claimable"])
async def test_who_is_stopped_while_it_looks_takes_nothing(
    local: MeshNode, desk: ControlledHandler, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, stopping = getattr(local.jobs.queries, name), asyncio.get_running_loop().create_future()

    async def stopped_meanwhile(*asked: Any, **more: Any) -> Any:
        found = await look(*asked, **more)
        stopping.set_result(asyncio.create_task(local.worker.stop()))
        await asyncio.sleep(0)
        return found

    monkeypatch.setattr(local.jobs.queries, name, stopped_meanwhile)
    await scheduled(local, 1)
    await local.worker.start()
    await (await stopping)
    assert await ops(local, CLAIM) == []


async def test_no_more_are_in_hand_than_there_are_places(node: MeshNode) -> None:
    narrow, wide = ControlledHandler(node, "narrow", concurrency=2), ControlledHandler(node, "wide")
    jobs = [*await scheduled(node, 8, "narrow"), *await scheduled(node, 8, "wide")]
    async with node.worker.running(concurrency=5):
        for _ in range(2):
            await narrow.next()
        for _ in range(3):
            await wide.next()
        assert node.worker.running_count == 5
        narrow.may_end.set()
        wide.may_end.set()
        await ended(node, *jobs)
    assert (narrow.most, node.worker.stats.succeeded) == (2, 16)
    assert narrow.in_hand + wide.in_hand == 0
    assert await most_in_hand(node) == 5


async def test_the_most_urgent_come_first_and_then_the_ones_that_wait_longest(
    local: MeshNode, desk: ControlledHandler
) -> None:
    desk.may_end.set()
    jobs = [await local.jobs.schedule("work", n, priority=n % 4) for n in range(8)]
    async with local.worker.running(concurrency=1):
        await ended(local, *jobs)
    assert desk.order == [3, 7, 2, 6, 1, 5, 0, 4]


async def test_a_job_begins_when_its_time_has_come_and_not_before(
    local: MeshNode, desk: ControlledHandler
) -> None:
    at = datetime.fromtimestamp((local.clock.now_ms + 300) / 1_000, UTC)
    later = await local.jobs.schedule("work", "later", run_at=at, priority=3)
    never = await local.jobs.schedule("work", "never", run_at=at + timedelta(days=1))
    now = await local.jobs.schedule("work", "now")
    desk.may_end.set()
    async with local.worker.running():
        done = await ended(local, now, later)
    assert desk.order == ["now", "later"]
    assert (done[1].started_ms or 0) >= done[1].not_before_ms >= int(at.timestamp() * 1_000)
    assert (await local.jobs.find(never)).state == "pending"


async def test_what_is_routed_elsewhere_is_not_even_tried(several: NodeGroup) -> None:
    owner, other = await several.node("one"), await several.node("two")
    desks = [
        ControlledHandler(owner),
        ControlledHandler(other),
        ControlledHandler(owner, "free"),
        ControlledHandler(other, "free"),
    ]
    for desk in desks:
        desk.may_end.set()
    await owner.run_once()
    await owner.roles.route_kind("work", "two")
    await other.store.synced()
    async with owner.worker.running(), other.worker.running():
        jobs = [*await scheduled(owner, 12), *await scheduled(owner, 12, "free")]
        done = await ended(owner, *jobs)
    assert {job.claimer for job in done if job.kind == "work"} == {"two"}
    refused = [entry.reason for entry in await ops(owner, CLAIM) if not entry.accepted]
    assert "routed_elsewhere" not in refused


async def test_a_node_that_is_drained_takes_no_more_until_that_is_undone(several: NodeGroup) -> None:
    one, two = await several.node("one"), await several.node("two")
    desks = [ControlledHandler(one), ControlledHandler(two)]
    for desk in desks:
        desk.may_end.set()
    await one.job_kinds.drain("one")
    await one.store.synced()
    await two.store.synced()
    async with one.worker.running(), two.worker.running():
        done = await ended(one, *await scheduled(one, 10))
        assert {job.claimer for job in done} == {"two"}
        await two.job_kinds.drain("two")
        await two.store.synced()
        job = await two.jobs.schedule("work")
        await two.job_kinds.undrain("one")
        (last,) = await ended(two, job)
        assert last.claimer == "one"


async def test_a_kind_that_is_paused_waits_and_goes_on_at_once(node: MeshNode) -> None:
    desk, other = ControlledHandler(node), ControlledHandler(node, "other")
    desk.may_end.set()
    other.may_end.set()
    await node.job_kinds.pause("work")
    async with node.worker.running(concurrency=2):
        waiting = await scheduled(node, 30)  # more than are looked at at once
        await ended(node, *await scheduled(node, 4, "other"))
        assert desk.order == []
        (first,) = await ended(node, await node.jobs.schedule("other"))
        await node.job_kinds.resume("work")
        begun = await asyncio.wait_for(desk.begun.get(), PATIENCE_S)
        late_ms = node.clock.now_ms - (first.ended_ms or 0)
        assert begun.job.kind == "work"
        assert late_ms < 3_000, "as soon as it becomes known, not with the next tick"
        await ended(node, *waiting)


async def test_a_kind_that_has_no_place_left_keeps_no_other_from_its_own(node: MeshNode) -> None:
    limited, other = ControlledHandler(node, "limited"), ControlledHandler(node, "other")
    other.may_end.set()
    await node.job_kinds.limit("limited", max_running=1)
    jobs = await scheduled(node, 100, "limited")
    async with node.worker.running(concurrency=4):
        await limited.next()
        await ended(node, *await scheduled(node, 20, "other"))
        assert (limited.most, limited.in_hand) == (1, 1)
        await node.jobs.abort(*ids(jobs[3:]))
        limited.may_end.set()
        await asyncio.gather(*(node.jobs.wait(job, timeout=PATIENCE_S) for job in jobs))
    assert limited.most == 1


# --- what stops its work -------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["abort", "give back"])
async def test_work_on_a_job_that_is_taken_away_is_stopped_at_once(node: MeshNode, how: str) -> None:
    desk = ControlledHandler(node)
    job = await node.jobs.schedule("work")
    async with node.worker.running():
        begun = await desk.next()
        if how == "abort":
            await node.jobs.abort(job)
        else:
            await node.jobs.yield_job(job, delay=timedelta(hours=1))
        assert await desk.next_stopped() is begun
        assert begun.is_cancelled
    found = await node.jobs.find(job)
    assert (found.state, found.failures, found.attempts) == (
        "aborted" if how == "abort" else "pending",
        0,
        1,
    )
    assert node.worker.stats.refused == 0, "nothing is said of it any more"


async def test_a_handler_in_a_thread_is_asked_to_stop(local: MeshNode) -> None:
    reported = asyncio.Queue[bool]()
    begun, loop = asyncio.Event(), asyncio.get_running_loop()

    @local.worker.handles("work")
    def handle(context: JobContext) -> None:
        loop.call_soon_threadsafe(begun.set)
        loop.call_soon_threadsafe(reported.put_nowait, context.wait_cancelled(PATIENCE_S))

    job = await local.jobs.schedule("work")
    async with local.worker.running():
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        await local.jobs.abort(job)
        assert await asyncio.wait_for(reported.get(), PATIENCE_S)


# --- how it stops --------------------------------------------------------------------------------


async def test_what_can_end_in_time_does_and_the_rest_is_given_back(node: MeshNode) -> None:
    quick, slow = ControlledHandler(node, "quick"), ControlledHandler(node, "slow")
    jobs = [await node.jobs.schedule(kind) for kind in ("quick", "slow")]
    await node.worker.start()
    await quick.next()
    await slow.next()
    stopping = asyncio.create_task(node.worker.stop(grace=0.5))
    quick.may_end.set()
    await stopping
    one, other = [await node.jobs.find(job) for job in jobs]
    assert (one.state, one.failures) == ("succeeded", 0)
    assert (other.state, other.failures, other.claimer, other.reason) == (
        *("pending", 0, None),
        "its worker stopped",
    )
    assert (node.worker.running_count, node.worker.is_running) == (0, False)


async def test_what_must_not_be_run_again_fails_with_its_worker(node: MeshNode) -> None:
    desk = ControlledHandler(node)
    job = await node.jobs.schedule("work", max_interruptions=0)
    await node.worker.start()
    await desk.next()
    await node.worker.stop(grace=0)
    found = await node.jobs.find(job)
    assert (found.state, found.reason) == (
        "failed",
        "interrupted more often than max_interruptions (0) allows: its worker stopped",
    )


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(_ROUNDS))
async def test_stopped_in_the_middle_of_much_work_it_leaves_nothing_claimed(
    several: NodeGroup, seed: int
) -> None:
    random = Random(seed)
    nodes = [await several.node(name) for name in ("one", "two")]
    begun, enough = 0, asyncio.Event()

    async def handle(context: JobContext) -> None:
        nonlocal begun
        begun += 1
        if begun >= goal:
            enough.set()
        await asyncio.sleep(random.random() / 200)

    for node in nodes:
        node.worker.handles("work")(handle)
    jobs = await scheduled(nodes[0], 150)
    for _ in range(3):
        enough.clear()
        goal = begun + random.randrange(1, 40)
        for node in nodes:
            await node.worker.start()
        await asyncio.wait_for(enough.wait(), PATIENCE_S)
        await asyncio.gather(*(node.worker.stop(random.random() / 100) for node in nodes))
        for name in ("one", "two"):
            assert await nodes[0].jobs.queries.held_by(name, fresh=True) == []
    async with nodes[0].worker.running(concurrency=50):
        done = await ended(nodes[0], *jobs)
    assert {(job.state, job.failures) for job in done} == {("succeeded", 0)}


async def test_what_its_former_self_had_in_hand_is_given_back(there: RestartableNodes) -> None:
    async with there.node() as former:
        await former.run_once()
        desk = ControlledHandler(former)
        job = await former.jobs.schedule("work", max_attempts=1)
        last = await former.jobs.schedule("work", max_interruptions=0)
        await former.worker.start()
        await desk.next()
        await desk.next()
        async with there.node() as now:  # the former one is not asked: it might as well be dead
            await now.run_once()
            again = ControlledHandler(now)
            again.may_end.set()
            async with now.worker.running():
                (done,) = await ended(now, job)
                assert (done.state, done.attempts, done.failures) == ("succeeded", 2, 0)
                assert done.interruptions == 1
                assert (await now.jobs.find(last)).state == "running", "its lease decides"
        await former.worker.stop(0)


# --- commands ------------------------------------------------------------------------------------


@asynccontextmanager
async def executing(folder: Path, **more: Any) -> AsyncIterator[MeshNode]:
    """A node whose worker runs commands."""
    async with (
        Mesh.open(FILE.settings(folder, None, worker_exec=True, **more)) as node,
        node.worker.running(),
    ):
        yield node


async def test_a_command_runs_to_its_end_and_all_that_it_printed_is_kept(tmp_path: Path) -> None:
    text = "printf 'sm\\303\\270rrebr\\303\\270d'; echo oh no >&2; exit $CODE"
    command = ["/bin/sh", "-c", text]
    async with executing(tmp_path) as node:
        jobs = await node.jobs.schedule_all(
            [
                Manifest.of(command=command, timeout=30, env={"CODE": code}, max_attempts=1)
                for code in ("0", "7")
            ]
        )
        good, bad = await ended(node, *jobs)
        assert (good.state, good.exit_code, good.reason) == ("succeeded", 0, None)
        assert (bad.state, bad.exit_code, bad.reason) == ("failed", 7, "ended with exit code 7")
        for job in (good, bad):
            left = {each["name"]: await node.worker._artifacts.body(each["hash"]) for each in job.outputs}
            assert left == {"stdout": "smørrebrød".encode(), "stderr": b"oh no\n"}
            logged = await node.jobs.notes.logged(job.job_id)
            assert {(each.stream, each.text) for each in logged} == {
                ("stdout", "smørrebrød"),
                ("stderr", "oh no\n"),
            }
        await assert_sound(node)


async def test_a_command_that_is_aborted_is_gone_with_all_it_has_started(tmp_path: Path) -> None:
    async with executing(tmp_path) as node:
        mark = tmp_path / "mark"
        command = ["/bin/sh", "-c", f"echo begun; sleep 600 & sleep 600; touch {mark}"]
        (job,) = await node.jobs.schedule_all([Manifest.of(command=command, timeout=700)])
        async with asyncio.timeout(PATIENCE_S):
            async for piece in node.jobs.notes.follow(job.job_id):
                assert piece.text == "begun\n"
                await node.jobs.abort(job)
        await idle(node)
        assert not mark.exists()


async def test_where_commands_are_not_allowed_they_are_left_alone(
    local: MeshNode, desk: ControlledHandler
) -> None:
    desk.may_end.set()
    (command,) = await local.jobs.schedule_all([Manifest.of(command=["/bin/true"], timeout=1)])
    async with local.worker.running():
        await ended(local, await local.jobs.schedule("work"))
    assert (await local.jobs.find(command)).state == "pending"
    assert sum(len(each) for each in await accepted(local, CLAIM)) == 1


async def test_a_job_in_other_hands_is_none_of_its_business(several: NodeGroup) -> None:
    one, two = await several.node("one"), await several.node("two")
    ControlledHandler(two).may_end.set()
    job = await one.jobs.schedule("work")
    await claim(one, job)
    await two.store.synced()
    async with two.worker.running():
        await ended(two, await two.jobs.schedule("work"))
    assert (await one.jobs.find(job)).claimer == "one"


async def test_a_job_that_comes_due_while_the_worker_looks_is_not_missed(
    local: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    ControlledHandler(local).may_end.set()
    looks = local.jobs.queries.claimable

    async def look_slowly(*args: Any, **options: Any) -> ClaimableJobs:
        """Look; and when that is done, what was not ready yet is."""
        found = await looks(*args, **options)
        due_ms = await local.jobs.queries.next_due_ms(["work"])
        while due_ms is not None and local.clock.now_ms <= due_ms:
            pass  # nothing else happens meanwhile
        return found

    monkeypatch.setattr(local.jobs.queries, "claimable", look_slowly)
    async with local.worker.running():
        soon = datetime.now(UTC) + timedelta(milliseconds=300)
        (job,) = await ended(local, await local.jobs.schedule("work", run_at=soon))
    assert job.state == "succeeded"


async def test_a_worker_that_is_being_started_is_not_started_once_more(local: MeshNode) -> None:
    local.worker.handles("work")(print)
    outcomes = await asyncio.gather(*(local.worker.start() for _ in range(2)), return_exceptions=True)
    assert [type(each) for each in outcomes] == [type(None), BadValue]
