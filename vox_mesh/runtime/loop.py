"""The event loop of processes that stay: uvloop's, on which a write costs about a fifth less."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """The same as `asyncio.run`, on the quicker loop. A mesh works on either."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
