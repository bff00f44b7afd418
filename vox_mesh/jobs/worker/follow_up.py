"""Follow-up looks: whether a worker looks for jobs at once when one of its attempts has ended.

The end of a job may release others, as in a chain. The worker that ended it need not wait until the pause
between two looks is over.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

_MAX_SKIPPED: Final = 63


class FollowUp:
    """Asks for a look after an attempt has ended, less often while such looks find nothing."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._penalty = 0
        self._skips = 0

    def ask(self) -> None:
        """Ask for a look, because an attempt has ended; some are skipped after looks that found nothing."""
        if self._skips:
            self._skips -= 1
        else:
            self._asked.set()

    def take(self) -> bool:
        """Return whether a look was asked for since the last call."""
        is_asked = self._asked.is_set()
        self._asked.clear()
        return is_asked

    def learn(self, *, has_found: bool) -> None:
        """Take in whether a look that was asked for has claimed jobs."""
        self._penalty = 0 if has_found else min(2 * self._penalty + 1, _MAX_SKIPPED)
        self._skips = self._penalty

    async def wait(self, timeout_s: float) -> None:
        """Wait until a look is asked for, or for `timeout_s` seconds."""
        if timeout_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._asked.wait()
