"""The feed: reads the overview repeatedly, and resumes by itself after the database was away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from vox_mesh.errors import DatabaseUnavailable, MeshError
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.backends import Backend
from vox_mesh.settings import Settings
from vox_mesh.views.overview import Overview, OverviewReader

_MAX_INTERVAL_S: Final = 1.0
_MIN_INTERVAL_S: Final = 0.25
_PAUSE_FACTOR: Final = 4
_RETRY_S: Final = 1.0


class Feed:
    """Reads the overview after every change, and at least once a second.

    A server is read at most once a second; with `interval`, every backend is read at that interval. `mesh` is
    for actions; it is `None` while the database can't be opened.
    """

    def __init__(self, settings: Settings, interval: float | None = None) -> None:
        self._settings = settings
        self._interval = None if interval is None else max(_MIN_INTERVAL_S, interval)
        if settings.backend is Backend.SERVER:
            self._interval = max(_MAX_INTERVAL_S, interval or 0.0)
        self.mesh: Mesh | None = None

    async def run(self, seen: Callable[[Overview], None], away: Callable[[MeshError], None]) -> None:
        """Pass each overview to `seen`, and each error to `away`, until cancelled."""
        while True:
            try:
                async with Mesh.open_command(self._settings) as self.mesh:
                    await self._read(self.mesh, seen, away)
            except DatabaseUnavailable as fault:
                away(fault)
            finally:
                self.mesh = None
            await asyncio.sleep(_RETRY_S)

    async def _read(
        self, mesh: Mesh, seen: Callable[[Overview], None], away: Callable[[MeshError], None]
    ) -> None:
        reader, loop = OverviewReader(mesh), asyncio.get_running_loop()
        async for turn in mesh.store.changes():
            started = loop.time()
            try:
                seen(await reader.read())
            except MeshError as fault:
                away(fault)
            except Exception as error:  # rows of the database are untrusted
                away(MeshError(f"overview can't be read: {type(error).__name__}: {error}"))
            if self._interval is not None:
                await turn.pause(self._interval)
                continue
            # A busy mesh commits all the time, and reading a large one takes long.
            pause_s = max(_MIN_INTERVAL_S, _PAUSE_FACTOR * (loop.time() - started))
            turn.wait_at_most(max(0.0, _MAX_INTERVAL_S - pause_s))
            await asyncio.sleep(pause_s)
