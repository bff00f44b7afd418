"""Every arrow of the drawing moves a job; what is not drawn is refused and recorded, and changes no row."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import pytest

from tests.support.jobs.drawing import Arrow, drawn
from tests.support.jobs.staging import (
    Pair,
    assert_rebuilt,
    brought,
    found,
    held,
    item_of,
    lapse,
    new_item,
    pair,
    refused,
    row_of,
    schedule,
    start,
    verdict_of,
    ways,
)
from tests.support.messages.messaging import database_ms
from vox_mesh.errors import IllegalTransition, StaleClaim
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import CLAIM, COMPLETE, HELD, JobState

__all__ = ["pair"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

PENDING, CLAIMED, RUNNING, SUCCEEDED, FAILED, ABORTED = JobState

_WAYS = {
    "StartWork": ("start",),
    "YieldWork": ("yield", "take back", "fail for now"),
    "ExpireWork": ("expire",),
    "AbortJob": ("abort",),
}


def _ways_of(arrow: Arrow) -> tuple[str, ...]:
    """How a job is taken along an arrow."""
    if arrow.op == CLAIM:
        return ("renew",) if arrow.source is arrow.target else ("claim",)
    if arrow.op == COMPLETE:
        return ("succeed",) if arrow.target is SUCCEEDED else ("fail",)
    return _WAYS[arrow.op]


class Case(NamedTuple):
    """A way that is tried on a job in a state, and where it leads."""

    way: str
    source: JobState | None
    target: JobState | None = None

    def __str__(self) -> str:
        return f"{self.way}-{self.source}" + (f"-{self.target}" if self.target else "")


_ARROWS = sorted(drawn().arrows, key=str)
_OWN = [arrow for arrow in _ARROWS if arrow.source is not None and not arrow.is_of_predecessor]
LEGAL = [Case(way, arrow.source, arrow.target) for arrow in _OWN for way in _ways_of(arrow)]
_ALL_WAYS = sorted({case.way for case in LEGAL})
ILLEGAL = [
    Case(way, source)
    for way, source in product(_ALL_WAYS, (None, *JobState))
    if not any((way, source) == case[:2] for case in LEGAL)
]
OF_PREDECESSORS = [arrow for arrow in _ARROWS if arrow.is_of_predecessor]
OF_CLAIMS = [way for way in _ALL_WAYS if way not in ("claim", "abort")]


# --- as drawn ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", LEGAL, ids=str)
async def test_what_is_drawn_moves_the_job(case: Case, pair: Pair) -> None:
    node = pair.one
    is_last = case.way == "expire" and case.target is FAILED
    job = await brought(node, case.source, max_interruptions=0 if is_last else 5)
    assert job is not None
    if case.way == "expire":
        await lapse(node, job.job_id)
    script = ways(node)[case.way](job.job_id, job.claim_token)
    await node.store.write(script)
    moved = await found(node, job.job_id)
    assert (moved.state, moved.last_op) == (case.target, script.key)
    assert moved.claim_token == job.claim_token + (case.way == "claim")
    assert moved.failures == job.failures + (case.way in ("fail", "fail for now"))
    assert moved.interruptions == job.interruptions + (case.way == "expire")
    await node.store.synced()
    assert await verdict_of(node, script) == (1, None)


@pytest.mark.parametrize("case", ILLEGAL, ids=str)
async def test_what_is_not_drawn_is_refused_and_recorded_and_changes_nothing(case: Case, pair: Pair) -> None:
    node = pair.one
    job = await brought(node, case.source)
    job_id, token = (new_item()["job_id"], 0) if job is None else (job.job_id, job.claim_token)
    refusal = await refused(node, ways(node)[case.way](job_id, token), job_id)
    assert isinstance(refusal, IllegalTransition | StaleClaim)
    if job is not None and job.has_ended:
        assert isinstance(refusal, IllegalTransition)


@pytest.mark.parametrize("state", JobState, ids=str)
async def test_scheduling_what_is_there_is_accepted_and_leaves_it_unchanged(
    state: JobState, pair: Pair
) -> None:
    node = pair.one
    job = await brought(node, state)
    assert job is not None
    before = await row_of(node, job.job_id)
    script = node.jobs.transitions.schedule([item_of(Manifest.of_core(job.core), priority=3)])
    await node.store.write(script)
    await node.store.synced()
    assert await verdict_of(node, script) == (1, None)
    assert await row_of(node, job.job_id) == before


@pytest.mark.parametrize("arrow", OF_PREDECESSORS, ids=lambda arrow: arrow.op)
async def test_a_job_fails_with_the_one_it_waits_for_by_the_same_op(arrow: Arrow, pair: Pair) -> None:
    node = pair.one
    first = await schedule(node, max_attempts=1, max_interruptions=0)
    waiting = await schedule(node, after=[(first, "success")])
    behind = await schedule(node, after=[(waiting, "success")])
    released = await schedule(node, after=[(behind, "end")])
    await start(node, first)
    way = {COMPLETE: "fail"}.get(arrow.op) or _WAYS[arrow.op][0]
    if way == "expire":
        await lapse(node, first)
    script = ways(node)[way](first, 1)
    await node.store.write(script)
    for job_id in (waiting, behind):
        job = await found(node, job_id)
        assert (job.state, job.last_op) == (arrow.target, script.key)
    assert ((await found(node, released)).state, (await found(node, released)).waits) == (PENDING, 0)


# --- claims -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(HELD), ids=str)
@pytest.mark.parametrize("way", [way for way in OF_CLAIMS if way != "expire"])
async def test_a_claim_under_another_token_or_of_another_node_is_stale(
    way: str, state: JobState, pair: Pair
) -> None:
    job = await brought(pair.one, state)
    assert job is not None
    for token in (job.claim_token - 1, job.claim_token + 1):
        assert isinstance(
            await refused(pair.one, ways(pair.one)[way](job.job_id, token), job.job_id), StaleClaim
        )
    if way != "take back":  # which anyone may, who knows the token
        refusal = await refused(pair.two, ways(pair.two)[way](job.job_id, job.claim_token), job.job_id)
        assert isinstance(refusal, StaleClaim)


async def test_a_zombie_can_do_nothing_to_the_attempt_of_its_successor(pair: Pair) -> None:
    job = await brought(pair.one, RUNNING)
    assert job is not None
    await lapse(pair.one, job.job_id)
    await pair.two.store.write(pair.two.jobs.transitions.expire([held(job.job_id, 1)]))
    await start(pair.two, job.job_id, 2)
    for way in ("renew", "start", "succeed", "fail", "yield"):
        assert isinstance(await refused(pair.one, ways(pair.one)[way](job.job_id, 1), job.job_id), StaleClaim)


async def test_a_lease_that_ran_out_can_be_completed_or_yielded_but_not_renewed_or_started(
    pair: Pair,
) -> None:
    node = pair.one
    for state in sorted(HELD):
        for way in ("renew", "start"):
            job = await brought(node, state)
            assert job is not None
            await lapse(node, job.job_id)
            refusal = await refused(node, ways(node)[way](job.job_id, 1), job.job_id)
            assert isinstance(refusal, StaleClaim)
    for way, state in (("succeed", SUCCEEDED), ("fail", FAILED), ("yield", PENDING)):
        job = await brought(node, RUNNING)
        assert job is not None
        await lapse(node, job.job_id)
        await node.store.write(ways(node)[way](job.job_id, 1))
        assert (await found(node, job.job_id)).state == state


@pytest.mark.parametrize("state", sorted(HELD), ids=str)
async def test_a_lease_that_has_not_run_out_is_not_expired(state: JobState, pair: Pair) -> None:
    job = await brought(pair.one, state)
    assert job is not None
    refusal = await refused(pair.two, ways(pair.two)["expire"](job.job_id, job.claim_token), job.job_id)
    assert isinstance(refusal, IllegalTransition)


async def test_an_expiry_under_another_token_is_refused(pair: Pair) -> None:
    job = await brought(pair.one, RUNNING)
    assert job is not None
    await lapse(pair.one, job.job_id)
    for token in (0, 2):
        await refused(pair.one, ways(pair.one)["expire"](job.job_id, token), job.job_id)


async def test_a_failed_attempt_that_was_the_last_is_not_yielded(pair: Pair) -> None:
    job = await brought(pair.one, RUNNING, max_attempts=1)
    assert job is not None
    await refused(pair.one, ways(pair.one)["fail for now"](job.job_id, 1), job.job_id)
    await pair.one.store.write(ways(pair.one)["yield"](job.job_id, 1))


@pytest.mark.parametrize("state", [None, *(state for state in JobState if state not in (SUCCEEDED, FAILED))])
async def test_a_completion_ends_a_job_as_succeeded_or_failed_and_in_no_other_state(
    state: JobState | None, pair: Pair
) -> None:
    job = await brought(pair.one, RUNNING)
    assert job is not None
    script = pair.one.jobs.transitions.complete([held(job.job_id, 1, state=state)])
    assert isinstance(await refused(pair.one, script, job.job_id), IllegalTransition)


async def test_what_waits_for_others_or_for_its_time_is_not_claimed(pair: Pair) -> None:
    node = pair.one
    first = await schedule(node)
    later = new_item(run_at_ms=await database_ms(node) + 60_000)
    await node.store.write(node.jobs.transitions.schedule([later]))
    for job_id in (await schedule(node, after=[(first, "success")]), later["job_id"]):
        refusal = await refused(node, ways(node)["claim"](job_id, 0), job_id)
        assert isinstance(refusal, IllegalTransition)


# --- at the end -------------------------------------------------------------------------------------


async def test_after_all_of_this_the_roster_is_what_the_log_says(pair: Pair) -> None:
    await assert_rebuilt(pair.one)
