"""Refusals of agents: logged, and recorded in the op log with the agent's name.

An agent that is refused often costs no more than one that is refused now and then: its refusals are counted,
and written together, at most six times a minute. A request never waits for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from vox_mesh.errors import MeshError
from vox_mesh.observability.throttled_logger import ThrottledLogger
from vox_mesh.oplog.refusals import RefusedAccess

_log = logging.getLogger(__name__)

Sleep = Callable[[float], Awaitable[None]]

MIN_INTERVAL_S: Final = 10.0
"""The time between two entries about one agent."""

_DELAY_S: Final = 0.2
"""How long the first refusals are collected."""

_MAX_AGENTS: Final = 1_000
_MAX_SORTS: Final = 32
_CLOSE_TIMEOUT_S: Final = 2.0
_OTHERS: Final = "others"


Record = Callable[[str, Counter[RefusedAccess]], Awaitable[None]]
"""Writes the refusals of an agent to the op log."""


class RefusalLog:
    """Counts refusals, and records them in the background while there are any."""

    def __init__(self, record: Record, sleep: Sleep = asyncio.sleep) -> None:
        self._record = record
        self._sleep = sleep
        self._counts: dict[str, Counter[RefusedAccess]] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._log_throttled = ThrottledLogger(_log)

    def note(self, agent: str, operation: str, reason: str) -> None:
        """Count a refusal of an agent, whose name is proved."""
        text = "request refused: agent=%r operation=%s reason=%s"
        self._log_throttled(logging.WARNING, text, agent, operation, reason)
        if self._is_closed or (agent not in self._counts and len(self._counts) >= _MAX_AGENTS):
            return
        counts = self._counts.setdefault(agent, Counter())
        sort = RefusedAccess(operation, reason)
        counts[sort if sort in counts or len(counts) < _MAX_SORTS else RefusedAccess(_OTHERS, _OTHERS)] += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_all(), name="vox-mesh-refusals")

    async def _write_all(self) -> None:
        await self._sleep(_DELAY_S)
        while any(self._counts.values()):
            await self._write_counted()
            await self._sleep(MIN_INTERVAL_S)
        self._counts.clear()

    async def _write_counted(self) -> None:
        for agent, counts in list(self._counts.items()):
            if not counts:
                continue
            self._counts[agent] = Counter()
            try:
                await self._record(agent, counts)
            except BaseException as error:
                self._counts[agent] += counts
                if not isinstance(error, MeshError):
                    raise
                self._log_throttled(logging.WARNING, "refusals not recorded yet: %s", error.line)

    async def close(self) -> None:
        """Record what was counted, and stop."""
        self._is_closed = True
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._write_counted()
        except TimeoutError:
            _log.warning("refusals not recorded: node is shutting down")


def operation_of(request: web.Request) -> str:
    """Return the method and the path of the operation that is asked for, without names and query."""
    resource = request.match_info.route.resource
    return f"{request.method} {'?' if resource is None else resource.canonical}"
