"""Checkpoints: the saved state of work, one per agent and task."""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.rhythm.phrases.cutoff import call_until
from vox_mesh.rhythm.phrases.reporting import StatusReporter
from vox_mesh.rhythm.phrases.spec import WRITE_S, PhraseSpec
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement

_log = logging.getLogger(__name__)

_SQL: Final = named("checkpoints")

_STATE_TIMEOUT_MS: Final = 3_000
"""How long the state function may take, or half a beat if that is shorter."""


class Checkpoint(NamedTuple):
    """A saved value as canonical JSON, with its bar and timestamp."""

    window_ms: int
    text: str
    hlc: str


class Checkpoints:
    """The checkpoints of one agent's task across its phrases. An unchanged value is written once per bar."""

    def __init__(self, context: RhythmContext, spec: PhraseSpec) -> None:
        self._context = context
        self._task = spec.task
        self._key = (*context.mesh, spec.agent, spec.task)
        self._state = spec.state
        self._last: Checkpoint | None = None

    @property
    def value(self) -> Any:
        """The last saved value, or `None`."""
        return None if self._last is None else parse(self._last.text)

    async def refresh(self) -> None:
        """Read the last checkpoint, unless the one known here is newer: it may still be in the spool."""
        for row in await self._context.store.read(_SQL["last"], self._key, fresh=True):
            stored = Checkpoint._make(row)
            if self._last is None or stored.hlc > self._last.hlc:
                self._last = stored

    async def keep(self, value: Any) -> None:
        """Save a value as the checkpoint of this bar."""
        context = self._context
        window_ms, text = context.beat().window_ms, canonical(value)
        if self._last is not None and (window_ms, text) == self._last[:2]:
            return
        checkpoint = Checkpoint(window_ms, text, context.tick())
        script = Script(Statement(_SQL["keep"], (*self._key, *checkpoint)), appendable=True)
        await context.store.write(script, timeout=WRITE_S)
        self._last = checkpoint

    def forget(self) -> Statement:
        """Return the statement that removes the checkpoint when its task is done."""
        return Statement(_SQL["forget"], (*self._key, self._context.tick()))

    async def keep_state(self, reporter: StatusReporter) -> None:
        """Save the task's state, if there is a state function. Its failures are logged, not raised."""
        if self._state is None:
            return
        context = self._context
        timeout_ms = min(_STATE_TIMEOUT_MS, context.beat().beat_ms // 2)
        try:
            await self.keep(await call_until(self._state, context, context.times.now_ms + timeout_ms))
        except (
            Exception
        ) as error:  # the function is the caller's, and a missing checkpoint must not stop the work
            _log.warning("checkpoint not saved: task=%s error=%r", self._task, error)
            reporter.add_remark("a checkpoint not kept")

    async def run(self, reporter: StatusReporter) -> None:
        """Save the state on each downbeat."""
        times = self._context.times
        while True:
            await times.until(self._context.timeline.window_at(times.now_ms).end_ms)
            await self.keep_state(reporter)
