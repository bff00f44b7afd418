"""Retention maintenance: a node's turns at pruning for the whole mesh."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from vox_mesh.errors import DatabaseUnavailable, MeshError, StaleFence, StaleIncarnation, StoreClosed
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.runtime.retention.retention import WHOLE, Retention

_log = logging.getLogger(__name__)

_BEHIND: Final = 10
"""How much sooner the next turn comes while rows are left to prune."""


class RetentionMaintenance:
    """Prunes when the last pass is long enough ago. Every node runs it; one at a time prunes."""

    def __init__(
        self, retention: Retention, clock: MeshClock, chance: Callable[[], float], interval_s: float
    ) -> None:
        self._retention = retention
        self._clock = clock
        self._chance = chance
        self._interval_ms = round(interval_s * 1_000)

    async def run(self) -> None:
        """Take turns until cancelled."""
        while True:
            await asyncio.sleep(self._interval_ms / 1_000 / _BEHIND * (0.5 + self._chance()))
            try:
                await self.run_once()
            except (StaleIncarnation, StoreClosed):
                raise  # retrying is useless
            except MeshError as error:
                _log.warning("old rows not pruned: %s", error.line)

    async def run_once(self) -> None:
        """Prune for a limited time if a pass is due by our copy of the database."""
        if not self._clock.can_author:
            return
        with suppress(DatabaseUnavailable):
            if not await self._is_due():
                return
            try:
                await self._retention.prune_some()
            except StaleFence:
                _log.info("pruning ended: another node leads")

    async def _is_due(self) -> bool:
        last = (await self._retention.progress()).get(WHOLE)
        if last is None:
            return True
        wait_ms = self._interval_ms if last.position == 0 else self._interval_ms / _BEHIND
        return self._clock.now_ms - last.attempted_ms >= wait_ms
