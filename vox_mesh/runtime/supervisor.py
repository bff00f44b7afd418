"""The supervisor: runs the parts of a node, restarts them after a crash, and tracks their states."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from vox_mesh.errors import MeshError, NodeNotAdmitted, StaleIncarnation, StoreClosed
from vox_mesh.store.background import is_cancelled

_log = logging.getLogger(__name__)

_MIN_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 60.0
"""Longer than the deadlines of everything that a part may do while it stops."""

_STABLE_S: Final = 60.0
"""The pause before a restart is short again after a part has run this long."""

FATAL: Final = (StaleIncarnation, NodeNotAdmitted, StoreClosed)
"""The errors after which a node must stop."""

Run = Callable[[], Awaitable[None]]


class PartState(StrEnum):
    """The state of a part."""

    RUNNING = "running"
    PAUSING = "pausing"
    """It crashed and will be restarted soon."""

    ENDED = "ended"
    """It finished or was stopped."""

    BROKEN = "broken"
    """It failed with a fatal error; the node must stop."""


@dataclass
class Part:
    """A background activity of a node."""

    name: str
    run: Run
    state: PartState = PartState.RUNNING
    restarts: int = 0
    fault: str = ""
    """The error of its last crash."""


@dataclass
class Supervisor:
    """Runs parts until it is stopped. No part outlives it.

    A part that crashes is restarted after a growing pause, except after an error of `fatal`.
    """

    chance: Callable[[], float]
    fatal: tuple[type[MeshError], ...] = ()
    monotonic: Callable[[], float] = time.monotonic
    parts: dict[str, Part] = field(default_factory=dict)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _broken: asyncio.Future[MeshError] | None = None

    def start(self, name: str, run: Run) -> None:
        """Start a part."""
        part = self.parts[name] = Part(name, run)
        self._tasks[name] = asyncio.create_task(self._supervise(part), name=f"vox-mesh-{name}")

    async def _supervise(self, part: Part) -> None:
        pause_s = _MIN_PAUSE_S
        while True:
            began = self.monotonic()
            try:
                await part.run()
            except asyncio.CancelledError as cancelled:
                if is_cancelled():
                    raise
                self._record_crash(part, cancelled)  # the part cancelled itself
            except Exception as error:
                if is_cancelled():
                    _log.warning("part failed while stopping: part=%s: %s", part.name, error)
                    return
                if isinstance(error, self.fatal):
                    self._break(part, error)
                    return
                self._record_crash(part, error)
            else:
                part.state = PartState.ENDED
                return
            if self.monotonic() - began > _STABLE_S:
                pause_s = _MIN_PAUSE_S
            part.state = PartState.PAUSING
            await asyncio.sleep(pause_s * (0.5 + self.chance()))
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            part.restarts += 1
            part.state = PartState.RUNNING

    def _record_crash(self, part: Part, error: BaseException) -> None:
        _log.error("part crashed, restarting: part=%s", part.name, exc_info=error)
        part.fault = f"{type(error).__name__}: {error}"

    def _break(self, part: Part, error: MeshError) -> None:
        _log.error("part broken: part=%s: %s", part.name, error.line)
        part.state, part.fault = PartState.BROKEN, error.line
        if not self._breakage.done():
            self._breakage.set_result(error)

    @property
    def _breakage(self) -> asyncio.Future[MeshError]:
        if self._broken is None:
            self._broken = asyncio.get_running_loop().create_future()
        return self._broken

    async def broken(self) -> MeshError:
        """Wait until a part fails with a fatal error, and return the error."""
        return await asyncio.shield(self._breakage)

    async def stop(self, *names: str) -> None:
        """Stop parts and wait for them; a part that does not stop in time is logged and abandoned."""
        stopping = {name: self._tasks.pop(name) for name in names if name in self._tasks}
        for task in stopping.values():
            task.cancel()
        if stopping:
            await asyncio.wait(stopping.values(), timeout=_STOP_TIMEOUT_S)
        for name, task in stopping.items():
            self.parts[name].state = PartState.ENDED
            if not task.done():
                _log.error("part did not stop: part=%s", name)
            elif not task.cancelled():
                task.exception()  # already logged

    async def stop_all(self) -> None:
        """Stop all parts and wait for them."""
        await self.stop(*self._tasks)


async def log_failure(run_once: Callable[[], Awaitable[object]], failure: str) -> None:
    """Run a step of a part; log an error of the mesh that is not fatal."""
    try:
        await run_once()
    except FATAL:
        raise
    except MeshError as error:
        _log.warning("%s: %s", failure, error.line)
