"""Maintenance of jobs: leases expire once, waiters are served, and an idle run writes nothing."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from pathlib import Path

import pytest

from tests.support.jobs.jobs_in_hand import (
    accepted,
    claim,
    claim_seen,
    complete,
    found,
    ids,
    lapse,
    moved,
    ops,
)
from tests.support.messages.messaging import NodeGroup
from tests.support.oplog.authoring import NOTE, RestartableNodes, assert_sound, noted
from tools.homes import FILE, MESH, HomeCase
from vox_mesh import Op, Script, Statement, guard, open_store
from vox_mesh.errors import IllegalTransition, Refused, StaleIncarnation, StoreClosed, Unreachable
from vox_mesh.jobs.jobs import Scheduled
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.jobs.scheduling.crons import Crons
from vox_mesh.jobs.scheduling.maintenance import REFUSED, JobMaintenance
from vox_mesh.jobs.scheduling.rules import Rules
from vox_mesh.jobs.steps.step_services import StepServices
from vox_mesh.jobs.transitions import SQL
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import ABORT, EXPIRE
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.oplog.op_kinds import OpKinds
from vox_mesh.store import new_key

_PATIENCE_S = 30.0
_NEVER_S = 3_600.0
ALL_OF_THEM = re.compile(r"SCAN (jobs|j|d|o)\b")


def keeper_of(node: MeshNode, tick_s: float = _NEVER_S, chance: float = 0.0) -> JobMaintenance:
    """The keeper that a node runs."""
    crons = Crons(node.store, node.jobs, node.clock, lambda: node.rhythm)
    rules = Rules(node.store, node.jobs, node.clock, OpKinds())
    steps = StepServices.of(
        node.store, node.jobs, node.messages.verifier.verify, node.features.is_known_to_all
    )
    parts = (node.jobs, crons, rules, steps, lambda: chance, lambda: 0.0)
    return JobMaintenance(node.store, node.clock, *parts, tick_s=tick_s)


async def keep(node: MeshNode) -> None:
    """Have a node's keeper do its work, by all that was committed before."""
    await node.store.synced()
    await keeper_of(node).run_once()
    await node.store.synced()


async def until_pending(node: MeshNode, job: Scheduled) -> None:
    """Wait until a job is free."""
    async with asyncio.timeout(_PATIENCE_S):
        async for seen in node.jobs.watch(job):
            if seen.state == "pending":
                return


async def refused_note(node: MeshNode, op_id: str) -> None:
    """Have an op be in the log as refused."""
    with pytest.raises(Refused, match="never"):
        await node.store.write(Script(guard("0", refusal="never"), key=op_id, op=Op(NOTE, "{}")))


# --- leases ---------------------------------------------------------------------------------------


async def test_a_lease_that_ran_out_gives_the_job_back_and_others_stay(any_node: MeshNode) -> None:
    lapsed, valid = [await any_node.jobs.schedule("work", number) for number in range(2)]
    await claim(any_node, lapsed, valid)
    await lapse(any_node, lapsed)
    await keep(any_node)
    back, held = await found(any_node, lapsed, valid)
    assert (back.state, back.claimer, back.claim_token, back.failures) == ("pending", None, 1, 0)
    assert (back.attempts, back.interruptions) == (1, 1)
    assert (held.state, held.claim_token, held.failures) == ("claimed", 1, 0)
    assert await accepted(any_node, EXPIRE) == [[lapsed.job_id]]
    assert moved(await claim(any_node, lapsed)) == [lapsed.job_id]


async def test_only_the_database_clock_says_that_a_lease_is_over(there: RestartableNodes) -> None:
    ahead = Dependencies(wall_ms=lambda: time.time_ns() // 1_000_000 + 50_000)
    async with there.node("ahead", ahead) as node:
        await node.run_once()
        job = await node.jobs.schedule("work")
        await claim(node, job, lease_ms=30_000)
        await keep(node)
        assert await ops(node, EXPIRE) == []
        with pytest.raises(IllegalTransition):
            await node.jobs.expire(await found(node, job))


async def test_many_keepers_at_once_expire_each_job_once_and_none_complains(
    crowd: NodeGroup, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [await crowd.node(name) for name in ("one", "two", "three")]
    jobs = [await nodes[0].jobs.schedule("work", number) for number in range(5)]
    for attempt in (1, 2):
        await claim(nodes[0], *jobs)
        await lapse(nodes[0], *jobs)
        await asyncio.gather(*(keep(node) for node in nodes))
        assert [job.interruptions for job in await found(nodes[0], *jobs)] == [attempt] * 5
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    expired = [job_id for each in await accepted(nodes[1], EXPIRE) for job_id in each]
    assert sorted(expired) == sorted(2 * ids(jobs))
    await assert_sound(nodes[2])


async def test_more_than_one_op_holds_are_all_taken_back(local: MeshNode) -> None:
    await local.jobs.schedule_all([Manifest.of(kind="work", payload=number) for number in range(130)])
    await claim_seen(local, await local.jobs.queries.ready(["work"], 130))
    await lapse(local, *await local.jobs.queries.held_by("a"))
    await keep(local)
    assert await local.jobs.queries.counts() == {"work": {"pending": 130}}
    assert len(await accepted(local, EXPIRE)) == 2


async def test_a_job_that_takes_its_worker_along_each_time_fails_and_says_so(any_node: MeshNode) -> None:
    job = await any_node.jobs.schedule("work", max_attempts=1, max_interruptions=2)
    counts = []
    for _ in range(3):
        await claim(any_node, job)
        await lapse(any_node, job)
        await keep(any_node)
        (seen,) = await found(any_node, job)
        counts.append((seen.state, seen.attempts, seen.failures, seen.interruptions))
    assert counts == [("pending", 1, 0, 1), ("pending", 2, 0, 2), ("failed", 3, 0, 3)]
    assert seen.reason == "interrupted more often than max_interruptions (2) allows: the lease ran out"
    await any_node.store.synced()
    assert await Rebuild(any_node.store).check() == []


async def test_an_older_node_counts_an_expiry_as_failed_and_the_replay_agrees(local: MeshNode) -> None:
    job = await local.jobs.schedule("work", max_attempts=2)
    await claim(local, job)
    (seen,) = await found(local, job)
    older = Script(
        Statement(
            "UPDATE jobs SET state = 'pending', claimer = NULL, failures = failures + 1,"
            " lease_until_ms = NULL, not_before_ms = ?2, reason = 'the lease ran out', last_op = ?3"
            " WHERE job_id = ?1",
            (job.job_id, seen.created_ms, key := new_key()),
        ),
        key=key,
        op=Op(
            EXPIRE,
            canonical(
                {"at_ms": seen.created_ms, "jobs": [{"job_id": job.job_id, "claim_token": seen.claim_token}]}
            ),
        ),
    )
    await local.store.write(older)
    (back,) = await found(local, job)
    assert (back.failures, back.interruptions) == (1, 0)
    assert await Rebuild(local.store).check() == []


async def test_one_interruption_too_many_ends_the_job_and_the_ones_that_waited_for_it(node: MeshNode) -> None:
    first = await node.jobs.schedule("work", max_interruptions=0)
    second = await node.jobs.schedule("work", after=[first])
    third = await node.jobs.schedule("work", after=[second])
    anyway = await node.jobs.schedule("work", after=[{"job": first.job_id, "when": "end"}])
    await claim(node, first)
    await lapse(node, first)
    await keep(node)
    states = [job.state for job in await found(node, first, second, third, anyway)]
    assert states == ["failed", "failed", "failed", "pending"]
    assert moved(await claim(node, anyway)) == [anyway.job_id]


async def test_one_that_completed_late_is_not_taken_back(local: MeshNode) -> None:
    job = await local.jobs.schedule("work")
    await claim(local, job)
    await complete(local, job)
    seen = await found(local, job)
    await keep(local)
    assert await found(local, job) == seen


# --- ops ------------------------------------------------------------------------------------------


async def test_a_job_waits_until_its_op_is_in_the_log(any_node: MeshNode) -> None:
    op_id = new_key()
    job = await any_node.jobs.schedule("work", after=[{"op": op_id}])
    (before,) = await found(any_node, job)
    await keep(any_node)
    assert await found(any_node, job) == [before]
    with pytest.raises(IllegalTransition):
        await claim(any_node, job)
    await any_node.store.write(noted(key=op_id))
    assert await found(any_node, job) == [before._replace(waits=0)]
    assert moved(await claim(any_node, job)) == [job.job_id]


async def test_all_that_a_job_waits_for_must_come(local: MeshNode) -> None:
    before, *op_ids = await local.jobs.schedule("work"), new_key(), new_key()
    job = await local.jobs.schedule("work", after=[before, *({"op": op_id} for op_id in op_ids)])
    waits = []
    for op_id in op_ids:
        await local.store.write(noted(key=op_id))
        waits.append((await found(local, job))[0].waits)
    await claim(local, before)
    await complete(local, before)
    assert [*waits, (await found(local, job))[0].waits] == [2, 1, 0]


async def test_a_job_whose_op_was_refused_is_aborted_with_the_ones_that_wait_for_it(node: MeshNode) -> None:
    op_id = new_key()
    job = await node.jobs.schedule("work", after=[{"op": op_id}])
    dependant = await node.jobs.schedule("work", after=[job])
    other = await node.jobs.schedule("work", after=[{"op": new_key()}])
    await refused_note(node, op_id)
    await keep(node)
    await keep(node)
    ended = await found(node, job, dependant, other)
    assert [each.state for each in ended] == ["aborted", "failed", "pending"]
    assert ended[0].reason == REFUSED
    assert await accepted(node, ABORT) == [[job.job_id]]


async def test_many_keepers_at_once_abort_a_job_once(crowd: NodeGroup) -> None:
    nodes = [await crowd.node(name) for name in ("one", "two", "three")]
    op_ids = new_key(), new_key()
    refused, met = [await nodes[0].jobs.schedule("work", after=[{"op": op_id}]) for op_id in op_ids]
    await refused_note(nodes[1], op_ids[0])
    await nodes[1].store.write(noted(key=op_ids[1]))
    await asyncio.gather(*(keep(node) for node in nodes))
    assert await accepted(nodes[2], ABORT) == [[refused.job_id]]
    assert [job.waits for job in await found(nodes[2], met)] == [0]


# --- what it costs --------------------------------------------------------------------------------


async def test_with_nothing_to_do_a_keeper_writes_nothing(there: RestartableNodes) -> None:
    async with there.node() as node:
        await node.run_once()
        held = await node.jobs.schedule("work")
        await claim(node, held)
        op_id = new_key()
        await node.jobs.schedule("work", after=[{"op": op_id}, held])
        await node.store.write(noted(key=op_id))
        await node.jobs.schedule("work", {"op": "in a payload"}, after=[held])
        written = len(there.gate.batches)
        await keep(node)
        assert len(there.gate.batches) == written


@pytest.mark.parametrize("case", [FILE, MESH], ids=str)
async def test_however_many_jobs_there_are_a_keeper_does_not_look_at_all_of_them(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    async with await open_store(case.settings(tmp_path, server)) as store:
        for name in ("next_maintenance", "awaiting_refused", "overdue"):
            count = max(map(int, re.findall(r"\?(\d+)", SQL[name])))
            plan = [row[3] for row in await store.read(f"EXPLAIN QUERY PLAN {SQL[name]}", ["[]"] * count)]
            assert not any(map(ALL_OF_THEM.match, plan)), f"{name}: {plan}"


# --- as a task ------------------------------------------------------------------------------------


async def test_it_sees_by_itself_that_a_lease_ran_out_and_that_an_op_was_refused(local: MeshNode) -> None:
    op_id = new_key()
    lapsed = await local.jobs.schedule("work")
    waiting = await local.jobs.schedule("work", after=[{"op": op_id}])
    await claim(local, lapsed)
    task = asyncio.create_task(keeper_of(local).run())
    await lapse(local, lapsed)
    await refused_note(local, op_id)
    await until_pending(local, lapsed)
    assert (await local.jobs.wait(waiting, timeout=_PATIENCE_S)).state == "aborted"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_it_wakes_when_a_lease_runs_out_though_no_one_commits(local: MeshNode) -> None:
    job = await local.jobs.schedule("work")
    await claim(local, job, lease_ms=50)
    task = asyncio.create_task(keeper_of(local).run())
    await until_pending(local, job)
    task.cancel()


async def test_it_goes_on_after_the_database_was_away(there: RestartableNodes) -> None:
    async with there.node() as node:
        await node.run_once()
        await claim(node, job := await node.jobs.schedule("work"))
        await lapse(node, job)
        there.gate.before.append(Unreachable("away"))
        task = asyncio.create_task(keeper_of(node, tick_s=0.05).run())
        await until_pending(node, job)
        assert not there.gate.before
        task.cancel()


async def test_it_ends_when_the_store_is_closed(there: RestartableNodes) -> None:
    async with there.node() as node:
        await node.run_once()
        task = asyncio.create_task(keeper_of(node, tick_s=0.01).run())
        await node.store.close()
        with pytest.raises(StoreClosed):
            await asyncio.wait_for(task, _PATIENCE_S)


async def test_it_ends_when_the_node_has_begun_again_elsewhere(there: RestartableNodes) -> None:
    async with there.node() as older:
        await older.run_once()
        await claim(older, job := await older.jobs.schedule("work"))
        async with there.node() as newer:
            await newer.run_once()
            await lapse(newer, job)
            with pytest.raises(StaleIncarnation):
                await asyncio.wait_for(keeper_of(older, tick_s=0.01).run(), _PATIENCE_S)
            assert [each.state for each in await found(newer, job)] == ["claimed"]
