"""A node next to the commands of a test: it does jobs, or has them in hand, and leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from tests.support.jobs.staging import held
from vox_mesh import Mesh, load_settings
from vox_mesh.jobs.worker.attempt import GiveUp
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.node import MeshNode

T = TypeVar("T")

_PATIENCE_S: Final = 60.0
_LEASE_MS: Final = 600_000
LARGE: Final = 20_000
"""Bytes of an output that does not fit into the database."""


def on_node(work: Callable[[MeshNode], Awaitable[T]], **settings: Any) -> T:
    """Do something as a node in the folder of the test, which may also run commands."""

    async def run() -> T:
        chosen = load_settings(_env_file=None, enabled=True, http=False, worker_exec=True, **settings)
        async with asyncio.timeout(_PATIENCE_S), Mesh.open(chosen) as node:
            return await work(node)

    return asyncio.run(run())


def done(*references: str, **settings: Any) -> None:
    """Have a worker do these jobs: `test.fail` fails for good, `test.large` leaves a file, others succeed."""

    async def work(node: MeshNode) -> None:
        @node.worker.handles("test.*")
        async def handle(context: JobContext) -> Any:
            context.progress(0.5, "half of it")
            context.log("at work")
            if context.job.kind == "test.fail":
                raise GiveUp("it can't be done")
            if context.job.kind == "test.large":
                await context.keep("large", b"x" * LARGE)
            return context.payload

        async with node.worker.running():
            for reference in references:
                await node.jobs.wait(reference)

    on_node(work, **settings)


def taken(reference: str) -> None:
    """Have a node begin with a job, and leave it so."""

    async def work(node: MeshNode) -> None:
        job = await node.jobs.find(reference)
        item = held(job.job_id, job.claim_token + 1)
        await node.store.write(node.jobs.transitions.claim([item], _LEASE_MS))
        await node.store.write(node.jobs.transitions.start([item]))

    on_node(work)
