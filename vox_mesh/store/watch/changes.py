"""Changes: a count that rises with every commit that this process gets to know of."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from vox_mesh.store.rows import Rows


@dataclass(frozen=True, slots=True)
class Change:
    """A watched query's answer now. Not `in_touch`: the database can't be reached, and it may be outdated."""

    rows: Rows
    in_touch: bool


class Changes:
    """Whoever waits sees the latest count, however many commits there were: there is nothing to queue."""

    def __init__(self) -> None:
        self.count = 0
        self.watches = 0
        """How many are to know within 5 s when the database is away."""
        self._next = asyncio.Event()
        self._waiting = 0

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits."""
        return self._waiting > 0

    def bump(self) -> None:
        """Something was committed, or may have been."""
        self.count += 1
        if self._waiting:
            event, self._next = self._next, asyncio.Event()
            event.set()

    async def after(self, seen: int) -> int:
        """Wait until the count is another than `seen`; the count."""
        self._waiting += 1
        try:
            while self.count == seen:
                await self._next.wait()
        finally:
            self._waiting -= 1
        return self.count
