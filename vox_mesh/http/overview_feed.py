"""The overview feed: the current overview, read once for all listeners."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Final

from vox_mesh.errors import MeshError, StoreClosed
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.overview import Overview, OverviewReader

_log = logging.getLogger(__name__)

_MIN_INTERVAL_S: Final = 1.0
_RETRY_DELAY_S: Final = 2.0


class OverviewFeed:
    """Reads the overview after every change, at most once a second, while there are listeners."""

    def __init__(self, mesh: MeshServices) -> None:
        self._store = mesh.store
        self._reader = OverviewReader(mesh)
        self._listeners = 0
        self._read_task: asyncio.Task[None] | None = None
        self._latest: Overview | None = None
        self._changed = asyncio.Event()

    async def watch(self) -> AsyncGenerator[Overview, None]:
        """Yield the current overview, and again after changes; a slow consumer skips to the latest."""
        self._listeners += 1
        if self._read_task is None or self._read_task.done():
            read_loop = self._store.faults.keep_running("scenes", self._read, fatal=(StoreClosed,))
            self._read_task = asyncio.create_task(read_loop, name="vox-mesh-scenes")
        seen: Overview | None = None
        try:
            while True:
                changed = self._changed
                if self._latest is not None and self._latest is not seen:
                    seen = self._latest
                    yield seen
                else:
                    await changed.wait()
        finally:
            self._listeners -= 1
            if not self._listeners:
                self._read_task.cancel()
                self._read_task = self._latest = None

    async def _read(self) -> None:
        async for turn in self._store.changes(debounce_s=_MIN_INTERVAL_S):  # a busy mesh commits all the time
            try:
                self._latest = await self._reader.look()
            except MeshError as error:
                _log.info("no events for now: %s", error.line)
                turn.wait_at_most(_RETRY_DELAY_S)
            except Exception as error:
                self._store.faults.note("scenes", error)
                turn.wait_at_most(_RETRY_DELAY_S)
            self._changed.set()
            self._changed = asyncio.Event()
