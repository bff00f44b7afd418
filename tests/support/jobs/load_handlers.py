"""Handlers of nodes under load; each attempt is written down, in the working folder, before all else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from vox_mesh import HandlerSet, Job, JobContext

handlers = HandlerSet()


@handlers.handles("load.*", lease=1.5)
async def work(context: JobContext) -> Any:
    """Take as long as asked."""
    _note(context.job)
    await asyncio.sleep(context.payload["seconds"])
    return {"attempt": context.attempt}


def _note(job: Job) -> None:
    with Path("begun").open("a") as begun:
        begun.write(f"{job.job_id} {job.claim_token} {job.claimer}\n")
