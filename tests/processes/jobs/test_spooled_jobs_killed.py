"""Jobs that a killed node had spooled are scheduled once, in order, by that node."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.processes.conftest import StartWriter
from tests.support.running.jobs import Job
from tools.homes import MESH
from tools.sqld import Server
from vox_mesh.mesh import Mesh
from vox_mesh.model.jobs.records import SCHEDULE

_JOBS = 20


async def test_jobs_spooled_by_a_killed_node_are_scheduled_once_in_order_and_by_that_node_alone(
    tmp_path: Path, server: Server, start_author: StartWriter
) -> None:
    settings = MESH.settings(tmp_path, server, db_deadline="1s", node_id="first")
    (first,) = await (await start_author(settings, Job("sit"))).finish()
    server.kill()
    author = await start_author(settings, Job("schedule", scripts=_JOBS))
    await author.until(lambda reports: len(reports) == _JOBS)
    assert all(each["spooled"] for each in author.reports)
    await author.kill()
    await asyncio.to_thread(server.start)
    other = settings.model_copy(update={"node_id": "second"})
    await (await start_author(other, Job("drain"))).finish()
    async with Mesh.open_command(other) as mesh:
        assert await mesh.jobs.queries.counts() == {}
        for _ in range(2):  # the second time, nothing is left to replay
            await (await start_author(settings, Job("drain"))).finish()
        jobs = await mesh.jobs.queries.listed(limit=2 * _JOBS)
        assert [job.job_id for job in jobs[::-1]] == [each["job_id"] for each in author.reports]
        assert {job.scheduled_by for job in jobs} == {first["node"]}
        ops = await mesh.oplog.tail(3 * _JOBS, kind=SCHEDULE)
        assert [op.accepted for op in ops] == [1] * _JOBS
        assert all(await asyncio.gather(*map(mesh.jobs.authorship.is_scheduled, jobs)))
