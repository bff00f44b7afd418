"""Waiting for jobs to end, with a progress bar where somebody is looking."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from vox_mesh.cli.support.progress import ProgressBar
from vox_mesh.jobs.batches import find_existing
from vox_mesh.mesh import Mesh
from vox_mesh.model.jobs.records import Job, JobState

_CALM_S: Final = 0.05
_WHOLE: Final = 1_000
_LOOKED_AT: Final = 20  # of so many that run it is asked how far they are


async def wait(mesh: Mesh, jobs: Sequence[Job], timeout: float | None = None) -> list[Job]:
    """Wait until all have ended, or the time is over; the jobs as they are then."""
    waiting = _Waiting(mesh, jobs)
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await waiting.until_all_ended()
    return waiting.jobs


class _Waiting:
    def __init__(self, mesh: Mesh, jobs: Sequence[Job]) -> None:
        self._mesh = mesh
        self._by_id = {job.job_id: job for job in jobs}

    @property
    def jobs(self) -> list[Job]:
        """The jobs as they were seen last."""
        return list(self._by_id.values())

    @property
    def _open(self) -> list[Job]:
        return [job for job in self.jobs if not job.has_ended]

    async def until_all_ended(self) -> None:
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
                await asyncio.sleep(_CALM_S)  # a busy mesh commits all the time

    async def _done(self) -> int:
        """How much of it all is done."""
        running = [job for job in self._open if job.state == JobState.RUNNING]
        notes = [await self._mesh.jobs.notes.of(job.job_id, fresh=True) for job in running[:_LOOKED_AT]]
        ended = len(self.jobs) - len(self._open)
        return _WHOLE * ended + sum(round(_WHOLE * (note.progress or 0)) for note in notes)


def has_succeeded(jobs: Sequence[Job]) -> bool:
    """Whether all of them did."""
    return all(job.state == JobState.SUCCEEDED for job in jobs)
