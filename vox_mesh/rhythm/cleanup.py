"""Retention of promises, phrases, checkpoints, pulses and tempo policies."""

from __future__ import annotations

from typing import Final

from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Script, Statement

_DAY_MS: Final = 86_400_000
RETENTION_MS: Final = {
    "help_threads": 90 * _DAY_MS,
    "phrase_checkpoints": 90 * _DAY_MS,
    "beat_pulses": 90 * _DAY_MS,
    "tempo_policies": 400 * _DAY_MS,
    "phrase_ends": 400 * _DAY_MS,  # more than a year, so that a year's costs can be reported
}

_INTERVAL_MS: Final = 3_600_000
_BATCH_SIZE: Final = 1_000
_MAX_BATCHES: Final = 10
_SQL: Final = named("rhythm_tidying")
_CHANGED: Final = Answer(_SQL["changed"], columns=("changed",))


class RhythmPruner:
    """Prunes old rows of the rhythm's tables. Only the leader runs it."""

    def __init__(self, context: RhythmContext) -> None:
        self._context = context
        self._last_run_ms = 0

    async def run_once(self) -> None:
        """Prune every table that holds expired rows; do nothing if the last run was within the hour."""
        context = self._context
        now_ms = context.times.now_ms
        if now_ms - self._last_run_ms < _INTERVAL_MS:
            return
        self._last_run_ms = now_ms
        (oldest,) = await context.store.read(_SQL["oldest"], context.mesh)
        for table, retention_ms in RETENTION_MS.items():
            if oldest[table] is not None and oldest[table] < now_ms - retention_ms:
                await self._remove(table, now_ms - retention_ms)

    async def _remove(self, table: str, before_ms: int) -> None:
        """Delete in batches, so that no other write waits for long."""
        remove = Statement(_SQL[table], (*self._context.mesh, before_ms, _BATCH_SIZE))
        for _ in range(_MAX_BATCHES):
            if (await self._context.store.write(Script(remove, answer=_CHANGED))).rows.value < _BATCH_SIZE:
                return
