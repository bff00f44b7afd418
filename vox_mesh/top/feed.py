"""The feed: looks at the mesh again and again, and goes on by itself when the database was away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from vox_mesh.errors import DatabaseUnavailable, MeshError
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.homes import Home
from vox_mesh.settings import Settings
from vox_mesh.views.overview import Overview, OverviewReader

_LOOK_S: Final = 1.0
_CALM_S: Final = 0.25
_REST: Final = 4
_AGAIN_S: Final = 1.0


class Feed:
    """Tells what the mesh looks like: with every change, and at least once a second.

    `mesh` is there for whoever wants to do something to it, and `None` until it could be opened. A server is
    asked once a second at the most; with `interval` everything is, so often.
    """

    def __init__(self, settings: Settings, interval: float | None = None) -> None:
        self._settings = settings
        self._interval = None if interval is None else max(_CALM_S, interval)
        if settings.home is Home.MESH:
            self._interval = max(_LOOK_S, interval or 0.0)
        self.mesh: Mesh | None = None

    async def run(self, seen: Callable[[Overview], None], away: Callable[[MeshError], None]) -> None:
        """Look, and tell what is seen, or what keeps it from being seen, for ever."""
        while True:
            try:
                async with Mesh.open_command(self._settings) as self.mesh:
                    await self._look_on(self.mesh, seen, away)
            except DatabaseUnavailable as fault:
                away(fault)
            finally:
                self.mesh = None
            await asyncio.sleep(_AGAIN_S)

    async def _look_on(
        self, mesh: Mesh, seen: Callable[[Overview], None], away: Callable[[MeshError], None]
    ) -> None:
        lookout, loop = OverviewReader(mesh), asyncio.get_running_loop()
        async for turn in mesh.store.changes():
            started = loop.time()
            try:
                seen(await lookout.look())
            except MeshError as fault:
                away(fault)
            except Exception as error:  # whoever can write to the database can write anything
                away(MeshError(f"what is there can't be read: {type(error).__name__}: {error}"))
            if self._interval is not None:
                await turn.pause(self._interval)
                continue
            # A busy mesh commits all the time, and reading a large one takes long.
            calm_s = max(_CALM_S, _REST * (loop.time() - started))
            turn.wait_at_most(max(0.0, _LOOK_S - calm_s))
            await asyncio.sleep(calm_s)
