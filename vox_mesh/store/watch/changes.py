"""Count the commits that this process learns of, and wait for the next one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from vox_mesh.store.rows import Rows


@dataclass(frozen=True, slots=True)
class Change:
    """A watched query's current answer. Not `in_touch`: the database is unreachable, it may be outdated."""

    rows: Rows
    in_touch: bool


class Changes:
    """A change counter. Waiters see only the latest count, so nothing is queued."""

    def __init__(self) -> None:
        self.count = 0
        self.watches = 0
        """The number of watches, which must notice within 5 s that the database is unreachable."""
        self._next = asyncio.Event()
        self._waiting = 0

    @property
    def is_awaited(self) -> bool:
        """Return whether anything waits for a change."""
        return self._waiting > 0

    def bump(self) -> None:
        """Raise the count, because something was committed or may have been."""
        self.count += 1
        if self._waiting:
            event, self._next = self._next, asyncio.Event()
            event.set()

    async def after(self, seen: int) -> int:
        """Wait until the count differs from `seen`, and return it."""
        self._waiting += 1
        try:
            while self.count == seen:
                await self._next.wait()
        finally:
            self._waiting -= 1
        return self.count
