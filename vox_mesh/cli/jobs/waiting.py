"""Waiting until jobs have ended, with a progress bar."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from vox_mesh.cli.jobs.missing_worker import kinds_without_worker, starting_command
from vox_mesh.cli.support.session import AgentMesh
from vox_mesh.cli.support.terminal import ProgressBar
from vox_mesh.errors import MeshError
from vox_mesh.jobs.batches import find_existing
from vox_mesh.mesh import Mesh
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.views.nodes import kinds_of

if TYPE_CHECKING:
    from vox_mesh.client import AgentClient

_MIN_INTERVAL_S: Final = 0.05
_WHOLE: Final = 1_000
"""The progress of a job that has ended."""
_ADVICE_AFTER_S: Final = 2.0
"""How long jobs may wait for a worker before the command says that there is none."""
_MAX_PROGRESS_READS: Final = 20
"""How many running jobs are asked for their progress."""
_MAX_NAMED: Final = 5
"""How many kinds are named."""


async def wait(mesh: AgentMesh, jobs: Sequence[Job], timeout: float | None = None) -> list[Job]:
    """Wait until all jobs have ended, or for `timeout` seconds; return their last known state."""
    if not isinstance(mesh, Mesh):
        return await asyncio.gather(*(_wait_at_node(mesh, each, timeout) for each in jobs))
    waiting = _Waiting(mesh, jobs)
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await waiting.run()
    return waiting.jobs


async def _wait_at_node(client: AgentClient, job: Job, timeout: float | None) -> Job:
    with suppress(TimeoutError):
        return await client.jobs.wait(job, timeout)
    return await client.jobs.find(job)


class _Waiting:
    """Waits until jobs have ended, and shows their progress."""

    def __init__(self, mesh: Mesh, jobs: Sequence[Job]) -> None:
        self._mesh = mesh
        self._by_id = {job.job_id: job for job in jobs}

    @property
    def jobs(self) -> list[Job]:
        """The last known state of the jobs."""
        return list(self._by_id.values())

    @property
    def _open(self) -> list[Job]:
        return [job for job in self.jobs if not job.has_ended]

    async def run(self) -> None:
        """Wait until all jobs have ended."""
        advice = asyncio.create_task(self._advise(), name="vox-mesh-advice")
        try:
            await self._follow()
        finally:
            advice.cancel()

    async def _advise(self) -> None:
        """Say once which of the jobs wait for a worker that there is not."""
        await asyncio.sleep(_ADVICE_AFTER_S)
        pending = [job.kind for job in self._open if job.state == JobState.PENDING]
        with suppress(MeshError):  # the wait itself goes on without the database
            live = await self._mesh.nodes.live_nodes_from_db()
            for kind in kinds_without_worker(pending, map(kinds_of, live))[:_MAX_NAMED]:
                click.echo(
                    f"vox-mesh: no worker runs {kind} jobs yet; start one: {starting_command(kind)}", err=True
                )

    async def _follow(self) -> None:
        with ProgressBar("waiting") as bar:
            bar.show(0, _WHOLE * len(self.jobs))
            async for turn in self._mesh.store.changes():
                if not self._open:
                    return
                with turn.retry_if_unavailable():
                    for job in await find_existing(self._mesh.jobs, [job.job_id for job in self._open]):
                        self._by_id[job.job_id] = job
                    if sys.stderr.isatty():
                        bar.show(await self._done(), _WHOLE * len(self.jobs))
                if not self._open:
                    return
                await asyncio.sleep(_MIN_INTERVAL_S)  # a busy mesh commits all the time

    async def _done(self) -> int:
        """Return the progress of all jobs together."""
        running = [job for job in self._open if job.state == JobState.RUNNING]
        notes = [
            await self._mesh.jobs.notes.of(job.job_id, fresh=True) for job in running[:_MAX_PROGRESS_READS]
        ]
        ended = len(self.jobs) - len(self._open)
        return _WHOLE * ended + sum(round(_WHOLE * (note.progress or 0)) for note in notes)


def has_succeeded(jobs: Sequence[Job]) -> bool:
    """Return whether all jobs succeeded."""
    return all(job.state == JobState.SUCCEEDED for job in jobs)
