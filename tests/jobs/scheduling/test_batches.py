"""Ops with many jobs, with the same one twice, and with jobs that others wait for."""

from __future__ import annotations

import pytest

from tests.support.jobs.staging import (
    LEASE_MS,
    Pair,
    assert_rebuilt,
    claim,
    end,
    found,
    held,
    moved,
    new_item,
    pair,
    refused,
    schedule,
    start,
    ways,
)
from tests.support.messages.messaging import database_ms, write
from vox_mesh.errors import ScriptFailed, StaleClaim
from vox_mesh.model.jobs.records import JobState
from vox_mesh.node import MeshNode
from vox_mesh.oplog.roles import NO_ROUTES
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Outcome, Script, new_key

__all__ = ["pair"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

PENDING, CLAIMED, RUNNING, SUCCEEDED, FAILED, ABORTED = JobState

# --- many at once -----------------------------------------------------------------------------------


async def test_of_several_claims_the_ones_that_can_be_had_are(pair: Pair) -> None:
    node = pair.one
    good = [await schedule(node) for _ in range(2)]
    taken = await schedule(node)
    await claim(pair.two, taken)
    items = [held(good[0], 1), held(taken, 1), held(good[1], 1), held(new_item()["job_id"], 1)]
    outcome = await node.store.write(node.jobs.transitions.claim(items, LEASE_MS))
    assert sorted(moved(outcome)) == sorted(good)
    assert (await found(node, taken)).claimer == "two"


async def test_of_several_completions_or_yields_all_are_accepted_or_none(pair: Pair) -> None:
    node, moves = pair.one, pair.one.jobs.transitions
    good, other = await schedule(node), await schedule(node)
    await start(node, good)
    await start(pair.two, other)
    items = [held(job_id, 1, state="succeeded") for job_id in (good, other)]
    for script in (moves.complete(items), moves.yield_jobs(items, claimer="one")):
        assert isinstance(await refused(node, script, good, other), StaleClaim)


async def test_a_job_that_is_named_twice_in_an_op_is_moved_once(pair: Pair) -> None:
    node, moves = pair.one, pair.one.jobs.transitions
    first, second = new_item(), new_item()
    second["after"] = [(first["job_id"], "end")]
    again = {**second, "ulid": new_key()}
    await node.store.write(moves.schedule([first, second, again, first]))
    job_id = str(first["job_id"])
    assert ((await found(node, again["job_id"])).ulid, (await found(node, again["job_id"])).waits) == (
        second["ulid"],
        1,
    )
    outcome = await node.store.write(
        moves.claim([held(job_id, 1), held(job_id, 1), held(job_id, 2)], LEASE_MS)
    )
    assert moved(outcome) == [job_id]
    assert moved(await node.store.write(moves.start([held(job_id, 1)] * 2))) == [job_id]
    await node.store.write(moves.yield_jobs([held(job_id, 1, failed=True)] * 2))
    job = await found(node, job_id)
    assert (job.claim_token, job.attempts, job.failures) == (1, 1, 1)
    await start(node, job_id, 2)
    ends = [held(job_id, 2, state=state) for state in ("succeeded", "failed")]
    await node.store.write(moves.complete(ends))
    job = await found(node, job_id)
    assert (job.state, job.failures) == (SUCCEEDED, 1)
    assert (await found(node, again["job_id"])).waits == 0


async def test_a_claim_of_many_takes_no_more_than_its_kind_admits(pair: Pair) -> None:
    node, moves = pair.one, pair.one.jobs.transitions
    kind = f"limited.{new_key().lower()}"
    sql = "INSERT INTO job_kinds (scope_id, repository_id, kind, max_running) VALUES (?1, ?2, ?3, 2)"
    await write(node, sql, kind)
    job_ids = [await schedule(node, kind=kind) for _ in range(4)]
    doubled = [held(job_id, 1) for job_id in job_ids for _ in range(2)]
    taken = moved(await node.store.write(moves.claim(doubled, LEASE_MS)))
    assert 1 <= len(taken) <= 2
    rest = [held(job_id, 1) for job_id in job_ids if job_id not in taken]
    if len(taken) < 2:
        taken += moved(await node.store.write(moves.claim(rest, LEASE_MS)))
    assert len(taken) == 2
    refusal = await refused(pair.two, pair.two.jobs.transitions.claim(rest, LEASE_MS), *job_ids)
    assert refusal.reason == "held_back"


async def test_a_claim_of_many_keeps_to_the_rate_of_its_kind(pair: Pair) -> None:
    node, moves = pair.one, pair.one.jobs.transitions
    kind = f"rated.{new_key().lower()}"
    sql = (
        "INSERT INTO job_kinds (scope_id, repository_id, kind, rate, rate_ms) VALUES (?1, ?2, ?3, 3, 600000)"
    )
    await write(node, sql, kind)
    job_ids = [await schedule(node, kind=kind) for _ in range(5)]
    taken = moved(await node.store.write(moves.claim([held(each, 1) for each in job_ids], LEASE_MS)))
    assert len(taken) == 3
    await node.store.write(moves.yield_jobs([held(job_id, 1) for job_id in taken]))
    for job_id in job_ids:
        token = (await found(node, job_id)).claim_token
        refusal = await refused(node, moves.claim([held(job_id, token + 1)], LEASE_MS), job_id)
        assert refusal.reason == "held_back"


# --- waiting ----------------------------------------------------------------------------------------


async def test_a_job_with_several_predecessors_is_released_by_the_last_of_them(pair: Pair) -> None:
    node, moves = pair.one, pair.one.jobs.transitions
    before = [await schedule(node) for _ in range(4)]
    kinds = ["success", "end", "end", "success"]
    waiting = await schedule(node, after=list(zip(before, kinds, strict=True)))
    await end(node, before[0], SUCCEEDED)
    await end(node, before[1], FAILED)
    assert (await found(node, waiting)).waits == 2
    await start(node, before[3])
    await node.store.write(moves.abort([{"job_id": before[2]}], "test"))
    assert (await found(node, waiting)).waits == 1
    await refused(node, ways(node)["claim"](waiting, 0), waiting)
    await node.store.write(ways(node)["succeed"](before[3], 1))
    assert ((await found(node, waiting)).waits, (await found(node, waiting)).state) == (0, PENDING)
    await claim(node, waiting)


async def test_predecessors_that_end_in_one_op_release_or_doom_what_waits_for_them_once(pair: Pair) -> None:
    node, moves = pair.one, pair.one.jobs.transitions
    one, two = await schedule(node), await schedule(node)
    left, right = [await schedule(node, after=[(each, "success")]) for each in (one, two)]
    for_end = await schedule(node, after=[(one, "end"), (two, "end")])
    diamond = await schedule(node, after=[(left, "end"), (right, "success")])
    below = await schedule(node, after=[(diamond, "end"), (left, "end"), (right, "end")])
    await start(node, one)
    await start(node, two)
    states = ((one, "succeeded"), (two, "failed"))
    await node.store.write(moves.complete([held(job_id, 1, state=state) for job_id, state in states]))
    standing = {job_id: await found(node, job_id) for job_id in (left, right, for_end, diamond, below)}
    assert [(job.state, job.waits) for job in standing.values()] == [
        (PENDING, 0),
        (FAILED, 1),
        (PENDING, 0),
        (FAILED, 2),
        (PENDING, 1),
    ]


async def test_a_time_to_begin_is_neither_lost_nor_moved_back_when_what_was_waited_for_ends(
    pair: Pair,
) -> None:
    node = pair.one
    first = await schedule(node)
    run_at_ms = await database_ms(node) + 3_600_000
    waiting = await schedule(node, after=[(first, "success")], run_at_ms=run_at_ms)
    await end(node, first, SUCCEEDED)
    job = await found(node, waiting)
    assert (job.waits, job.not_before_ms) == (0, run_at_ms)


async def test_a_job_that_waits_for_an_op_can_be_claimed_once_that_is_in_the_log(pair: Pair) -> None:
    node = pair.one
    first, op_id = await schedule(node), new_key()
    waiting = await schedule(node, after=[(op_id, "op"), (first, "success")])
    only = await schedule(node, after=[(op_id, "op")])
    assert (await found(node, waiting)).waits == 2
    await pair.two.store.write(Script(key=op_id, op=Op("test.note", "{}")))
    assert ((await found(node, waiting)).waits, (await found(node, only)).waits) == (1, 0)
    await claim(node, only)
    late = await schedule(node, after=[(op_id, "op")])
    assert (await found(node, late)).waits == 0
    await end(node, first, SUCCEEDED)
    assert (await found(node, waiting)).waits == 0


async def test_an_op_and_the_job_that_waits_for_it_can_come_in_one_request(pair: Pair) -> None:
    node = pair.one
    op_id, item = new_key(), new_item()
    item["after"] = [(op_id, "op")]
    note = Script(key=op_id, op=Op("test.note", "{}"))
    for verdict in await node.store.write_all([note, node.jobs.transitions.schedule([item])]):
        assert isinstance(verdict, Outcome)
    assert (await found(node, item["job_id"])).waits == 0


async def test_a_ulid_that_another_job_has_is_refused(pair: Pair) -> None:
    node, taken = pair.one, new_item()
    await node.store.write(node.jobs.transitions.schedule([taken]))
    with pytest.raises(ScriptFailed):
        await node.store.write(node.jobs.transitions.schedule([new_item(ulid=taken["ulid"])]))


# --- at the end -------------------------------------------------------------------------------------


async def test_after_all_of_this_the_roster_is_what_the_log_says(pair: Pair) -> None:
    await assert_rebuilt(pair.one)


@pytest.mark.parametrize("name", ["take", "claim"])
async def test_a_claim_finds_its_jobs_by_their_ids(local: MeshNode, name: str) -> None:
    values = (*local.store.mesh_id, "op", '{"jobs":[]}', "node", 1, NO_ROUTES.text, None)
    plan = await local.store.read(f"EXPLAIN QUERY PLAN {named('jobs')[name]}", values)
    assert not [row["detail"] for row in plan if row["detail"].startswith("SCAN jobs")]
