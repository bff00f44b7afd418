"""An agent that lost its claim can report nothing, also while another agent holds the job."""

from __future__ import annotations

import pytest

from vox_mesh.errors import StaleClaim
from vox_mesh.jobs.work.reports import succeeded
from vox_mesh.testing.harness import MeshHarness


async def test_a_late_report_of_an_agent_is_refused() -> None:
    async with MeshHarness() as harness:
        node = await harness.node()
        job = await node.jobs.schedule("work")
        (late,) = await node.work.take("late", lease="30s")
        await harness.clock.advance("31s")
        (current,) = await node.work.take("current")
        with pytest.raises(StaleClaim):
            await node.work.report(job, late.claim_token, succeeded("of the late one"))
        await node.work.report(job, current.claim_token, succeeded("of the current one"))
        assert await node.jobs.result(job) == "of the current one"
