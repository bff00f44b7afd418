"""An event loop without a wall clock: which step comes next is drawn, and time jumps to the next timer.

Whatever runs in it belongs to a house, which stands for a process: it can be paused, and razed like a process
that is killed. Within a house things happen in the order in which they were begun, as asyncio promises.
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
"""What a step takes: whoever never waits does not stop the clock for the others."""

_LOOK_STEPS: Final = 4_096
_CLOSINGS: Final = 50
"""So often a coroutine may go on waiting when it is to end."""


class Stuck(Exception):
    """Nothing is left that could ever happen, or it takes too long."""


class SimulatedProcess:
    """A simulated process, with a clock of its own that may go too fast or too slow."""

    def __init__(self, name: str, *, rate: float = 1.0, ahead_s: float = 0.0) -> None:
        self.name = name
        self.ready: deque[asyncio.Handle] = deque()
        self.is_paused = False
        self.is_killed = False
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.fuse: tuple[int, Callable[[], None]] | None = None
        """After so many more steps of its own, this is done to it."""
        self._rate = rate
        self._ahead_s = ahead_s
        self.context: Final = copy_context()
        self.context.run(_process.set, self)

    def shows(self, at: float) -> float:
        """What its clock shows at a moment."""
        return at * self._rate + self._ahead_s

    def moment(self, shown: float) -> float:
        """When its clock shows this."""
        return (shown - self._ahead_s) / self._rate


_process: ContextVar[SimulatedProcess] = ContextVar("proof_house")


class _Task(asyncio.Task[T]):
    """A task whose place in a set, and so whose turn when all in it are cancelled, is that of its number.

    Others stand there by where they lie in memory, which is not the same each time.
    """

    number: int

    def __new__(cls, coro: Coroutine[Any, Any, T], *, loop: SimulatedLoop, **_: Any) -> Self:
        task = super().__new__(cls)
        task.number = next(loop.numbers)
        return task

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[T]):
    """The same of a future."""

    def __init__(self, *, loop: SimulatedLoop) -> None:
        self.number = next(loop.numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Runs the steps of all houses, one after another."""

    def __init__(self, draw: Callable[[], float], watch: Callable[[], None]) -> None:
        self.now = 0.0
        """The time of the world, by no clock of a house."""
        self.steps = 0
        self.failed: Failed = _raise
        """Is told of an error that nobody took."""
        self._draw = draw
        self._watch = watch
        self._processes: dict[SimulatedProcess, None] = {}
        self._awake: list[SimulatedProcess] = []
        self._timers: list[tuple[float, int, asyncio.Handle, SimulatedProcess]] = []
        self.numbers = count()
        """Of timers, tasks and futures, as they are made."""
        self._main = self._current = SimulatedProcess("stage")
        self._abandoned: list[asyncio.Task[Any] | AsyncGenerator[Any, Any]] = []
        self._generators: WeakKeyDictionary[AsyncGenerator[Any, Any], SimulatedProcess] = WeakKeyDictionary()
        self._is_running = self._is_closed = False

    # --- houses ----------------------------------------------------------------------------------

    def begin(self, process: SimulatedProcess, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin something in a house."""
        return self.create_task(coro, name=process.name, context=process.context.copy())

    def pause(self, process: SimulatedProcess) -> None:
        """Stop a house where it is; what was to happen in it happens when it is resumed."""
        if not process.is_paused:
            process.is_paused = True
            if process.ready:
                self._awake.remove(process)

    def resume(self, process: SimulatedProcess) -> None:
        """Let a house go on."""
        if process.is_paused and not process.is_killed:
            process.is_paused = False
            if process.ready:
                self._awake.append(process)

    def kill(self, process: SimulatedProcess) -> None:
        """End a house where it is: nothing of it runs ever again, not even what was to run in the end."""
        if process.is_killed:
            return
        if process.ready and not process.is_paused:
            self._awake.remove(process)
        process.is_killed = True
        # Kept, because whoever is forgotten while it waits would be run once more, to its end.
        self._abandoned += process.tasks
        process.ready.clear()
        process.fuse = None

    def send(
        self, delay: float, process: SimulatedProcess, callback: Callable[[*Ts], object], *args: *Ts
    ) -> None:
        """Have this called in a house when so much time has passed, by no clock of a house."""
        if not (process.is_killed or self._is_closed):
            handle = asyncio.Handle(callback, args, self, process.context)
            heappush(self._timers, (self.now + delay, next(self.numbers), handle, process))

    def passing(self) -> float:
        """A moment that is later than all that were told before."""
        self.now += _STEP_S
        return self.now

    @property
    def running(self) -> SimulatedProcess:
        """Whose step is being made."""
        return self._current

    # --- running ---------------------------------------------------------------------------------

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Run until it is done."""
        task = self.begin(self._main, _awaited(future))
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._first, self._forgotten)
        asyncio._set_running_loop(self)  # noqa: SLF001 - for those who make loops
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
            handle._run()  # noqa: SLF001 - so says whoever makes loops
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
        if _process not in context:  # one that begins from nothing: what is begun in a house stays there
            for variable, value in self._current.context.items():
                if variable not in context:
                    context.run(variable.set, value)
        return context[_process]

    # --- what asyncio asks of a loop -------------------------------------------------------------

    def time(self) -> float:
        """What the clock of the house shows that runs."""
        return self._current.shows(self.now)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Have this called in its house, after all that waits there."""
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
        """Have this called in its house when so much time has passed."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Have this called in its house when the clock of whoever says so shows this."""
        process = self._process_of(context)
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not (process.is_killed or self._is_closed):
            heappush(self._timers, (self._current.moment(when), next(self.numbers), timer, process))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return _Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Begin a task: in the house of its context, or here."""
        process = self._process_of(context)
        task = _Task(coro, loop=self, name=name, context=context)
        process.tasks.add(task)
        self._processes[process] = None
        if process.is_killed or self._is_closed:
            self._abandoned.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """There are no threads: it is called here, a little later."""
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
        """Somebody's error was taken by nobody."""
        if not self._is_closed:
            self.failed(self._current, context.get("exception") or Stuck(context["message"]))

    def get_debug(self) -> bool:
        """There is nothing more to see."""
        return False

    def is_running(self) -> bool:
        """Whether steps are being made."""
        return self._is_running

    def is_closed(self) -> bool:
        """Whether no more steps will be made."""
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
        """Make no more steps, and have all that waits forgotten without a word."""
        self._is_closed = True
        for process in self._processes:
            self.kill(process)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._first, self._forgotten)
        asyncio._set_running_loop(self)  # noqa: SLF001 - for those who make loops
        try:
            while self._abandoned:
                _finalize(self._abandoned.pop())
        finally:
            asyncio._set_running_loop(None)  # noqa: SLF001
            sys.set_asyncgen_hooks(*hooks)
        self._timers.clear()


def new_loop(draw: Callable[[], float], watch: Callable[[], None] = lambda: None) -> SimulatedLoop:
    """A loop whose steps are drawn by this chance; `watch` is called now and then, and may end it."""
    return SimulatedLoop(draw, watch)  # type: ignore[abstract]  # what it lacks would reach the outside


def _raise(_process: SimulatedProcess, error: BaseException) -> None:
    raise error


async def _awaited(future: Generator[Any, None, T] | Awaitable[T]) -> T:
    return await future  # type: ignore[misc,no-any-return]


async def _closed(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()


def _finalize(dead: asyncio.Task[Any] | AsyncGenerator[Any, Any]) -> None:
    """Have what was left in the middle go through its end now, when that has no effect any more."""
    if not isinstance(dead, asyncio.Task):
        return
    dead._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it is meant to be
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
