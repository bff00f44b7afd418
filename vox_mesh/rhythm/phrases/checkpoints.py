"""Checkpoints: where the work on a task stands, one for each agent and task."""

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
"""So long, or half a beat, the state of a task may take to be told."""


class Checkpoint(NamedTuple):
    """What was kept, as canonical JSON, in which bar, and when."""

    window_ms: int
    text: str
    hlc: str


class Checkpoints:
    """Those of one task of an agent, in all its phrases. The same in the same bar is not written again."""

    def __init__(self, ground: RhythmContext, sheet: PhraseSpec) -> None:
        self._ground = ground
        self._task = sheet.task
        self._whose = (*ground.mesh, sheet.agent, sheet.task)
        self._state = sheet.state
        self._last: Checkpoint | None = None

    @property
    def value(self) -> Any:
        """What was kept last, or `None`."""
        return None if self._last is None else parse(self._last.text)

    async def look(self) -> None:
        """Learn what was kept before, unless what is known is newer: that may still be in the spool."""
        for row in await self._ground.store.read(_SQL["last"], self._whose, fresh=True):
            found = Checkpoint._make(row)
            if self._last is None or found.hlc > self._last.hlc:
                self._last = found

    async def keep(self, value: Any) -> None:
        """Keep it as that of this bar."""
        ground = self._ground
        window_ms, text = ground.beat().window_ms, canonical(value)
        if self._last is not None and (window_ms, text) == self._last[:2]:
            return
        now = Checkpoint(window_ms, text, str(ground.clock.tick()))
        script = Script(Statement(_SQL["keep"], (*self._whose, *now)), appendable=True)
        await ground.store.write(script, timeout=WRITE_S)
        self._last = now

    def forget(self) -> Statement:
        """The statement that removes it, when its task is done."""
        return Statement(_SQL["forget"], (*self._whose, str(self._ground.clock.tick())))

    async def keep_state(self, voice: StatusReporter) -> None:
        """Keep what the task's state is, if anybody can tell: soon, and whatever may be wrong with it."""
        if self._state is None:
            return
        ground = self._ground
        patience_ms = min(_STATE_MS, ground.beat().beat_ms // 2)
        try:
            await self.keep(await answer_of(self._state, ground, ground.times.now_ms + patience_ms))
        except Exception as error:  # the function is somebody else's, and a checkpoint is not the work
            _log.warning("no checkpoint of %s could be kept: %r", self._task, error)
            voice.remark("a checkpoint not kept")

    async def run(self, voice: StatusReporter) -> None:
        """Keep the state on each downbeat."""
        times = self._ground.times
        while True:
            await times.until(self._ground.timeline.window_at(times.now_ms).end_ms)
            await self.keep_state(voice)
