"""The roster rebuilt from the log: it shows what was changed, mends it, and is right while others write."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from tests.support.jobs.staging import LEASE_MS, claim, end, held, lapse, new_item, row_of, schedule, start
from tests.support.messages.messaging import NodeGroup, write
from tests.support.oplog.authoring import RestartableNodes
from vox_mesh import MeshError
from vox_mesh.errors import BadValue
from vox_mesh.jobs import rebuild as of_rebuild
from vox_mesh.jobs.rebuild import Difference, Rebuild
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import JobState
from vox_mesh.model.jobs.replay import COLUMNS, JobReplay
from vox_mesh.model.jobs.routes import RouteHistory
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.deletion import NO_DELETIONS
from vox_mesh.model.oplog.verification import ChainWitness
from vox_mesh.node import MeshNode
from vox_mesh.oplog.pages import Pages

_OF_JOB = "scope_id = ?1 AND repository_id = ?2 AND job_id = ?3"
_OTHER: dict[str, Any] = {
    "state": "running",
    "waits": 7,
    "priority": 3,
    "max_attempts": 9,
    "claimer": "mallory",
    "claim_token": 40,
    "lease_until_ms": 99,
    "started_ms": 98,
}


async def staged(node: MeshNode) -> list[str]:
    """Jobs in many states, some of which wait for others."""
    done = await schedule(node)
    await end(node, done, JobState.SUCCEEDED)
    held_by = await schedule(node, lease_ms=5_000)
    await claim(node, held_by)
    working = await schedule(node, kind="other.kind")
    await start(node, working)
    lost = await schedule(node, max_attempts=1)
    doomed = await schedule(node, after=[(lost, "success"), (done, "success")])
    free = await schedule(node, after=[(doomed, "end"), (working, "success")])
    await claim(node, lost)
    await lapse(node, lost)
    await node.store.write(node.jobs.transitions.expire([held(lost, 1)]))
    await node.store.synced()
    return [done, held_by, working, lost, doomed, free]


async def counted(node: MeshNode) -> bool:
    """Whether the counts are those of the rows."""
    sql = "SELECT kind, state, count(*) FROM jobs WHERE scope_id = ? AND repository_id = ? GROUP BY 1, 2"
    found: dict[str, dict[str, int]] = {}
    for kind, state, jobs in await node.store.read(sql, node.store.mesh_id, fresh=True):
        found.setdefault(str(kind), {})[str(state)] = int(str(jobs))
    await node.store.synced()
    return found == await node.jobs.queries.counts()


async def test_a_deferred_job_waits_until_its_predecessor_is_scheduled_and_has_succeeded(
    node: MeshNode,
) -> None:
    first = Manifest.of(kind="work", payload=1)
    later = await node.jobs.schedule("work", 2, after=[first.content_id], defer=True)
    with pytest.raises(BadValue, match="a predecessor does not exist"):
        await node.jobs.schedule("work", 3, after=[first.content_id])
    await node.store.synced()
    rebuild = Rebuild(node.store)
    assert (await rebuild.check(), rebuild.findings) == ([], [])
    (scheduled,) = await node.jobs.schedule_all([first], new=False)
    assert (await node.jobs.find(later)).waits == 1
    await end(node, scheduled.job_id, JobState.SUCCEEDED)
    assert (await node.jobs.find(later)).waits == 0
    await node.store.synced()
    assert await Rebuild(node.store).check() == []


async def test_a_roster_that_no_one_touched_is_what_the_log_says(node: MeshNode) -> None:
    assert await Rebuild(node.store).check() == []
    await staged(node)
    rebuild = Rebuild(node.store)
    assert (await rebuild.check(), rebuild.findings) == ([], [])


async def test_rows_that_were_changed_are_shown_and_mended(node: MeshNode) -> None:
    jobs = await staged(node)
    before = [await row_of(node, job_id) for job_id in jobs]
    await write(node, f"UPDATE jobs SET state = 'aborted', ended_ms = 5, waits = 3 WHERE {_OF_JOB}", jobs[5])
    await write(node, f"UPDATE jobs SET reason = 'none', kind = 'x' WHERE {_OF_JOB}", jobs[3])
    await write(node, f"DELETE FROM job_predecessors WHERE {_OF_JOB}", jobs[4])
    await node.store.synced()
    rebuild = Rebuild(node.store)
    found = await rebuild.check()
    assert [each[:2] for each in found] == [
        (jobs[3], "kind"),
        (jobs[3], "reason"),
        (jobs[4], "after"),
        (jobs[5], "state"),
        (jobs[5], "waits"),
        (jobs[5], "ended_ms"),
    ]
    assert found[1] == Difference(jobs[3], "reason", "none", "the lease ran out")
    assert await rebuild.repair() == found
    await node.store.synced()
    assert await rebuild.check() == []
    assert [await row_of(node, job_id) for job_id in jobs] == before
    assert await counted(node)


async def test_rows_that_are_gone_come_back_in_their_places(node: MeshNode) -> None:
    jobs = await staged(node)
    before = [await row_of(node, job_id) for job_id in jobs]
    for job_id in (jobs[0], jobs[3], jobs[4]):
        await write(node, f"DELETE FROM jobs WHERE {_OF_JOB}", job_id)
        await write(node, f"DELETE FROM job_predecessors WHERE {_OF_JOB}", job_id)
    await node.store.synced()
    rebuild = Rebuild(node.store)
    missing = [Difference(job_id, "job_id", None, job_id) for job_id in (jobs[0], jobs[3], jobs[4])]
    assert await rebuild.repair() == missing
    await node.store.synced()
    assert await rebuild.check() == []
    assert [await row_of(node, job_id) for job_id in jobs] == before
    assert await counted(node)


async def test_a_roster_that_was_lost_as_a_whole_is_written_again(local: MeshNode) -> None:
    jobs = await staged(local)
    before = [await row_of(local, job_id) for job_id in jobs]
    for table in ("jobs", "job_predecessors", "job_counts"):
        await write(local, f"DELETE FROM {table} WHERE scope_id = ?1 AND repository_id = ?2")
    assert len(await Rebuild(local.store).repair()) == len(jobs)
    assert [await row_of(local, job_id) for job_id in jobs] == before
    assert await Rebuild(local.store).check() == []
    assert await counted(local)


@pytest.mark.parametrize("column", COLUMNS[1:])
async def test_a_change_of_any_column_is_shown_and_mended(column: str, local: MeshNode) -> None:
    job_id = await schedule(local)
    if column == "ended_ms":  # the schema has it only where a job has ended
        await end(local, job_id, JobState.FAILED)
    else:
        await claim(local, job_id)
    await write(local, f"UPDATE jobs SET {column} = ?4 WHERE {_OF_JOB}", job_id, _OTHER.get(column, "77"))
    (found,) = await Rebuild(local.store).check()
    assert found[:2] == (job_id, column)
    await Rebuild(local.store).repair()
    assert await Rebuild(local.store).check() == []


async def test_a_row_that_the_log_does_not_know_is_shown_and_left(local: MeshNode) -> None:
    jobs = await staged(local)
    await write(local, f"UPDATE jobs SET job_id = 'forged', ulid = 'forged' WHERE {_OF_JOB}", jobs[1])
    found = await Rebuild(local.store).check()
    assert [each[:2] for each in found] == [("forged", "job_id"), (jobs[1], "job_id")]
    await Rebuild(local.store).repair()
    assert {each.job_id for each in await Rebuild(local.store).check()} >= {"forged"}


async def test_rows_in_another_order_are_shown(local: MeshNode) -> None:
    jobs = await staged(local)
    await write(local, f"UPDATE jobs SET id = 1000 WHERE {_OF_JOB}", jobs[0])
    assert await Rebuild(local.store).check() == [Difference(jobs[0], "id", 5, 0)]


@pytest.mark.parametrize("page", [1, 2, 3, 5, 6, 7])
async def test_the_size_of_pages_makes_no_difference(
    page: int, local: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_rebuild, "_PAGE", page)
    assert await Rebuild(local.store).check() == []
    jobs = await staged(local)
    assert await Rebuild(local.store).check() == []
    await write(local, f"DELETE FROM jobs WHERE {_OF_JOB}", jobs[-1])
    assert [each.job_id for each in await Rebuild(local.store).check()] == [jobs[-1]]


async def test_what_was_moved_since_it_was_looked_at_is_not_overwritten(local: MeshNode) -> None:
    job_id = await schedule(local)
    await write(local, f"UPDATE jobs SET priority = 3 WHERE {_OF_JOB}", job_id)
    rebuild = Rebuild(local.store)
    wrong = [each async for each in rebuild._wrong_jobs(NO_DELETIONS)]
    await claim(local, job_id)
    for script in rebuild._scripts(wrong):
        await local.store.write(script)
    assert [each[:2] for each in await rebuild.check()] == [(job_id, "priority")]
    await rebuild.repair()
    assert await rebuild.check() == []
    assert (await local.jobs.find(job_id)).state == JobState.CLAIMED


async def test_while_others_write_nothing_seems_wrong(
    crowd: NodeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_rebuild, "_PAGE", 5)
    one, two = await crowd.node("one"), await crowd.node("two")
    rebuild = Rebuild(two.store)
    is_done = asyncio.Event()

    async def work() -> None:
        before: list[str] = []
        for _ in range(10):
            items = [new_item() for _ in range(3)]
            items[2]["after"] = [(items[0]["job_id"], "end"), *((each, "end") for each in before[-1:])]
            await one.store.write(one.jobs.transitions.schedule(items))
            tokens = [held(item["job_id"], 1) for item in items[:2]]
            await one.store.write(one.jobs.transitions.claim(tokens, LEASE_MS))
            await one.store.write(one.jobs.transitions.start(tokens))
            ends = [{**each, "state": "succeeded"} for each in tokens]
            await one.store.write(one.jobs.transitions.complete(ends))
            before = [item["job_id"] for item in items]
        is_done.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(work())
        looks = 0
        while not is_done.is_set() or not looks:
            assert (await rebuild.check(), rebuild.findings) == ([], [])
            looks += 1
            await asyncio.sleep(0)  # in memory, reading alone gives way to no one
    await two.store.synced()
    assert (await rebuild.check(), rebuild.findings) == ([], [])


# --- a log that can't be ----------------------------------------------------------------------------


async def entries_of(node: MeshNode) -> list[LogEntry]:
    return await node.oplog.tail(1_000)


def replayed(entries: list[LogEntry]) -> JobReplay:
    replay = JobReplay(RouteHistory(ChainWitness(None, ())))
    for entry in entries:
        replay.follow(entry)
    return replay


async def test_an_accepted_op_that_the_rules_do_not_allow_is_a_finding(local: MeshNode) -> None:
    await staged(local)
    entries = await entries_of(local)
    assert replayed(entries).findings == []
    schedules = [entry for entry in entries if entry.kind == "ScheduleJob"]
    for missing in (entry for entry in entries if entry.kind in ("ClaimWork", "StartWork")):
        left = [entry for entry in entries if entry is not missing]
        assert {each.kind for each in replayed(left).findings} <= {"StartWork", "CompleteJob", "ExpireWork"}
    without_first = replayed([entry for entry in entries if entry is not schedules[0]])
    assert {each.kind for each in without_first.findings} >= {"ScheduleJob", "ClaimWork", "CompleteJob"}


@pytest.mark.parametrize(
    "spoiled",
    [{"payload": "no json"}, {"payload": "{}"}, {"payload": "[]"}, {"result": "7"}],
)
async def test_what_can_not_be_read_is_a_finding_and_not_the_end(
    spoiled: dict[str, Any], local: MeshNode
) -> None:
    await staged(local)
    entries = [
        entry._replace(**spoiled) if entry.kind == "ClaimWork" else entry for entry in await entries_of(local)
    ]
    assert replayed(entries).findings


async def test_refused_ops_move_nothing(local: MeshNode) -> None:
    jobs = await staged(local)
    entries = [entry._replace(accepted=0) for entry in await entries_of(local)]
    assert (replayed(entries).jobs, replayed(entries).findings) == ({}, [])
    assert jobs


async def test_nothing_is_mended_from_a_log_with_findings(there: RestartableNodes) -> None:
    async with there.node() as node:
        await node.run_once()
        jobs = await staged(node)
        payload = orjson.dumps({"at_ms": 1, "jobs": [held(jobs[0], 1)]}).decode()
        of_starts = "scope_id = ?1 AND repository_id = ?2 AND kind = 'StartWork'"
        await write(node, f"UPDATE agent_oplog SET payload = ?3 WHERE {of_starts}", payload)
        await write(node, f"UPDATE jobs SET priority = 0 WHERE {_OF_JOB}", jobs[0])
        before = [await row_of(node, job_id) for job_id in jobs]
        with pytest.raises(MeshError) as refusal:
            await Rebuild(node.store).repair()
        assert isinstance(refusal.value, BadValue)
        assert [await row_of(node, job_id) for job_id in jobs] == before


async def test_the_others_have_their_turns_while_a_long_log_is_followed(local: MeshNode) -> None:
    await schedule(local)
    (entry,) = await local.oplog.tail(1)
    replay = JobReplay(RouteHistory(ChainWitness(None, ())))
    log = of_rebuild._Log(Pages(local.store), replay, NO_DELETIONS)
    log._read.extend(entry._replace(id=number) for number in range(1, 1_001))
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(take_turns())
    await log.advance(1_000)
    others.cancel()
    assert log.replay.last_id == 1_000
    assert turns >= 1_000 // 64
