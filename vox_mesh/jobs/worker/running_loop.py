"""The event loop of the present thread: whether a call may block depends on it."""

from __future__ import annotations

import asyncio


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or `None`."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
