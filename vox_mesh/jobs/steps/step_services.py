"""What the steps of all attempts of a node share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Self

from vox_mesh.jobs.steps.child_jobs import ChildJobs
from vox_mesh.jobs.steps.early_wakes import EarlyWakes
from vox_mesh.jobs.steps.job_cleanups import JobCleanups
from vox_mesh.jobs.steps.job_waits import JobWaits, Verify
from vox_mesh.jobs.steps.step_writer import StepWriter
from vox_mesh.store.store import Store

if TYPE_CHECKING:
    from vox_mesh.jobs.jobs import Jobs


class StepServices(NamedTuple):
    """The children of jobs, what suspended jobs wait for, what their abort concerns, and who stores steps."""

    children: ChildJobs
    waits: JobWaits
    cleanups: JobCleanups
    early_wakes: EarlyWakes
    writer: StepWriter
    noted: asyncio.Event
    """Set when this node begins to write a wait or a cleanup: maintenance need not look for them before."""

    @classmethod
    def of(
        cls, store: Store, jobs: Jobs, verify: Verify, is_known_to_all: Callable[[int], Awaitable[bool]]
    ) -> Self:
        """Return those of a node. `verify` checks messages; `is_known_to_all`: see `ChildJobs`."""
        noted = asyncio.Event()
        return cls(
            ChildJobs(jobs, is_known_to_all),
            JobWaits(store, jobs.clock, verify, noted.set),
            JobCleanups(store, jobs, is_known_to_all, noted.set),
            jobs.wakes,
            StepWriter(store, jobs.steps, is_known_to_all),
            noted,
        )

    async def is_noted_within(self, timeout_s: float) -> bool:
        """Wait until this node begins to write such a row; return `False` after a time without one."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                return await self.noted.wait()
        return False
