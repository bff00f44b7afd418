"""A program that writes rows others write too: it says on stdout, in JSON lines, what became of each.

`python -m tests.support.oplog.occ_writers JOB`, with the settings in the environment. Closing its stdin asks
it to begin, or to end, as its job has it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from tests.support.oplog.rivals import MEMORIES, at, overtaken
from tests.support.running.jobs import Job, do_job, report, stop_asked
from vox_mesh import ConflictRecorded, Manual, Mesh

COUNTER: Final = "counter"


def _more(now: dict[str, Any] | None) -> dict[str, Any]:
    return {"importance": (0 if now is None else now["importance"]) + 1}


async def count(job: Job) -> None:
    """When asked, have every caller count this many times."""
    async with Mesh.open() as mesh:
        report(ready=True)
        await stop_asked()

        async def call() -> None:
            for _ in range(job.scripts):
                await mesh.occ.update(MEMORIES, at(COUNTER), _more, patience=60)

        await asyncio.gather(*(call() for _ in range(job.callers)))
        report(lost=mesh.occ.counts[MEMORIES, "retried"])


async def quarrel(job: Job) -> None:
    """Until asked to stop: make a row, lose a race for it, resolve that, and count."""
    stopping = asyncio.create_task(stop_asked())
    async with Mesh.open() as mesh:

        async def call(caller: int) -> None:
            n = 0
            while not stopping.done():
                name = f"{job.writer} {caller} {n}"
                base, _ = await overtaken(mesh, name)
                answer = await mesh.occ.write(
                    MEMORIES, at(name), {"content": "left"}, base, strategy=Manual()
                )
                assert isinstance(answer, ConflictRecorded)
                report(name=name, conflict=answer.conflict_id)
                await mesh.conflicts.resolve(answer.conflict_id, take="left")
                report(resolved=answer.conflict_id)
                await mesh.occ.update(MEMORIES, at(COUNTER), _more)
                report(counted=True)
                n += 1

        await asyncio.gather(*(call(caller) for caller in range(job.callers)))


if __name__ == "__main__":
    do_job(count, quarrel)
