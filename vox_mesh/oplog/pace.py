"""The pace of long work on the event loop: in small pieces, with a turn for everyone else in between."""

from __future__ import annotations

import asyncio
from typing import Final

_PIECE: Final = 32
"""How many entries are dealt with in one piece; a signature takes some 0.1 ms to check."""

_BYTES: Final = 4_096
"""How many bytes weigh as much as an entry."""


class Pace:
    """Counts what was done since the others had their turn."""

    def __init__(self) -> None:
        self._done = 0

    async def keep(self, payload: object) -> None:
        """An entry with this payload, of any type, was dealt with: give way if it is time to."""
        self._done += 1 + (len(payload) // _BYTES if isinstance(payload, str | bytes) else 0)
        if self._done >= _PIECE:
            self._done = 0
            await asyncio.sleep(0)
