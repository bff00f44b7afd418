"""Handlers as a user's module has them; tests put a copy of it into the folder that a worker runs in."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from vox_mesh import HandlerSet, JobContext

handlers = HandlerSet()
empty = HandlerSet()
number = 1
_NEVER = 10_000


@handlers.handles("example.echo")
async def echo(context: JobContext) -> Any:
    """Return what came."""
    return context.payload


@handlers.handles("example.wait")
async def wait(context: JobContext) -> None:
    """Go on until it is stopped."""
    await asyncio.sleep(_NEVER)


@handlers.handles("example.stuck")
def stick(context: JobContext) -> None:
    """Go on in a thread, whatever is said."""
    threading.Event().wait(_NEVER)


@handlers.handles("example.block")
async def block(context: JobContext) -> None:
    """Have nothing else go on."""
    time.sleep(_NEVER)  # noqa: ASYNC251 - which is the mistake that is wanted


def register(worker: HandlerSet) -> None:
    """Register a handler where it is asked to."""

    @worker.handles("example.registered.*", concurrency=1)
    async def handle(context: JobContext) -> str:
        return context.job.kind


def fail(worker: HandlerSet) -> None:
    """Register nothing."""
    raise RuntimeError("no model\nis here")


async def register_later(worker: HandlerSet) -> None:
    """Register nothing that anybody waits for."""
