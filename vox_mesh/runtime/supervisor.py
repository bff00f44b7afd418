"""The supervisor: keeps the parts of a node running, and knows how each of them stands."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from vox_mesh.errors import MeshError
from vox_mesh.store.background import is_cancelled

_log = logging.getLogger(__name__)

_FIRST_S: Final = 0.5
_LONGEST_S: Final = 30.0
_STOP_S: Final = 60.0
"""What a part still has to do has deadlines of its own, and those are shorter."""

_SOUND_S: Final = 60.0
"""A part that has run for so long was begun well: the next pause is short again."""

Run = Callable[[], Awaitable[None]]


class PartState(StrEnum):
    """How a part stands."""

    RUNNING = "running"
    PAUSING = "pausing"
    """It crashed, and is begun again soon."""

    ENDED = "ended"
    """It did what it was for."""

    BROKEN = "broken"
    """It can't go on, and nor can the node."""


@dataclass
class Part:
    """One thing that a node does all the time."""

    name: str
    run: Run
    state: PartState = PartState.RUNNING
    restarts: int = 0
    fault: str = ""
    """What it last crashed with."""


@dataclass
class Supervisor:
    """Runs parts until it is stopped. No part outlives it.

    One that crashes is begun again, after a pause that grows. An error of `fatal` can't be mended by that.
    """

    chance: Callable[[], float]
    fatal: tuple[type[MeshError], ...] = ()
    monotonic: Callable[[], float] = time.monotonic
    parts: dict[str, Part] = field(default_factory=dict)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _broken: asyncio.Future[MeshError] | None = None

    def start(self, name: str, run: Run) -> None:
        """Run a part from now on."""
        part = self.parts[name] = Part(name, run)
        self._tasks[name] = asyncio.create_task(self._keep(part), name=f"vox-mesh-{name}")

    async def _keep(self, part: Part) -> None:
        pause_s = _FIRST_S
        while True:
            began = self.monotonic()
            try:
                await part.run()
            except asyncio.CancelledError as cancelled:
                if is_cancelled():
                    raise
                self._crashed(part, cancelled)  # by something of its own
            except Exception as error:
                if is_cancelled():
                    _log.warning("%s did not end well: %s", part.name, error)
                    return
                if isinstance(error, self.fatal):
                    self._break(part, error)
                    return
                self._crashed(part, error)
            else:
                part.state = PartState.ENDED
                return
            if self.monotonic() - began > _SOUND_S:
                pause_s = _FIRST_S
            part.state = PartState.PAUSING
            await asyncio.sleep(pause_s * (0.5 + self.chance()))
            pause_s = min(2 * pause_s, _LONGEST_S)
            part.restarts += 1
            part.state = PartState.RUNNING

    def _crashed(self, part: Part, error: BaseException) -> None:
        _log.error("%s crashed, and is begun again", part.name, exc_info=error)
        part.fault = f"{type(error).__name__}: {error}"

    def _break(self, part: Part, error: MeshError) -> None:
        _log.error("%s can't go on: %s", part.name, error.line)
        part.state, part.fault = PartState.BROKEN, error.line
        if not self._end.done():
            self._end.set_result(error)

    @property
    def _end(self) -> asyncio.Future[MeshError]:
        if self._broken is None:
            self._broken = asyncio.get_running_loop().create_future()
        return self._broken

    async def broken(self) -> MeshError:
        """Wait until a part can't go on; why."""
        return await asyncio.shield(self._end)

    async def stop(self, *names: str) -> None:
        """Stop these parts, to their very end; one that does not end is left behind, and told of."""
        stopping = {name: self._tasks.pop(name) for name in names if name in self._tasks}
        for task in stopping.values():
            task.cancel()
        if stopping:
            await asyncio.wait(stopping.values(), timeout=_STOP_S)
        for name, task in stopping.items():
            self.parts[name].state = PartState.ENDED
            if not task.done():
                _log.error("%s does not end, and is left behind", name)
            elif not task.cancelled():
                task.exception()  # it was told of

    async def stop_all(self) -> None:
        """Stop all parts, to their very end."""
        await self.stop(*self._tasks)
