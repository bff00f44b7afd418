"""Checkpoints: the saved state of work, one per agent and task."""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.rhythm.phrases.cutoff import answer_of
from vox_mesh.rhythm.phrases.spec import WRITE_S, PhraseSpec
from vox_mesh.rhythm.phrases.status_reporter import StatusReporter
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement

_log = logging.getLogger(__name__)

_SQL: Final = named("checkpoints")

_STATE_MS: Final = 3_000
"""How long the state function may take, or half a beat if that is shorter."""


class Checkpoint(NamedTuple):
    """A saved value as canonical JSON, with its bar and timestamp."""

    window_ms: int
    text: str
    hlc: str


class Checkpoints:
    """The checkpoints of one agent's task across its phrases. An unchanged value is written once per bar."""

    def __init__(self, ground: RhythmContext, sheet: PhraseSpec) -> None:
        self._ground = ground
        self._task = sheet.task
        self._whose = (*ground.mesh, sheet.agent, sheet.task)
        self._state = sheet.state
        self._last: Checkpoint | None = None

    @property
    def value(self) -> Any:
        """The last saved value, or `None`."""
        return None if self._last is None else parse(self._last.text)

    async def look(self) -> None:
        """Read the last checkpoint, unless the one known here is newer: it may still be in the spool."""
        for row in await self._ground.store.read(_SQL["last"], self._whose, fresh=True):
            found = Checkpoint._make(row)
            if self._last is None or found.hlc > self._last.hlc:
                self._last = found

    async def keep(self, value: Any) -> None:
        """Save a value as the checkpoint of this bar."""
        ground = self._ground
        window_ms, text = ground.beat().window_ms, canonical(value)
        if self._last is not None and (window_ms, text) == self._last[:2]:
            return
        now = Checkpoint(window_ms, text, str(ground.clock.tick()))
        script = Script(Statement(_SQL["keep"], (*self._whose, *now)), appendable=True)
        await ground.store.write(script, timeout=WRITE_S)
        self._last = now

    def forget(self) -> Statement:
        """Return the statement that removes the checkpoint when its task is done."""
        return Statement(_SQL["forget"], (*self._whose, str(self._ground.clock.tick())))

    async def keep_state(self, voice: StatusReporter) -> None:
        """Save the task's state, if there is a state function. Its failures are logged, not raised."""
        if self._state is None:
            return
        ground = self._ground
        patience_ms = min(_STATE_MS, ground.beat().beat_ms // 2)
        try:
            await self.keep(await answer_of(self._state, ground, ground.times.now_ms + patience_ms))
        except (
            Exception
        ) as error:  # the function is the caller's, and a missing checkpoint must not stop the work
            _log.warning("checkpoint not saved: task=%s error=%r", self._task, error)
            voice.remark("a checkpoint not kept")

    async def run(self, voice: StatusReporter) -> None:
        """Save the state on each downbeat."""
        times = self._ground.times
        while True:
            await times.until(self._ground.timeline.window_at(times.now_ms).end_ms)
            await self.keep_state(voice)
