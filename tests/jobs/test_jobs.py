"""Scheduling, retrying and ending, as anyone may do it from anywhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from vox_mesh.errors import BadManifest, BadValue, IllegalTransition, NoAnswer, NotKnown, OutcomeUnknown
from vox_mesh.model.base.canonical import content_id
from vox_mesh.model.jobs.manifest import Manifest, parse_manifests
from vox_mesh.model.jobs.records import JobState
from vox_mesh.node import MeshNode

_A = "01M7FQ2ZC4T6V8X0Y2Z4A6B8C0"
_B = "01M7FQ2ZC4T6V8X0Y2Z4A6B8C1"


async def test_the_same_manifest_is_the_same_job_unless_it_is_new(any_node: MeshNode) -> None:
    jobs = any_node.jobs
    first = await jobs.schedule("a.b", {"x": 1}, new=False)
    again = await jobs.schedule("a.b", {"x": 1}, new=False, priority=3)
    another = await jobs.schedule("a.b", {"x": 1})
    assert (first.is_new, again.is_new, another.is_new) == (True, False, True)
    assert (again.job_id, again.ulid) == (first.job_id, first.ulid)
    assert another.job_id != first.job_id
    job = await jobs.find(first)
    assert job.priority == 1, "what was said first stays"
    assert content_id(job.core) == job.job_id


async def test_what_was_scheduled_and_can_not_be_read_back_is_not_reported_as_failed(
    local: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise NoAnswer("the answer did not come")

    with monkeypatch.context() as outage:
        outage.setattr(local.store, "read", away)
        with pytest.raises(OutcomeUnknown):
            await local.jobs.schedule("a.b", 1, new=False)
        with pytest.raises(OutcomeUnknown):
            await local.crons.add("c", "* * * * *", Manifest.of(kind="a.b"))
    assert not (await local.jobs.schedule("a.b", 1, new=False)).is_new
    assert [cron.name for cron in await local.crons.listed()] == ["c"]


@pytest.mark.parametrize(
    "payload", [1e17, 0.1, -0.0, '\u20ac \U0001f600 \\ " \n', {"ä": [None, True, {}]}, []]
)
async def test_what_is_stored_is_what_the_id_is_the_hash_of(any_node: MeshNode, payload: object) -> None:
    job = await any_node.jobs.find(await any_node.jobs.schedule("a.b", payload))
    assert content_id(job.core) == job.job_id
    assert job.payload == payload


async def test_a_job_is_found_by_its_id_its_ulid_and_the_beginning_of_its_id(local: MeshNode) -> None:
    scheduled = await local.jobs.schedule("a.b", 1, ulid=_A)
    for name in (scheduled.job_id, scheduled.job_id[:6], scheduled.job_id[:26], _A, _A.lower(), scheduled):
        assert (await local.jobs.find(name)).job_id == scheduled.job_id
    with pytest.raises(NotKnown):
        await local.jobs.find("0" * 64)
    with pytest.raises(BadValue):
        await local.jobs.find("not a job")
    with pytest.raises(BadValue, match="ULID"):
        await local.jobs.schedule("a.b", 2, ulid=_A)


async def test_jobs_of_one_batch_may_wait_for_each_other_and_a_cycle_is_named(local: MeshNode) -> None:
    text = f"kind: a.b\npayload: 2\nulid: {_B}\nafter: [{_A}]\n---\nkind: a.b\npayload: 1\nulid: {_A}\n"
    first, second = await local.jobs.schedule_all(parse_manifests(text))
    assert (first.ulid, second.ulid) == (_A, _B)
    assert (await local.jobs.find(_B)).waits == 1
    cycle = f"kind: a.c\nulid: {_A}\nafter: [{_B}]\n---\nkind: a.c\nulid: {_B}\nafter: [{_A}]\n"
    with pytest.raises(BadManifest, match=f"{_A} -> {_B} -> {_A}"):
        await local.jobs.schedule_all(parse_manifests(cycle))
    assert await local.jobs.queries.counts() == {"a.b": {"pending": 2}}


async def test_nothing_is_scheduled_if_one_of_a_batch_can_not_be(local: MeshNode) -> None:
    good, bad = Manifest.of(kind="a.b", payload=1), Manifest.of(kind="a.b", payload=2, after=["0" * 64])
    with pytest.raises(BadValue, match="a predecessor does not exist"):
        await local.jobs.schedule_all([good, bad])
    assert await local.jobs.queries.counts() == {}


async def test_a_job_that_is_to_run_later_is_not_ready_before(local: MeshNode) -> None:
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    await local.jobs.schedule("a.b", 1, run_at=later)
    assert await local.jobs.queries.ready(["a.b"]) == []
    due_ms = await local.jobs.queries.next_due_ms(["a.b"])
    assert due_ms == round(later.timestamp() * 1_000)


async def test_a_retry_is_a_new_job_and_the_same_one_when_asked_for_twice(local: MeshNode) -> None:
    first = await local.jobs.schedule("a.b", 1, priority=2, max_attempts=5)
    with pytest.raises(BadValue, match="pending"):
        await local.jobs.retry(first)
    assert await local.jobs.abort(first, reason="no") == [first.job_id]
    retry, again = await local.jobs.retry(first), await local.jobs.retry(first)
    assert (retry.is_new, again.is_new, retry.job_id) == (True, False, again.job_id)
    job = await local.jobs.find(retry)
    assert (job.retry_of, job.priority, job.max_attempts, job.payload) == (first.job_id, 2, 5, 1)
    assert (await local.jobs.find(first)).state == JobState.ABORTED


async def test_what_waited_for_each_other_does_so_again_when_retried(local: MeshNode) -> None:
    first = await local.jobs.schedule("a.b", 1)
    then = await local.jobs.schedule("a.b", 2, after=[first])
    await local.jobs.abort(first)
    ended = [await local.jobs.find(each) for each in (then, first)]
    assert [job.state for job in ended] == [JobState.FAILED, JobState.ABORTED]
    retried = await local.jobs.retry_all(ended)
    (waits,) = await local.jobs.queries.predecessors([each.job_id for each in retried])
    by_old = {(await local.jobs.find(each)).retry_of: each.job_id for each in retried}
    assert (waits.job_id, waits.predecessor) == (by_old[then.job_id], by_old[first.job_id])


async def test_a_job_that_no_one_has_can_not_be_given_back(local: MeshNode) -> None:
    scheduled = await local.jobs.schedule("a.b", 1)
    with pytest.raises(IllegalTransition):
        await local.jobs.yield_job(scheduled)
    await local.jobs.abort(scheduled)
    with pytest.raises(IllegalTransition):
        await local.jobs.abort(scheduled)


async def test_a_job_has_the_same_retry_whether_alone_or_with_what_it_waited_for(local: MeshNode) -> None:
    first = await local.jobs.schedule("a.b", 1)
    then = await local.jobs.schedule("a.b", 2, after=[first])
    await local.jobs.abort(first)
    of_first = await local.jobs.retry(first)
    alone = await local.jobs.retry(then)
    (waits,) = await local.jobs.queries.predecessors([alone.job_id])
    assert waits.predecessor == of_first.job_id, "it is retried, so that is what it waits for"
    again = await local.jobs.retry_all([await local.jobs.find(each) for each in (then, first)])
    assert [(each.job_id, each.is_new) for each in again] == [(alone.job_id, False), (of_first.job_id, False)]


async def test_a_job_without_a_payload_is_the_same_from_a_file_and_from_code(local: MeshNode) -> None:
    scheduled = await local.jobs.schedule("a.b", new=False)
    (manifest,) = parse_manifests("kind: a.b")
    assert scheduled.job_id == manifest.content_id
