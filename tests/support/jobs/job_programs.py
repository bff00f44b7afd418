"""A worker in a process of its own, which may be killed at any moment.

`python -m tests.support.jobs.job_programs JOB`, with the settings in the environment. Which attempts it
begins is written to a file before anything else is done.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from contextlib import suppress
from typing import Any

from tests.support.messages.message_programs import Lines
from tests.support.running.jobs import report
from vox_mesh import Mesh
from vox_mesh.jobs.worker.context import JobContext


async def work(job: dict[str, Any]) -> None:
    """Be a node that works on jobs until it is stopped. A job's payload says how it goes."""
    async with Mesh.open() as mesh:
        begun = Lines(job["path"])

        @mesh.worker.handles("chaos.*", lease=job["lease"])
        async def handle(context: JobContext) -> dict[str, Any]:
            begun.add(context.job.job_id, context.job.claim_token, mesh.identity.node_id)
            report(begun=context.job.job_id)
            how = context.payload
            if context.attempt <= how["failures"]:
                raise ValueError("as asked")
            if context.attempt <= how.get("hangs", 0):
                await asyncio.Event().wait()
            with suppress(*((asyncio.CancelledError,) if how["is_stubborn"] else ())):
                await asyncio.sleep(how["seconds"])
            return {"by": mesh.identity.node_id, "attempt": context.attempt}

        async with mesh.worker.running(concurrency=job["places"]):
            report(node=mesh.identity.node_id)
            await asyncio.Event().wait()


async def main(job: dict[str, Any]) -> None:
    """Do the job. SIGTERM ends it in good order."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await work(job)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    with suppress(BrokenPipeError, asyncio.CancelledError):
        asyncio.run(main(json.loads(sys.argv[1])))
