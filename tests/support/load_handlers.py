"""Handlers of nodes under load; each attempt is written down, in the working folder, before all else."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from vox_mesh import HandlerSet, JobContext

handlers = HandlerSet()
_BEGUN = os.open("begun", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@handlers.handles("load.*", lease=1.5)
async def work(context: JobContext) -> Any:
    """Take as long as it is told to."""
    job = context.job
    os.write(_BEGUN, f"{job.job_id} {job.claim_token} {job.claimer}\n".encode())
    await asyncio.sleep(context.payload["seconds"])
    return {"attempt": context.attempt}
