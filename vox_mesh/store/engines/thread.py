"""One thread that does one thing after another, so that the event loop does not wait for a disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class SerialThread:
    """Runs what it is given in order, and hands the results to the loop that asked."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._under_way: asyncio.Future[Any] | None = None
        # A daemon: a job stuck in the kernel must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Have `work` run in the thread. Cancelled before its turn came, it is not run at all."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((work, future))
        return future

    @property
    def is_given_up(self) -> bool:
        """For the work itself to ask: whether whoever wanted it has been cancelled meanwhile."""
        return self._under_way is not None and self._under_way.cancelled()

    def finish(self) -> None:
        """Take no more: end when what was given is done."""
        self._jobs.put(None)

    async def stop(self, timeout: float = 5.0) -> bool:
        """Finish what was given, then end; wait so long at the most. Whether it has ended."""
        self.finish()
        await asyncio.to_thread(self._thread.join, timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, future = job
            if future.cancelled():
                continue
            self._under_way = future
            try:
                result, error = work(), None
            except BaseException as raised:  # the thread is not the process: it has nothing else to end
                result, error = None, raised
            # The loop may be gone when a process ends in a hurry; then nobody waits for the result.
            try:
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:
                return


class HeadStart:
    """Has the loop stand still for a moment, until the thread has come to what needs no Python.

    Only one thread runs Python at a time, and one that asks for it waits up to 5 ms for another that goes on.
    The writing thread asks between any two statements. If the loop has much to do, it would wait at the first
    of them until all that is done, and then the loop for it; with a head start they work at the same time.
    """

    def __init__(self) -> None:
        self._ahead = threading.Lock()
        self._ahead.acquire()

    def give(self, seconds: float) -> bool:
        """In the loop: stand still until the thread is `off`, but no longer than this; whether it is."""
        return self._ahead.acquire(timeout=seconds)

    def off(self) -> None:
        """In the thread, once or more: it needs no Python for a while, or waits for others, or has ended."""
        if self._ahead.locked():
            self._ahead.release()


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


async def to_the_end(doing: asyncio.Future[T]) -> T:
    """Wait for what must not be left half done, however often we are cancelled meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    while not doing.done():
        try:
            await asyncio.wait([doing])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        doing.exception()  # nobody is left to be told of it
        raise cancelled
    return doing.result()
