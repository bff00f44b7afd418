"""Run blocking work in a thread, one call after another, so that the event loop does not wait for a disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class SerialThread:
    """Runs calls in order, and returns their results to the event loop."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._given = self._ended = 0  # how many calls it was given, and how many of them it has ended
        self._current: asyncio.Future[Any] | None = None
        # A daemon: a call that hangs in the kernel must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` in the thread. If cancelled before it begins, it is not run at all."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._given += 1
        self._jobs.put((work, future))
        return future

    @property
    def is_busy(self) -> bool:
        """Return whether it has work; for the event loop."""
        return self._ended < self._given

    @property
    def is_given_up(self) -> bool:
        """Return whether the caller of the current work has been cancelled; for the work itself to check."""
        return self._current is not None and self._current.cancelled()

    def finish(self) -> None:
        """End the thread after the work queued so far."""
        self._jobs.put(None)

    async def stop(self, timeout: float = 5.0) -> bool:
        """Finish the queued work, waiting at most `timeout` seconds. Return whether the thread has ended."""
        self.finish()
        await asyncio.to_thread(self._thread.join, timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, future = job
            if future.cancelled():
                self._ended += 1
                continue
            self._current = future
            try:
                result, error = work(), None
            except BaseException as raised:  # it must reach the caller, not end the thread
                result, error = None, raised
            self._ended += 1
            # The loop may already be closed when a process ends; then nothing waits for the result.
            try:
                future.get_loop().call_soon_threadsafe(settle, future, result, error)
            except RuntimeError:
                return


class HeadStart:
    """Blocks the loop for a moment, until the writing thread has reached work that does not need the GIL.

    A thread that requests the GIL waits up to 5 ms for the thread that holds it. The writing thread requests
    it between any two statements. If the loop is busy, the thread would wait at its first statement until the
    loop is idle, and then the loop for the thread; with a head start they work in parallel.
    """

    def __init__(self) -> None:
        self._ahead = threading.Lock()
        self._ahead.acquire()

    def wait(self, seconds: float) -> bool:
        """Block the loop until the thread calls `release`, for at most `seconds`. Return whether it did."""
        return self._ahead.acquire(timeout=seconds)

    def release(self) -> None:
        """Let the loop continue. The thread calls it, once or more, when it does not need the GIL."""
        if self._ahead.locked():
            self._ahead.release()


def settle(future: asyncio.Future[Any], result: Any, error: BaseException | None = None) -> None:
    """Set the result or the error of a future, unless its caller was cancelled."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


async def to_the_end(doing: asyncio.Future[T]) -> T:
    """Wait until `doing` is done, even if the caller is cancelled meanwhile; then raise the cancellation."""
    cancelled: asyncio.CancelledError | None = None
    while not doing.done():
        try:
            await asyncio.wait([doing])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        doing.exception()  # mark it as retrieved
        raise cancelled
    return doing.result()
