"""Policy roots: a worker with a list of them runs no other job, whatever its own survey finds."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.jobs.worker.test_policy_roots import rooted, working
from tests.support.jobs.job_desks import ended

_ALLOWED: Final = f"sha256:{'ab' * 32}"
_OTHER: Final = f"sha256:{'cd' * 32}"


async def test_a_worker_runs_no_job_whose_policy_root_it_does_not_allow(tmp_path: Path) -> None:
    async with working(tmp_path, "strict", _ALLOWED) as strict:
        refused = [await rooted(strict, _OTHER), (await strict.jobs.schedule("work")).job_id]
        allowed = await rooted(strict, _ALLOWED)
        await ended(strict, allowed)
        found = [await strict.jobs.find(job_id) for job_id in refused]
        assert [(job.state, job.attempts) for job in found] == 2 * [("pending", 0)]
