"""The keys that nodes show each other at the relay: a new one with every bar."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from vox_mesh.errors import MeshError
from vox_mesh.model.rhythm.tempo import Window
from vox_mesh.model.rhythm.window_keys import RELAY, Project, WindowKeyFault, check, issue

_LOOK_S: Final = 1.0


class RelayKeys:
    """Makes the key of the bar that it is, and checks those of others."""

    def __init__(
        self,
        secret: str,
        project: Project,
        now_ms: Callable[[], int],
        window_at: Callable[[int], Window],
        revoke_after_bars: Callable[[], int],
        look_at_clock: Callable[[], Awaitable[object]],
    ) -> None:
        self._secret = secret
        self._project = project
        self._now_ms = now_ms
        self._window_at = window_at
        self._revoke_after_bars = revoke_after_bars
        self._look_at_clock = look_at_clock
        self._made: tuple[Window, str] | None = None

    @property
    def secret(self) -> str:
        """What they are derived from, to be kept out of all that is told."""
        return self._secret

    def current(self) -> str:
        """The key of this bar."""
        window = self._window_at(self._now_ms())
        if self._made is None or self._made[0] != window:
            self._made = window, issue(self._secret, self._project, RELAY, window)
        return self._made[1]

    async def instead_of(self, stale: str) -> str:
        """The key of this bar, for one that was out of time; if it is the same, our clock is asked for."""
        if self.current() == stale:
            with suppress(
                MeshError, TimeoutError
            ):  # the database may be away, and then the relay is all there is
                async with asyncio.timeout(_LOOK_S):
                    await self._look_at_clock()
        return self.current()

    def fault(self, key: str) -> WindowKeyFault | None:
        """Why a key that somebody shows is not accepted; `None`: it is."""
        return check(self._secret, key, self._project, RELAY, self._now_ms(), self._revoke_after_bars())
