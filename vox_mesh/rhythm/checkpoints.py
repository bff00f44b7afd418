"""Checkpoints: where the work on a task stands, one for each agent and task."""

from __future__ import annotations

import inspect
import logging
from typing import Any, Final, NamedTuple

from vox_mesh.errors import MeshError
from vox_mesh.model.canonical import canonical, parse
from vox_mesh.rhythm.ground import Ground
from vox_mesh.rhythm.sheet import WRITE_S, State
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.statements import named

_log = logging.getLogger(__name__)

_SQL: Final = named("checkpoints")


class Checkpoint(NamedTuple):
    """What was kept, as canonical JSON, and in which bar."""

    window_ms: int
    text: str


class Checkpoints:
    """Those of one task of an agent. What was kept before in the same bar is not written again."""

    def __init__(self, ground: Ground, agent: str, task: str, state: State | None) -> None:
        self._ground = ground
        self._agent = agent
        self._task = task
        self._state = state
        self._last: Checkpoint | None = None

    @property
    def value(self) -> Any:
        """What was kept last, or `None`."""
        return None if self._last is None else parse(self._last.text)

    async def look(self) -> None:
        """Learn what was kept before."""
        ground = self._ground
        values = (*ground.mesh, self._agent, self._task)
        rows = await ground.store.read(_SQL["last"], values, fresh=True)
        self._last = Checkpoint._make(rows[0]) if rows else None

    async def keep(self, value: Any) -> None:
        """Keep it as that of this bar."""
        ground = self._ground
        now = Checkpoint(ground.beat().window_ms, canonical(value))
        if now == self._last:
            return
        values = (*ground.mesh, self._agent, self._task, *now, str(ground.clock.tick()))
        script = Script(Statement(_SQL["keep"], values), appendable=True)
        await ground.store.write(script, timeout=WRITE_S)
        self._last = now

    async def keep_state(self) -> None:
        """Keep what the task's state is, if anybody can tell."""
        if self._state is None:
            return
        try:
            value = self._state()
            await self.keep(await value if inspect.isawaitable(value) else value)
        except MeshError as error:
            _log.warning("no checkpoint of %s could be kept: %s", self._task, error.line)

    async def run(self) -> None:
        """Keep the state on each downbeat."""
        times = self._ground.times
        while True:
            await times.until(self._ground.timeline.window_at(times.now_ms).end_ms)
            await self.keep_state()
