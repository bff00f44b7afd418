"""Background tasks: an unexpected exception is counted and logged, and the task goes on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0
_SOUND_S: Final = 60.0
"""A run of this length was sound: the next pause is short again."""

_TRACEBACK_EVERY_S: Final = 60.0


class BackgroundFaults:
    """Counts the unexpected exceptions of background tasks.

    Each kind, a task and a type of exception, is logged with its traceback once a minute at most.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._logged_at: dict[tuple[str, type[BaseException]], float] = {}
        self.counts: Counter[str] = Counter()
        """The number of faults of each task."""
        self.latest: dict[str, str] = {}
        """The latest fault of each task."""

    def note(self, task: str, error: BaseException) -> None:
        """Count a fault, and log it unless its kind was logged within the last minute."""
        self.counts[task] += 1
        self.latest[task] = f"{type(error).__name__}: {error}"
        kind, now = (task, type(error)), self._monotonic()
        if now - self._logged_at.get(kind, -_TRACEBACK_EVERY_S) >= _TRACEBACK_EVERY_S:
            self._logged_at[kind] = now
            _log.error("background task failed and goes on: task=%s", task, exc_info=error)

    async def absorb(self, task: str, doing: Awaitable[object]) -> None:
        """Wait for something that is done once; a fault of it is noted."""
        try:
            await doing
        except Exception as error:
            self.note(task, error)

    async def keep_running(
        self,
        task: str,
        run: Callable[[], Awaitable[None]],
        *,
        fatal: tuple[type[Exception], ...] = (),
    ) -> None:
        """Run until it returns or is cancelled; after a fault, run again when a growing pause is over.

        Raises:
            Exception: One of `fatal`, after which running again is of no use.
        """
        pause_s = _FIRST_PAUSE_S
        while True:
            began = self._monotonic()
            try:
                return await run()
            except fatal:
                raise
            except asyncio.CancelledError as error:
                if is_cancelled():
                    raise
                self.note(task, error)
            except Exception as error:
                self.note(task, error)
            if self._monotonic() - began > _SOUND_S:
                pause_s = _FIRST_PAUSE_S
            await self._sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def is_cancelled() -> bool:
    """Return whether the current task was asked to end, not only a part of its work."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
