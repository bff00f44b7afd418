"""An event loop in its own thread, and blocking calls into it."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from vox_mesh.errors import StoreClosed, WrongThread
from vox_mesh.model.base.durations import Duration, seconds_or_none
from vox_mesh.runtime import loop

T = TypeVar("T")

_Ended = tuple[Any, BaseException | None]

_LOOK_S: Final = 0.5
"""How long a thread waits without looking for Ctrl-C: a signal just before it waits does not wake it."""


class _Limits(threading.local):
    """The deadline of a thread's calls, if any."""

    until: float | None = None


_limits: Final = _Limits()


def _never() -> bool:
    return False


@contextmanager
def timeout(seconds: Duration | None) -> Iterator[None]:
    """Limit the total time of all calls in the block; the running one is cancelled with `TimeoutError`."""
    outer = _limits.until
    limit_s = seconds_or_none("seconds", seconds)
    own = None if limit_s is None else time.monotonic() + limit_s
    _limits.until = min((each for each in (outer, own) if each is not None), default=None)
    try:
        yield
    finally:
        _limits.until = outer


class Call:
    """A coroutine that runs in the loop while a thread waits.

    Ctrl-C may come at any point of the wait. The thread and the loop share no lock: an interrupted thread
    could keep one that the loop needs to end the call, as those of `concurrent.futures` are.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[], Awaitable[Any]], unended: set[Call]
    ) -> None:
        """It stays among the `unended` ones until it has ended."""
        self._loop = loop
        self._work = work
        self._unended = unended
        self._task: asyncio.Task[_Ended] | None = None
        self._ended: _Ended | None = None
        self._woken: SimpleQueue[None] = SimpleQueue()
        self.thread_id = threading.get_ident()
        unended.add(self)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._ended is not None

    def begin(self) -> None:
        """Start the coroutine in the loop, without waiting."""
        try:
            self._loop.call_soon_threadsafe(self._start)
        except RuntimeError:  # the loop is closed
            self.abandon()

    def _start(self) -> None:
        self._task = self._loop.create_task(self._run(), name="vox-mesh-call")
        self._task.add_done_callback(self._settle)

    async def wait_in_loop(self) -> None:
        """Wait until it has ended, in a task of the loop that began later."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _run(self) -> _Ended:
        try:
            return await self._work(), None
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # raised in the caller: it must not end the loop
            return None, error

    def _settle(self, task: asyncio.Task[_Ended]) -> None:
        self._task = None  # it is deleted in the loop: Ctrl-C in a weak reference's callback would be lost
        if task.cancelled():
            self.abandon()
        else:
            self._end(task.result())

    def abandon(self) -> None:
        """Mark the call as never done."""
        self._end((None, asyncio.CancelledError()))

    def _end(self, ended: _Ended) -> None:
        if self._ended is None:
            self._ended = ended
            self._unended.discard(self)
            self.wake()

    def wake(self) -> None:
        """Have a waiting thread look whether it still waits for something."""
        self._woken.put(None)

    def cancel(self) -> None:
        """Cancel the call, and wait until it has ended."""
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:  # the loop is closed, so every call has ended
            self.abandon()
        self._wait_until(_never, None)

    def _cancel(self) -> None:
        if self._task is None:
            self.abandon()  # interrupted before it started
        else:
            self._task.cancel()

    def run(self, is_enough: Callable[[], bool] = _never, *, limited: bool = True) -> None:
        """Start the call and wait as `wait_for` does; Ctrl-C cancels it from the start."""
        try:
            self.begin()
            self.wait_for(is_enough, limited=limited)
        except BaseException:
            self.cancel()
            raise

    def wait_for(self, is_enough: Callable[[], bool] = _never, *, limited: bool = True) -> None:
        """Wait until the call ends or it is enough; Ctrl-C and the thread's timeout cancel it.

        Cleanup is not `limited`: it runs after the timeout.
        """
        until = _limits.until if limited else None
        try:
            is_done = self._wait_until(is_enough, until)
        except BaseException:
            self.cancel()
            raise
        if not is_done:
            self.cancel()
            if isinstance(self._outcome[1], asyncio.CancelledError):
                raise TimeoutError("call timed out")

    def _wait_until(self, is_enough: Callable[[], bool], until: float | None) -> bool:
        """Return whether it ended, or was enough, before the time was up."""
        while not (self.is_over or is_enough()):
            left_s = _LOOK_S if until is None else min(_LOOK_S, until - time.monotonic())
            if left_s <= 0:
                return False
            with suppress(Empty):
                self._woken.get(timeout=left_s)
        return True

    @property
    def _outcome(self) -> _Ended:
        assert self._ended is not None, "asked only once it has ended"
        return self._ended

    @property
    def error(self) -> BaseException | None:
        """The exception of the call, if it has failed."""
        error = None if self._ended is None else self._ended[1]
        if isinstance(error, asyncio.CancelledError):
            return StoreClosed("mesh was closed during the call")
        return error

    def result(self) -> Any:
        """Return the result of the ended call, or raise its exception with its traceback."""
        error = self.error
        if error is None:
            return self._outcome[0]
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame: a cycle otherwise


class _BlockingStream:
    """An async iterator for blocking calls; it runs in the loop."""

    def __init__(self, items: Any) -> None:
        self._items = items
        self._asking: asyncio.Task[Any] | None = None
        self.is_dropped = False

    async def next(self) -> Any:
        self._asking = asyncio.current_task()
        try:
            return await self._items.__anext__()
        finally:
            self._asking = None

    async def close(self) -> None:
        """Close the iterator; Ctrl-C may have left a call for the next item running."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait((self._asking,))
        if self.is_dropped and hasattr(self._items, "aclose_dropped"):
            await self._items.aclose_dropped()
        elif hasattr(self._items, "aclose"):
            await self._items.aclose()

    async def close_unheard(self) -> None:
        """Close the iterator though no caller waits for that: report an error as asyncio reports its own."""
        self.is_dropped = True
        try:
            await self.close()
        except Exception as error:
            report = {"message": f"{type(self._items).__name__} not closed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(report)


async def _run_after(closing: list[Call], work: Callable[[], Awaitable[T]]) -> T:
    for each in closing:
        await each.wait_in_loop()
    return await work()


class Iteration(Generator[Any, None, None]):
    """An async iterator as a generator, which closes it.

    One that is dropped without being closed, as by `break`, can't raise: it is closed in another way, if the
    iterator has one, so that the error can be raised elsewhere. Nor can it wait: a garbage
    collection may drop it anywhere, as under a lock that the loop needs. The thread's next call waits.
    """

    def __init__(self, loop: LoopThread, items: Any, node: object, wrap: Callable[[Any], Any]) -> None:
        self._stream = _BlockingStream(items)
        # Must not refer to this object, which would not be deleted when it is dropped.
        self._steps = loop.iterate(self._stream, node, wrap)

    def send(self, value: None, /) -> Any:
        """Return the next item."""
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error where the iterator stands."""
        return self._steps.throw(*error)

    def close(self) -> None:
        """Close the iterator, and raise what that raises."""
        self._steps.close()

    def __del__(self) -> None:
        self._stream.is_dropped = True
        self._steps.close()


class LoopThread:
    """Runs an event loop in a thread, for the calls of other threads."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._is_open = False
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        # A daemon: a script that does not close the mesh must still exit.
        self._thread = threading.Thread(target=self._serve, name="vox-mesh-sync", daemon=True)
        self._blocks = threading.local()
        self._calls: set[Call] = set()
        self._closing: set[Call] = set()
        """The ends of dropped iterators."""

    def __enter__(self) -> LoopThread:
        """Start the thread."""
        self._thread.start()
        self._loop = self._started.result()
        self._is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        """End all running calls, and the thread."""
        self._is_open = False
        if self._has_thread:
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join()
            for call in list(self._calls):  # calls made after the loop ended and before it was closed
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
        """Whether the loop runs, and in this process."""
        return self._is_open and self._has_thread

    @property
    def _has_thread(self) -> bool:
        """Whether the thread is there: a fork has none, and it is stopped when the interpreter ends."""
        return self._process == os.getpid() and not sys.is_finalizing()

    @property
    def is_usable(self) -> bool:
        """Whether this thread may wait for a call."""
        return self.is_ours and threading.current_thread() is not self._thread

    def run(self, work: Callable[[], Awaitable[T]], node: object) -> T:
        """Run a call to this node in the loop and return its result."""
        call = self.call(work, node)
        call.run()
        result: T = call.result()
        return result

    def call(self, work: Callable[[], Awaitable[Any]], node: object) -> Call:
        """Return a call to this node that has not started."""
        self._refuse_unless_usable()
        for block in tuple(self.blocks):
            block.refuse_if_lost(node)
        closing = self._closing_here
        return self._call(partial(_run_after, closing, work) if closing else work)

    def _call(self, work: Callable[[], Awaitable[Any]]) -> Call:
        return Call(self._loop, work, self._calls)  # the end of the loop must know it before it starts

    def soon(self, what: Callable[[], object]) -> None:
        """Schedule a function in the loop, after the ends of what this thread has dropped."""

        async def run() -> None:
            what()

        if closing := self._closing_here:
            self._call(partial(_run_after, closing, run)).begin()
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(what)

    @property
    def _closing_here(self) -> list[Call]:
        """The running ends of iterators that were dropped in this thread."""
        thread_id = threading.get_ident()
        return [each for each in list(self._closing) if each.thread_id == thread_id]

    @property
    def blocks(self) -> list[Any]:
        """The `with` blocks of this thread, outermost first."""
        if not hasattr(self._blocks, "open"):
            self._blocks.open = []
        found: list[Any] = self._blocks.open
        return found

    def iterate(
        self, stream: _BlockingStream, node: object, wrap: Callable[[Any], Any]
    ) -> Generator[Any, None, None]:
        """Yield the wrapped items of a stream, and close it."""
        try:
            while True:
                try:
                    item = self.run(stream.next, node)
                except StopAsyncIteration:
                    return
                yield wrap(item)
        finally:
            self._finish(stream)

    def _finish(self, stream: _BlockingStream) -> None:
        """Close a stream; without waiting if it was dropped, or this is the thread of the loop."""
        if not self.is_ours:
            return
        if stream.is_dropped or not self.is_usable:
            Call(self._loop, stream.close_unheard, self._closing).begin()
            return
        call = self._call(stream.close)
        call.run(limited=False)
        call.result()

    def _refuse_unless_usable(self) -> None:
        if self._process != os.getpid():
            raise StoreClosed(
                f"mesh was opened by process {self._process}: a fork can't use it",
                hint="open a mesh in this process",
            )
        if not self._is_open:
            raise StoreClosed("mesh is closed", hint="use it inside `with Mesh.open(...) as mesh:`")
        if threading.current_thread() is self._thread:
            raise WrongThread(
                "blocking call in the thread of the event loop: it would stop the loop",
                hint="call it from a plain function, which gets its own thread, or use the async mesh",
            )
