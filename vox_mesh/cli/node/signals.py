"""Signals that end a command: it lets go of what it holds first."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

from vox_mesh.cli.support.early_signals import ENDING
from vox_mesh.cli.support.exit_codes import KILLED


def run_until_signalled(work: Coroutine[Any, Any, int]) -> int:
    """Run it; its exit code. A signal cancels it, once, and 128 and the signal's number is the code then."""
    return asyncio.run(_run(work))


async def _run(work: Coroutine[Any, Any, int]) -> int:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    stopped_by: list[int] = []

    def stop(number: int) -> None:
        stopped_by.append(number)
        if len(stopped_by) == 1:
            task.cancel()

    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup, and shells in the background, want
            loop.add_signal_handler(number, stop, number)
    try:
        return await work
    except asyncio.CancelledError:
        if not stopped_by:
            raise
        task.uncancel()
        return KILLED + stopped_by[0]
