"""An event loop on simulated time: a random draw picks the next step, and time jumps to the next timer.

Everything in it belongs to a simulated process, which can be paused and killed. Within a process, callbacks
run in the order in which they were scheduled, as asyncio promises.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, Self, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary, WeakSet

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Failed = Callable[["SimulatedProcess", BaseException], None]

_STEP_S: Final = 1e-6
"""The time a step takes: a task that never waits must not stop the clock for the others."""

_LOOK_STEPS: Final = 4_096
_CLOSINGS: Final = 50
"""How often a coroutine may ignore that it is closed."""


class Stuck(Exception):
    """Nothing is left that could happen, or it takes too long."""


class SimulatedProcess:
    """A simulated process, with its own clock that may run too fast or too slow."""

    def __init__(self, name: str, *, rate: float = 1.0, ahead_s: float = 0.0) -> None:
        self.name = name
        self.ready: deque[asyncio.Handle] = deque()
        self.is_paused = False
        self.is_killed = False
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.fuse: tuple[int, Callable[[], None]] | None = None
        """After this many more steps of its own, this function is called."""
        self._rate = rate
        self._ahead_s = ahead_s
        self.context: Final = copy_context()
        self.context.run(_process.set, self)

    def shows(self, at: float) -> float:
        """Return the reading of its clock at a moment."""
        return at * self._rate + self._ahead_s

    def moment(self, shown: float) -> float:
        """Return the moment at which its clock has this reading."""
        return (shown - self._ahead_s) / self._rate


_process: ContextVar[SimulatedProcess] = ContextVar("proof_house")


class _Task(asyncio.Task[T]):
    """A task that hashes by its number, so that sets of tasks have the same order in every run.

    The default hash is the address in memory, which differs from run to run.
    """

    number: int

    def __new__(cls, coro: Coroutine[Any, Any, T], *, loop: SimulatedLoop, **_: Any) -> Self:
        task = super().__new__(cls)
        task.number = next(loop.numbers)
        return task

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[T]):
    """A future that hashes by its number."""

    def __init__(self, *, loop: SimulatedLoop) -> None:
        self.number = next(loop.numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Run the steps of all processes, one after another."""

    def __init__(self, draw: Callable[[], float], watch: Callable[[], None]) -> None:
        self.now = 0.0
        """The simulated time, independent of the clocks of processes."""
        self.steps = 0
        self.failed: Failed = _raise
        """Called with every error that no task handled."""
        self._draw = draw
        self._watch = watch
        self._processes: dict[SimulatedProcess, None] = {}
        self._awake: list[SimulatedProcess] = []
        self._timers: list[tuple[float, int, asyncio.Handle, SimulatedProcess]] = []
        self.numbers = count()
        """Numbers of timers, tasks and futures, in the order of their creation."""
        self._main = self._current = SimulatedProcess("stage")
        self._abandoned: list[asyncio.Task[Any] | AsyncGenerator[Any, Any]] = []
        self._generators: WeakKeyDictionary[AsyncGenerator[Any, Any], SimulatedProcess] = WeakKeyDictionary()
        self._is_running = self._is_closed = False

    # --- processes -------------------------------------------------------------------------------

    def begin(self, process: SimulatedProcess, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a coroutine in a process."""
        return self.create_task(coro, name=process.name, context=process.context.copy())

    def pause(self, process: SimulatedProcess) -> None:
        """Pause a process; its pending callbacks run when it is resumed."""
        if not process.is_paused:
            process.is_paused = True
            if process.ready:
                self._awake.remove(process)

    def resume(self, process: SimulatedProcess) -> None:
        """Resume a process."""
        if process.is_paused and not process.is_killed:
            process.is_paused = False
            if process.ready:
                self._awake.append(process)

    def kill(self, process: SimulatedProcess) -> None:
        """Kill a process: none of its code runs any more, not even `finally` blocks."""
        if process.is_killed:
            return
        if process.ready and not process.is_paused:
            self._awake.remove(process)
        process.is_killed = True
        # Kept, because a task that is garbage-collected while it waits would run once more, to its end.
        self._abandoned += process.tasks
        process.ready.clear()
        process.fuse = None

    def send(
        self, delay: float, process: SimulatedProcess, callback: Callable[[*Ts], object], *args: *Ts
    ) -> None:
        """Call a function in a process after a delay of simulated time."""
        if not (process.is_killed or self._is_closed):
            handle = asyncio.Handle(callback, args, self, process.context)
            heappush(self._timers, (self.now + delay, next(self.numbers), handle, process))

    def passing(self) -> float:
        """Return a time later than all returned before."""
        self.now += _STEP_S
        return self.now

    @property
    def running(self) -> SimulatedProcess:
        """The process whose step is running."""
        return self._current

    # --- running ---------------------------------------------------------------------------------

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Run until the future is done."""
        task = self.begin(self._main, _awaited(future))
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._first, self._forgotten)
        asyncio._set_running_loop(self)  # noqa: SLF001 - meant for event loops
        self._is_running = True
        try:
            while not task.done():
                self._step()
        finally:
            self._is_running = False
            asyncio._set_running_loop(None)  # noqa: SLF001
            sys.set_asyncgen_hooks(*hooks)
        return task.result()

    def _step(self) -> None:
        timers, awake = self._timers, self._awake
        while timers and (timers[0][0] <= self.now or not awake):
            at, _, timer, process = heappop(timers)
            if timer.cancelled() or process.is_killed:
                continue
            self.now = max(self.now, at)
            self._add(process, timer)
        if not awake:
            raise Stuck("nothing is left that could happen")
        place = int(self._draw() * len(awake)) if len(awake) > 1 else 0
        process = awake[place]
        handle = process.ready.popleft()
        if not process.ready:
            del awake[place]
        self.now += _STEP_S
        self.steps += 1
        if self.steps % _LOOK_STEPS == 0:
            self._watch()
        if not handle.cancelled():
            self._current = process
            handle._run()  # noqa: SLF001 - meant for event loops
            self._current = self._main
            if process.fuse is not None:
                self._count_down(process, *process.fuse)

    def _count_down(self, process: SimulatedProcess, left: int, end: Callable[[], None]) -> None:
        process.fuse = (left - 1, end) if left else None
        if not left:
            end()

    def _add(self, process: SimulatedProcess, handle: asyncio.Handle) -> None:
        if not process.ready and not process.is_paused:
            self._awake.append(process)
        process.ready.append(handle)

    def _process_of(self, context: Context | None) -> SimulatedProcess:
        if context is None:
            return self._current
        if _process not in context:  # a fresh context: tasks started in a process stay in it
            for variable, value in self._current.context.items():
                if variable not in context:
                    context.run(variable.set, value)
        return context[_process]

    # --- the interface of asyncio ----------------------------------------------------------------

    def time(self) -> float:
        """Return the reading of the running process's clock."""
        return self._current.shows(self.now)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call a function in its process, after all pending callbacks of it."""
        process = self._process_of(context)
        handle = asyncio.Handle(callback, args, self, context)
        if not (process.is_killed or self._is_closed):
            self._add(process, handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call a function in its process after a delay."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call a function in its process when the clock of the caller has this reading."""
        process = self._process_of(context)
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not (process.is_killed or self._is_closed):
            heappush(self._timers, (self._current.moment(when), next(self.numbers), timer, process))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is skipped when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return _Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Start a task: in the process of its context, or in the running one."""
        process = self._process_of(context)
        task = _Task(coro, loop=self, name=name, context=context)
        process.tasks.add(task)
        self._processes[process] = None
        if process.is_killed or self._is_closed:
            self._abandoned.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Call the function in this thread, a little later: there are no other threads."""
        future = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_soon(run)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an unhandled error."""
        if not self._is_closed:
            self.failed(self._current, context.get("exception") or Stuck(context["message"]))

    def get_debug(self) -> bool:
        """Return False."""
        return False

    def is_running(self) -> bool:
        """Return whether the loop runs."""
        return self._is_running

    def is_closed(self) -> bool:
        """Return whether the loop is closed."""
        return self._is_closed

    # --- the end ---------------------------------------------------------------------------------

    def _first(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators[generator] = self._current

    def _forgotten(self, generator: AsyncGenerator[Any, Any]) -> None:
        process = self._generators.get(generator, self._main)
        if process.is_killed or self._is_closed:
            self._abandoned.append(generator)
        else:
            self.begin(process, _closed(generator))

    def close(self) -> None:
        """Close the loop, and drop everything that waits."""
        self._is_closed = True
        for process in self._processes:
            self.kill(process)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._first, self._forgotten)
        asyncio._set_running_loop(self)  # noqa: SLF001 - meant for event loops
        try:
            while self._abandoned:
                _finalize(self._abandoned.pop())
        finally:
            asyncio._set_running_loop(None)  # noqa: SLF001
            sys.set_asyncgen_hooks(*hooks)
        self._timers.clear()


def new_loop(draw: Callable[[], float], watch: Callable[[], None] = lambda: None) -> SimulatedLoop:
    """Return a loop whose steps are picked by `draw`; `watch` is called from time to time, and may raise."""
    return SimulatedLoop(draw, watch)  # type: ignore[abstract]  # the missing methods would reach the real world


def _raise(_process: SimulatedProcess, error: BaseException) -> None:
    raise error


async def _awaited(future: Generator[Any, None, T] | Awaitable[T]) -> T:
    return await future  # type: ignore[misc,no-any-return]


async def _closed(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()


def _finalize(dead: asyncio.Task[Any] | AsyncGenerator[Any, Any]) -> None:
    """Close an abandoned task now, when that has no effect any more."""
    if not isinstance(dead, asyncio.Task):
        return
    dead._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it is pending on purpose
    for _ in range(_CLOSINGS):
        with suppress(Exception, GeneratorExit, asyncio.CancelledError):
            _close(dead.get_coro())
            return


def _close(coroutine: Any) -> None:
    """Close a coroutine and, if it has not started, those passed to it: nothing else would await them."""
    if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        for value in inspect.getcoroutinelocals(coroutine).values():
            if inspect.iscoroutine(value):
                _close(value)
    coroutine.close()
