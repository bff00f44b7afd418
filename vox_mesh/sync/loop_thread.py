"""An event loop in a thread of its own, and calls into it that block."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar
from weakref import WeakSet

from vox_mesh.errors import StoreClosed, WrongThread
from vox_mesh.runtime import loop

T = TypeVar("T")

_Ended = tuple[Any, BaseException | None]


class _Limits(threading.local):
    """Until when the calls of a thread may take, if there is a limit."""

    until: float | None = None


_limits: Final = _Limits()


@contextmanager
def timeout(seconds: float | None) -> Iterator[None]:
    """For the calls of the block, all together: what is under way then is cancelled, with `TimeoutError`."""
    outer = _limits.until
    own = None if seconds is None else time.monotonic() + seconds
    _limits.until = min((each for each in (outer, own) if each is not None), default=None)
    try:
        yield
    finally:
        _limits.until = outer


class Call:
    """A coroutine that runs in the loop while a thread waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Awaitable[Any]]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[_Ended] | None = None
        self.ended: Future[_Ended] = Future()

    def begin(self) -> None:
        """Have the loop begin with it, without waiting."""
        try:
            self._loop.call_soon_threadsafe(self._start)
        except RuntimeError:  # the loop is closed
            self.abandon()

    def _start(self) -> None:
        self._task = self._loop.create_task(self._run(), name="vox-mesh-call")
        self._task.add_done_callback(self._settle)

    async def _run(self) -> _Ended:
        try:
            return await self._work(), None
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # it is the caller's: the loop must not end by it
            return None, error

    def _settle(self, task: asyncio.Task[_Ended]) -> None:
        if task.cancelled():
            self.abandon()
        else:
            self.ended.set_result(task.result())

    def abandon(self) -> None:
        """It is not done, and never will be."""
        if not self.ended.done():
            self.ended.set_result((None, asyncio.CancelledError()))

    def cancel(self) -> None:
        """Cancel it, and wait until it has ended."""
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:  # the loop is closed, and with it every call has ended
            self.abandon()
        wait((self.ended,))

    def _cancel(self) -> None:
        if self._task is None:
            self.abandon()  # it was interrupted before it began
        else:
            self._task.cancel()

    def run(self, *events: Future[Any], limited: bool = True) -> None:
        """Have the loop begin with it, and wait as `wait_for` does; Ctrl-C cancels it from the beginning."""
        try:
            self.begin()
            self.wait_for(*events, limited=limited)
        except BaseException:
            self.cancel()
            raise

    def wait_for(self, *events: Future[Any], limited: bool = True) -> None:
        """Wait for its end, or for one of the events; Ctrl-C, and the limit of the thread, cancel it.

        What tidies up is not `limited`: it is what follows when the time is over.
        """
        until = _limits.until if limited else None
        left = None if until is None else max(0.0, until - time.monotonic())
        try:
            done, _ = wait((self.ended, *events), timeout=left, return_when="FIRST_COMPLETED")
        except BaseException:
            self.cancel()
            raise
        if not done:
            self.cancel()
            if isinstance(self.ended.result()[1], asyncio.CancelledError):
                raise TimeoutError("the time for this is over")

    @property
    def error(self) -> BaseException | None:
        """What it has ended in, if it has ended badly."""
        error = self.ended.result()[1] if self.ended.done() else None
        if isinstance(error, asyncio.CancelledError):
            return StoreClosed("the mesh was closed while this was under way")
        return error

    def result(self) -> Any:
        """What it returned, when it has ended; what it raised is raised, with the way it has come."""
        error = self.error
        if error is None:
            return self.ended.result()[0]
        try:
            raise error
        finally:
            del error  # it knows this frame, which must not know it


class _BlockingStream:
    """An async iterator, as calls of a thread see it; all of it runs in the loop."""

    def __init__(self, items: Any) -> None:
        self._items = items
        self._asking: asyncio.Task[Any] | None = None

    async def next(self) -> Any:
        self._asking = asyncio.current_task()
        try:
            return await self._items.__anext__()
        finally:
            self._asking = None

    async def close(self) -> None:
        """Close it; Ctrl-C may have left a call for the next item under way."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait((self._asking,))
        if hasattr(self._items, "aclose"):
            await self._items.aclose()


class LoopThread:
    """Runs an event loop in the background, for the calls of other threads."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._is_open = False
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        # A daemon: a script that forgets to close the mesh must end all the same.
        self._thread = threading.Thread(target=self._serve, name="vox-mesh-sync", daemon=True)
        self._blocks = threading.local()
        self._calls: WeakSet[Call] = WeakSet()

    def __enter__(self) -> LoopThread:
        """Begin."""
        self._thread.start()
        self._loop = self._started.result()
        self._is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        """End what is still under way, and the thread."""
        self._is_open = False
        if self._process == os.getpid():
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join()
            for call in list(self._calls):  # those that came when the loop had ended, but was not closed
                call.abandon()

    def _serve(self) -> None:
        async def serve() -> None:
            self._ending = asyncio.Event()
            self._started.set_result(asyncio.get_running_loop())
            await self._ending.wait()

        loop.run(serve())

    # --- calls -----------------------------------------------------------------------------------

    @property
    def is_ours(self) -> bool:
        """Whether it runs, and in this process."""
        return self._is_open and self._process == os.getpid()

    @property
    def is_usable(self) -> bool:
        """Whether this thread may wait for a call."""
        return self.is_ours and threading.current_thread() is not self._thread

    def run(self, work: Callable[[], Awaitable[T]], node: object) -> T:
        """Have the loop do it, and wait for what it comes to; it is a call to this node."""
        call = self.call(work, node)
        call.run()
        result: T = call.result()
        return result

    def call(self, work: Callable[[], Awaitable[Any]], node: object) -> Call:
        """A call to this node, which has not begun."""
        self._refuse_unless_usable()
        for block in tuple(self.blocks):
            block.refuse_if_lost(node)
        return self._call(work)

    def _call(self, work: Callable[[], Awaitable[Any]]) -> Call:
        call = Call(self._loop, work)
        self._calls.add(call)  # before it begins: whoever ends the loop must know of it
        return call

    def soon(self, what: Callable[[], object]) -> None:
        """Have the loop call this."""
        with suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(what)

    @property
    def blocks(self) -> list[Any]:
        """The `with` blocks that this thread is in, the outermost first."""
        if not hasattr(self._blocks, "open"):
            self._blocks.open = []
        found: list[Any] = self._blocks.open
        return found

    def iterate(self, items: Any, node: object) -> Generator[Any, None, None]:
        """An async generator as a generator; it is closed with it."""
        stream = _BlockingStream(items)
        try:
            while True:
                try:
                    item = self.run(stream.next, node)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self._finish(stream.close)

    def _finish(self, close: Callable[[], Awaitable[Any]]) -> None:
        """Close something; where nobody can wait for it, as in a garbage collection, without waiting."""
        if self.is_usable:
            call = self._call(close)
            call.run(limited=False)
            call.result()
        elif self.is_ours:
            self._call(close).begin()

    def _refuse_unless_usable(self) -> None:
        if self._process != os.getpid():
            raise StoreClosed(
                f"this mesh was opened by process {self._process}, and a fork has no part in it",
                hint="open one in this process",
            )
        if not self._is_open:
            raise StoreClosed("the mesh is closed", hint="use it inside of `with Mesh.open(...) as mesh:`")
        if threading.current_thread() is self._thread:
            raise WrongThread(
                "this is the thread of the mesh's own event loop, and a call that blocks would stop it",
                hint="call it from a plain function, which gets a thread of its own; or use the async mesh",
            )
