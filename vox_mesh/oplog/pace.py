"""Pace long work on the event loop: in small pieces, yielding in between."""

from __future__ import annotations

import asyncio
from typing import Final

_ENTRIES_PER_PIECE: Final = 32
"""How many entries are processed before yielding; checking a signature takes about 0.1 ms."""

_BYTES_PER_ENTRY: Final = 4_096
"""How many payload bytes count as one entry."""


class Pace:
    """Count the work done since the last yield."""

    def __init__(self) -> None:
        self._done = 0

    async def keep(self, payload: object) -> None:
        """Count an entry with this payload, of any type, and yield to the event loop if it is time to."""
        self._done += 1 + (len(payload) // _BYTES_PER_ENTRY if isinstance(payload, str | bytes) else 0)
        if self._done >= _ENTRIES_PER_PIECE:
            self._done = 0
            await asyncio.sleep(0)
