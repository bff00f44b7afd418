"""Steps of the server's clock while nodes run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

from proof.chaos.cluster import ClusterNode
from proof.checkers.locks import SETTLED
from proof.final_state import Ask
from proof.history import Recorder
from tools.faketime import SettableClock
from vox_mesh import MeshError

_LOOK_S: Final = 0.1
_JOINED_S: Final = 15.0
_NOTICED_S: Final = 10.0
"""After this time every lease from before a step is over, even if no node is left that knows of the step."""

_SETTLED_S: Final = 60.0

_PROCESSES: Final = "SELECT node_id, pid FROM mesh_heartbeats"
_NOTICED: Final = """
SELECT coalesce((SELECT correction_ms FROM database_clock), 0) AS correction_ms, EXISTS (
    SELECT 1 FROM clock_witnesses
    WHERE low_ms IS NOT NULL AND epoch = coalesce((SELECT epoch FROM database_clock), 0)
) AS is_recorded"""
_FOLLOWED_MS: Final = 5_000
"""A step of up to this is followed and not corrected."""


class ClockSteps:
    """Set the clock of the server, forward or back, and later set it right.

    A process that starts between a step and the moment a node notices it can't know of the step, and follows
    the stepped clock: that is a documented limit. So the clock is set when every process has joined, and no
    other one starts until the step is recorded in the database.
    """

    def __init__(
        self, clock: SettableClock, nodes: Iterable[ClusterNode], ask: Ask, recorder: Recorder
    ) -> None:
        self._clock = clock
        self._nodes = list(nodes)
        self._ask = ask
        self._recorder = recorder

    @asynccontextmanager
    async def wrong(self, ahead_ms: int) -> AsyncIterator[None]:
        """Set the clock ahead by this, until the end of the block."""
        await self._set(ahead_ms)
        settling = asyncio.create_task(self._note_settled(ahead_ms))
        try:
            yield
        finally:
            settling.cancel()
            await asyncio.wait((settling,))
            await self._set(0)
            await self._note_settled(0)

    async def _set(self, ahead_ms: int) -> None:
        async with AsyncExitStack() as starts:
            for node in self._nodes:
                starts.enter_context(node.without_restarts())
            await _wait_until(self._have_all_joined, _JOINED_S)
            self._clock.set_ahead(ahead_ms / 1_000)
            self._recorder.note("database.clock", ahead_ms=ahead_ms)
            await _wait_until(partial(self._is_noticed, ahead_ms), _NOTICED_S)

    async def _note_settled(self, ahead_ms: int) -> None:
        """Note when the time of the mesh is right again; until then plain reads may be off."""
        if await _wait_until(partial(self._is_settled, ahead_ms), _SETTLED_S):
            self._recorder.note(SETTLED)

    async def _have_all_joined(self) -> bool:
        """Return whether every live process has sent a heartbeat: then it has heard the database's time."""
        joined: set[int] = set()
        with suppress(MeshError):
            joined = {row["pid"] for row in await self._ask(_PROCESSES)}
        return all(node.process is None or node.process.handle.pid in joined for node in self._nodes)

    async def _is_noticed(self, ahead_ms: int) -> bool:
        """Return whether a node has recorded the step, or it is corrected already."""
        with suppress(MeshError):
            (row,) = await self._ask(_NOTICED)
            return bool(row["is_recorded"]) or _is_corrected(ahead_ms, row)
        return False

    async def _is_settled(self, ahead_ms: int) -> bool:
        with suppress(MeshError):
            (row,) = await self._ask(_NOTICED)
            return _is_corrected(ahead_ms, row)
        return False


def _is_corrected(ahead_ms: int, row: dict[str, Any]) -> bool:
    return bool(abs(ahead_ms + row["correction_ms"]) <= _FOLLOWED_MS)


async def _wait_until(is_so: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    """Poll until the condition holds, or this time is over. Return whether it holds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                if await is_so():
                    return True
                await asyncio.sleep(_LOOK_S)
    return False
