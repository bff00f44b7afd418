"""The keys that nodes present at the relay: a new one with every bar, and at least once a minute."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from vox_mesh.errors import MeshError
from vox_mesh.model.rhythm.tempo import Window
from vox_mesh.model.rhythm.window_keys import RELAY, Project, WindowKeyFault, check, issue, window_of_key

_CLOCK_TIMEOUT_S: Final = 1.0


class RelayKeys:
    """Issues the key of the current bar, and checks the keys of other nodes."""

    def __init__(
        self,
        secret: str,
        project: Project,
        now_ms: Callable[[], int],
        window_at: Callable[[int], Window],
        revoke_after_bars: Callable[[], int],
        check_clock: Callable[[], Awaitable[object]],
    ) -> None:
        self._secret = secret
        self._project = project
        self._now_ms = now_ms
        self._window_at = window_at
        self._revoke_after_bars = revoke_after_bars
        self._check_clock = check_clock
        self._issued: tuple[Window, str] | None = None

    @property
    def secret(self) -> str:
        """The secret the keys are derived from; it must not be logged."""
        return self._secret

    def current(self) -> str:
        """Return the key of the current bar, or of its current part."""
        now_ms = self._now_ms()
        window = window_of_key(self._window_at(now_ms), now_ms)
        if self._issued is None or self._issued[0] != window:
            self._issued = window, issue(self._secret, self._project, RELAY, window)
        return self._issued[1]

    async def replace(self, stale: str) -> str:
        """Return a key to replace a rejected one; if the current one is the same, read the clock first."""
        if self.current() == stale:
            # The database may be away; then the relay is the only path left.
            with suppress(MeshError, TimeoutError):
                async with asyncio.timeout(_CLOCK_TIMEOUT_S):
                    await self._check_clock()
        return self.current()

    def fault(self, key: str) -> WindowKeyFault | None:
        """Return why a key is rejected, or `None` if it is valid."""
        return check(self._secret, key, self._project, RELAY, self._now_ms(), self._revoke_after_bars())
