"""Jobs that have ended, and a hostile writer that puts their rows back."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from tests.support.attacks.hostile_writer import HostileWriter
from vox_mesh import JobContext
from vox_mesh.model.jobs.records import Job
from vox_mesh.node import MeshNode

PATIENCE_S: Final = 30.0


async def run_until_done(node: MeshNode, last: str) -> list[Any]:
    """Run jobs until the one with this payload was run; return the payloads of all."""
    ran: list[Any] = []
    done = asyncio.Event()

    @node.worker.handles("build")
    async def build(context: JobContext) -> None:
        ran.append(context.payload)
        if context.payload == last:
            done.set()

    async with asyncio.timeout(PATIENCE_S), node.worker.running(concurrency=1):
        await done.wait()
    return ran


async def end_job(owner: MeshNode, payload: str, how: str) -> Job:
    """Schedule a job and end it, and return its row from before it was claimed."""
    scheduled = await owner.jobs.schedule("build", payload, priority=3)
    row = await owner.jobs.find(scheduled.job_id)
    if how == "aborted":
        await owner.jobs.abort(row.job_id, reason="not wanted")
    else:
        assert await run_until_done(owner, payload) == [payload]
        await owner.jobs.wait(row.job_id, timeout=PATIENCE_S)
    return row


def put_back(hostile: HostileWriter, row: Job, **columns: Any) -> None:
    """Restore the row of a job to its state before it was claimed, or to one like it."""
    values = row._asdict() | columns
    names = [name for name in values if name not in ("id", "job_id", "manifest")]
    settings = ", ".join(f"{name} = ?{number}" for number, name in enumerate(names, 4))
    hostile.run(
        f"UPDATE jobs SET {settings} WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?3",
        *(row.job_id, *(values[name] for name in names)),
    )
