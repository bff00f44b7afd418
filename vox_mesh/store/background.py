"""Keep background tasks running: count and log their unexpected exceptions, and restart them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final

_log = logging.getLogger(__name__)

_MIN_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 30.0
_STABLE_RUN_S: Final = 60.0
"""After a run of this length, the next pause is short again."""

_TRACEBACK_INTERVAL_S: Final = 60.0


class BackgroundFaults:
    """Counts the unexpected exceptions of background tasks.

    Each combination of task and exception type is logged, with its traceback, at most once a minute.
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
        """Count a fault, and log it unless one of its kind was logged within the last minute."""
        self.counts[task] += 1
        self.latest[task] = f"{type(error).__name__}: {error}"
        kind, now = (task, type(error)), self._monotonic()
        if now - self._logged_at.get(kind, -_TRACEBACK_INTERVAL_S) >= _TRACEBACK_INTERVAL_S:
            self._logged_at[kind] = now
            _log.error("background task failed and goes on: task=%s", task, exc_info=error)

    async def absorb(self, task: str, work: Awaitable[object]) -> None:
        """Await something that runs once, and note its fault if it fails."""
        try:
            await work
        except Exception as error:
            self.note(task, error)

    async def keep_running(
        self,
        task: str,
        run: Callable[[], Awaitable[None]],
        *,
        fatal: tuple[type[Exception], ...] = (),
    ) -> None:
        """Run until it returns or is cancelled; after a fault, restart it with increasing delays.

        Raises:
            Exception: One of `fatal`, after which a restart is pointless.
        """
        pause_s = _MIN_PAUSE_S
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
            if self._monotonic() - began > _STABLE_RUN_S:
                pause_s = _MIN_PAUSE_S
            await self._sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)


class BackgroundTasks:
    """Short tasks of one service: their faults are absorbed, and its end waits for them."""

    def __init__(self, name: str, faults: BackgroundFaults) -> None:
        self._name = name
        self._faults = faults
        self.running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, object]) -> asyncio.Task[None]:
        """Run something once, in a task of its own."""
        name = f"vox-mesh-{self._name}"
        task = asyncio.create_task(self._faults.absorb(self._name, work), name=name)
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        task.add_done_callback(lambda _: work.close())  # a task cancelled at once has never started it
        return task

    async def wait(self) -> None:
        """Wait for the tasks that are running now."""
        await asyncio.gather(*self.running, return_exceptions=True)


RunInBackground = Callable[[Coroutine[None, None, object]], asyncio.Task[None]]
"""Starts something that runs once, and returns its task."""


def is_cancelled() -> bool:
    """Return whether the current task itself was cancelled, not only a part of its work."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def cancel_and_wait(task: asyncio.Task[None]) -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
