"""Retention of promises, phrases, checkpoints, pulses and tempo policies."""

from __future__ import annotations

from typing import Final

from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Script, Statement

_DAY_MS: Final = 86_400_000
KEPT_MS: Final = {
    "help_threads": 90 * _DAY_MS,
    "phrase_checkpoints": 90 * _DAY_MS,
    "beat_pulses": 90 * _DAY_MS,
    "tempo_policies": 400 * _DAY_MS,
    "phrase_ends": 400 * _DAY_MS,  # more than a year, so that a year's costs can be reported
}

_EVERY_MS: Final = 3_600_000
_AT_ONCE: Final = 1_000
_PARTS: Final = 10
_SQL: Final = named("rhythm_tidying")
_CHANGED: Final = Answer(_SQL["changed"], columns=("changed",))


class Tidying:
    """Prunes old rows of the rhythm's tables. Only the leader runs it."""

    def __init__(self, ground: RhythmContext) -> None:
        self._ground = ground
        self._done_ms = 0

    async def run_once(self) -> None:
        """Prune every table that holds expired rows; do nothing if the last run was within the hour."""
        ground = self._ground
        now_ms = ground.times.now_ms
        if now_ms - self._done_ms < _EVERY_MS:
            return
        self._done_ms = now_ms
        (oldest,) = await ground.store.read(_SQL["oldest"], ground.mesh)
        for table, kept_ms in KEPT_MS.items():
            if oldest[table] is not None and oldest[table] < now_ms - kept_ms:
                await self._remove(table, now_ms - kept_ms)

    async def _remove(self, table: str, before_ms: int) -> None:
        """Delete in batches, so that no other write waits for long."""
        remove = Statement(_SQL[table], (*self._ground.mesh, before_ms, _AT_ONCE))
        for _ in range(_PARTS):
            if (await self._ground.store.write(Script(remove, answer=_CHANGED))).rows.value < _AT_ONCE:
                return
