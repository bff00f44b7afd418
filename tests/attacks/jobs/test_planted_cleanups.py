"""Planted notes of aborts: they run nothing, hold up no compensation, and are logged once."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from tests.support.attacks.hostile_writer import HostileWriter
from vox_mesh import JobContext
from vox_mesh.errors import BadValue
from vox_mesh.jobs.steps.job_forks import JobForks
from vox_mesh.model.jobs.records import Job
from vox_mesh.node import MeshNode

PATIENCE_S: Final = 30.0
_COUNT: Final = 250
_PLANTED: Final = f"""
    WITH RECURSIVE planted (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM planted WHERE n < {_COUNT - 1})
"""
_JOBS: Final = f"""{_PLANTED}
    INSERT INTO jobs (scope_id, repository_id, job_id, ulid, kind, state, priority, not_before_ms,
        max_attempts, backoff_ms, created_ms, ended_ms, scheduled_by, seed, last_op, manifest)
    SELECT ?1, ?2, printf('%064x', n), printf('%026d', n), 'planted', 'aborted', 1, 0,
        1, 0, 1, 1, 'x', 'x', 'x', '{{}}'
    FROM planted
"""
_NOTES: Final = f"""{_PLANTED}
    INSERT INTO job_cleanups (scope_id, repository_id, job_id) SELECT ?1, ?2, printf('%064x', n) FROM planted
"""
_UNREADABLE: Final = (
    "UPDATE jobs SET job_id = X'FF' WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?3"
)
_ITS_NOTE: Final = "INSERT INTO job_cleanups (scope_id, repository_id, job_id) VALUES (?1, ?2, X'FF')"


async def aborted(node: MeshNode, undone: list[str], name: str) -> Job:
    """A job with a compensation, which its owner has aborted."""

    async def undo() -> None:
        undone.append(name)

    @node.worker.handles(name)
    async def work(context: JobContext) -> None:
        await context.on_cancel(undo)
        await context.wait_message()

    job = await node.jobs.schedule(name)
    async with asyncio.timeout(PATIENCE_S), node.worker.running():
        async for seen in node.jobs.watch(job.job_id):
            if seen.state == "pending" and seen.attempts:
                break
    await node.jobs.abort(job.job_id)
    return await node.jobs.find(job.job_id)


async def kinds(node: MeshNode) -> list[str]:
    """The kinds of pending jobs."""
    await node.store.synced()
    counts = await node.jobs.queries.counts()
    return sorted(kind for kind, states in counts.items() if states.get("pending"))


async def test_planted_notes_hold_up_no_compensation_and_are_logged_once(
    owner: MeshNode, hostile: HostileWriter, caplog: pytest.LogCaptureFixture
) -> None:
    for sql in (_JOBS, _NOTES, _ITS_NOTE):
        hostile.run(sql)
    hostile.run(_UNREADABLE, f"{_COUNT - 1:064x}")
    await aborted(owner, [], "genuine")
    await owner.store.synced()
    for _ in range(3):
        await owner._job_maintenance.run_once()
    assert await kinds(owner) == ["genuine"]
    refused = [each.args for each in caplog.records if "cleanup refused" in each.msg]
    assert 0 < len(refused) == len(set(refused)) <= 10  # lines that others cause are throttled, too
    (left,) = hostile.run("SELECT count(*) FROM job_cleanups WHERE scope_id = ?1 AND repository_id = ?2")
    assert left == [_COUNT + 1]


async def test_a_cleanup_that_fails_holds_up_no_other(
    owner: MeshNode, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = sorted(
        [await aborted(owner, [], name) for name in ("one", "two")], key=lambda job: job.job_id
    )
    works = JobForks.cleanup_of

    def fail(forks: JobForks, job: Job, *others: object) -> object:
        if job.job_id == first.job_id:
            raise BadValue("it can't be undone")
        return works(forks, job, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(JobForks, "cleanup_of", fail)
    await owner.store.synced()
    for _ in range(2):
        await owner._job_maintenance.run_once()
    assert await kinds(owner) == [second.kind]
    assert caplog.text.count(f"cleanup failed: job_id={first.job_id}") == 1
