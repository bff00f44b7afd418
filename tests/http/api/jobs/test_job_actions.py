"""What is done to jobs over HTTP: one, or all that fit."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest

from tests.jobs.steps.test_waits import suspended
from tests.support.jobs.job_desks import ended
from tests.support.jobs.staging import brought, schedule
from tests.support.messages.relaying import assert_problem
from tests.support.nodes.serving import ServedNode
from vox_mesh import JobContext
from vox_mesh.model.jobs.records import ENDS, Job, JobState

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def job_in(served: ServedNode, state: JobState, **more: Any) -> Job:
    """A job in this state."""
    job = await brought(served.node, state, **more)
    assert job is not None
    return job


async def state_of(served: ServedNode, job_id: str) -> str:
    """Where a job stands."""
    return (await served.node.jobs.find(job_id)).state


@pytest.mark.parametrize("state", JobState)
async def test_what_has_not_ended_is_aborted_and_what_has_stays(served: ServedNode, state: JobState) -> None:
    job = await job_in(served, state)
    body = await served.post(f"/v1/jobs/{job.job_id[:16]}/abort", {"reason": "not\nneeded"})
    assert body["job_id"] == job.job_id
    if state in ENDS:
        assert (body["aborted"], body["state"]) == (False, state)
    else:
        assert (body["aborted"], body["state"], body["reason"]) == (
            True,
            "aborted",
            "not\nneeded",
        )


@pytest.mark.parametrize("state", JobState)
async def test_what_has_ended_is_retried_once(served: ServedNode, state: JobState) -> None:
    job = await job_in(served, state)
    path = f"/v1/jobs/{job.job_id}/retry"
    if state not in ENDS:
        answer = await served.ask("POST", path)
        assert_problem(answer, HTTPStatus.CONFLICT, "illegal_transition")
        assert job.job_id in answer.json()["hint"]
        return
    body = await served.post(path)
    assert (body["retry_of"], body["is_new"], body["kind"]) == (job.job_id, True, job.kind)
    assert await state_of(served, body["job_id"]) == "pending"
    assert await served.post(path) == {**body, "is_new": False}


@pytest.mark.parametrize("state", JobState)
async def test_what_is_in_hand_goes_back(served: ServedNode, state: JobState) -> None:
    job = await job_in(served, state)
    path = f"/v1/jobs/{job.job_id}/yield"
    for delay in ("9" * 400 + "d", "366d", 2**62, -1, 1e308, True, None):
        assert_problem(await served.ask("POST", path, {"delay": delay}), 422, "bad_body")
    answer = await served.ask("POST", path, {"delay": "1h", "reason": "later"})
    if state not in (JobState.CLAIMED, JobState.RUNNING):
        assert_problem(answer, HTTPStatus.CONFLICT, "illegal_transition")
        return
    body = answer.json()
    assert (body["state"], body["reason"], body["failures"]) == ("pending", "later", 0)
    assert body["not_before_ms"] > job.created_ms + 3_000_000


async def test_a_suspended_job_is_woken_and_no_other(served: ServedNode, kind: str) -> None:
    @served.node.worker.handles(kind)
    async def handle(context: JobContext) -> None:
        await context.sleep("1d")

    job = await served.node.jobs.schedule(kind)
    path = f"/v1/jobs/{job.job_id}/wake"
    refused = await served.ask("POST", path)
    assert_problem(refused, HTTPStatus.CONFLICT, "illegal_transition")
    assert "only a suspended job can be woken" in refused.json()["hint"]
    async with served.node.worker.running():
        asleep = await suspended(served.node, job.job_id)
    assert asleep.not_before_ms > (await served.post(path))["not_before_ms"]
    async with served.node.worker.running():
        await ended(served.node, job)


# --- many ----------------------------------------------------------------------------------------


async def test_all_that_fit_are_aborted_page_by_page_and_others_are_left_alone(
    served: ServedNode, kind: str
) -> None:
    other = await schedule(served.node, kind=f"{kind}.other")
    pending = [await schedule(served.node, kind=f"{kind}.a") for _ in range(5)]
    running = (await job_in(served, JobState.RUNNING, kind=f"{kind}.a")).job_id
    wanted = {"kind": f"{kind}.a", "limit": 4}
    seen: list[str] = []
    cursor = None
    while True:
        page = await served.post("/v1/jobs/abort", {**wanted, "dry_run": True, "cursor": cursor})
        seen += [each["job_id"] for each in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == [*pending[::-1], running]
    assert await state_of(served, running) == "running"
    aborted: list[str] = []
    while not aborted or cursor is not None:
        page = await served.post("/v1/jobs/abort", {**wanted, "reason": "all", "cursor": cursor})
        assert all(each["aborted"] and each["reason"] == "all" for each in page["items"])
        aborted += [each["job_id"] for each in page["items"]]
        cursor = page["next"]
    assert aborted == seen
    assert await served.post("/v1/jobs/abort", wanted) == {"items": [], "next": None}
    assert await state_of(served, other) == "pending"


async def test_all_that_failed_are_retried_and_nothing_else(served: ServedNode, kind: str) -> None:
    failed = [(await job_in(served, JobState.FAILED, kind=kind)).job_id for _ in range(3)]
    aborted = (await job_in(served, JobState.ABORTED, kind=kind)).job_id
    plan = await served.post("/v1/jobs/retry", {"kind": kind, "dry_run": True})
    assert [each["job_id"] for each in plan["items"]] == failed[::-1]
    first = await served.post("/v1/jobs/retry", {"kind": kind, "limit": 2})
    rest = await served.post("/v1/jobs/retry", {"kind": kind, "limit": 2, "cursor": first["next"]})
    body = [*first["items"], *rest["items"]]
    assert [(each["retry_of"], each["is_new"]) for each in body] == [(job, True) for job in failed[::-1]]
    assert rest["next"] is None
    (again,) = (await served.post("/v1/jobs/retry", {"kind": kind, "state": "aborted"}))["items"]
    assert again["retry_of"] == aborted


async def test_jobs_are_named_and_the_ones_that_had_ended_are_reported(served: ServedNode) -> None:
    pending = (await job_in(served, JobState.PENDING)).job_id
    ended = (await job_in(served, JobState.SUCCEEDED)).job_id
    refused = await served.ask("POST", "/v1/jobs/retry", {"jobs": [ended, pending]})
    assert_problem(refused, HTTPStatus.CONFLICT, "illegal_transition")
    body = await served.post("/v1/jobs/abort", {"jobs": [ended, pending, pending[:20]]})
    assert [(each["job_id"], each["aborted"]) for each in body["items"]] == [
        (ended, False),
        (pending, True),
    ]
    body = await served.post("/v1/jobs/retry", {"jobs": [ended, pending]})
    assert [each["retry_of"] for each in body["items"]] == [ended, pending]
    unknown = await served.ask("POST", "/v1/jobs/abort", {"jobs": [pending, "e" * 64]})
    assert_problem(unknown, HTTPStatus.NOT_FOUND, "not_known")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"jobs": []},
        {"jobs": ["nonsense"]},
        {"jobs": ["e" * 64], "kind": "a"},
        {"jobs": ["e" * 64] * 501},
        {"jobs": ["e" * 64], "cursor": "WzFd"},
        {"state": "succeeded"},
        {"kind": "a", "limit": 2**62},
        {"kind": "a", "reason": "a\0b"},
        {"kind": "a", "reason": "x" * 2_000},
    ],
)
async def test_a_choice_that_is_none_is_refused(served: ServedNode, body: dict[str, Any]) -> None:
    assert_problem(await served.ask("POST", "/v1/jobs/abort", body), 422, "bad_body")


@pytest.mark.parametrize("cursor", ["nonsense", "MQ", "WyJmYWlsZWQiLDFd", "WyJwZW5kaW5nIiwtMV0", "W10"])
async def test_a_cursor_of_no_page_is_refused(served: ServedNode, cursor: str) -> None:
    body = {"state": "pending", "cursor": cursor}
    assert_problem(await served.ask("POST", "/v1/jobs/abort", body), 422, "bad_cursor")
