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
Failed = Callable[["House", BaseException], None]

_STEP_S: Final = 1e-6
"""What a step takes: whoever never waits does not stop the clock for the others."""

_LOOK_STEPS: Final = 4_096
_CLOSINGS: Final = 50
"""So often a coroutine may go on waiting when it is to end."""


class Stuck(Exception):
    """Nothing is left that could ever happen, or it takes too long."""


class House:
    """A simulated process, with a clock of its own that may go too fast or too slow."""

    def __init__(self, name: str, *, rate: float = 1.0, ahead_s: float = 0.0) -> None:
        self.name = name
        self.ready: deque[asyncio.Handle] = deque()
        self.is_paused = False
        self.is_razed = False
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.fuse: tuple[int, Callable[[], None]] | None = None
        """After so many more steps of its own, this is done to it."""
        self._rate = rate
        self._ahead_s = ahead_s
        self.context: Final = copy_context()
        self.context.run(_house.set, self)

    def shows(self, at: float) -> float:
        """What its clock shows at a moment."""
        return at * self._rate + self._ahead_s

    def moment(self, shown: float) -> float:
        """When its clock shows this."""
        return (shown - self._ahead_s) / self._rate


_house: ContextVar[House] = ContextVar("proof_house")


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

    def __init__(self, chance: Callable[[], float], watch: Callable[[], None]) -> None:
        self.now = 0.0
        """The time of the world, by no clock of a house."""
        self.steps = 0
        self.failed: Failed = _raise
        """Is told of an error that nobody took."""
        self._chance = chance
        self._watch = watch
        self._houses: dict[House, None] = {}
        self._awake: list[House] = []
        self._timers: list[tuple[float, int, asyncio.Handle, House]] = []
        self.numbers = count()
        """Of timers, tasks and futures, as they are made."""
        self._stage = self._current = House("stage")
        self._graves: list[asyncio.Task[Any] | AsyncGenerator[Any, Any]] = []
        self._generators: WeakKeyDictionary[AsyncGenerator[Any, Any], House] = WeakKeyDictionary()
        self._is_running = self._is_closed = False

    # --- houses ----------------------------------------------------------------------------------

    def begin(self, house: House, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin something in a house."""
        return self.create_task(coro, name=house.name, context=house.context.copy())

    def pause(self, house: House) -> None:
        """Stop a house where it is; what was to happen in it happens when it is resumed."""
        if not house.is_paused:
            house.is_paused = True
            if house.ready:
                self._awake.remove(house)

    def resume(self, house: House) -> None:
        """Let a house go on."""
        if house.is_paused and not house.is_razed:
            house.is_paused = False
            if house.ready:
                self._awake.append(house)

    def raze(self, house: House) -> None:
        """End a house where it is: nothing of it runs ever again, not even what was to run in the end."""
        if house.is_razed:
            return
        if house.ready and not house.is_paused:
            self._awake.remove(house)
        house.is_razed = True
        # Kept, because whoever is forgotten while it waits would be run once more, to its end.
        self._graves += house.tasks
        house.ready.clear()
        house.fuse = None

    def send(self, delay: float, house: House, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Have this called in a house when so much time has passed, by no clock of a house."""
        if not (house.is_razed or self._is_closed):
            handle = asyncio.Handle(callback, args, self, house.context)
            heappush(self._timers, (self.now + delay, next(self.numbers), handle, house))

    def passing(self) -> float:
        """A moment that is later than all that were told before."""
        self.now += _STEP_S
        return self.now

    @property
    def running(self) -> House:
        """Whose step is being made."""
        return self._current

    # --- running ---------------------------------------------------------------------------------

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Run until it is done."""
        task = self.begin(self._stage, _awaited(future))
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
            at, _, timer, house = heappop(timers)
            if timer.cancelled() or house.is_razed:
                continue
            self.now = max(self.now, at)
            self._add(house, timer)
        if not awake:
            raise Stuck("nothing is left that could happen")
        place = int(self._chance() * len(awake)) if len(awake) > 1 else 0
        house = awake[place]
        handle = house.ready.popleft()
        if not house.ready:
            del awake[place]
        self.now += _STEP_S
        self.steps += 1
        if self.steps % _LOOK_STEPS == 0:
            self._watch()
        if not handle.cancelled():
            self._current = house
            handle._run()  # noqa: SLF001 - so says whoever makes loops
            self._current = self._stage
            if house.fuse is not None:
                self._burn(house, *house.fuse)

    def _burn(self, house: House, left: int, end: Callable[[], None]) -> None:
        house.fuse = (left - 1, end) if left else None
        if not left:
            end()

    def _add(self, house: House, handle: asyncio.Handle) -> None:
        if not house.ready and not house.is_paused:
            self._awake.append(house)
        house.ready.append(handle)

    def _house_of(self, context: Context | None) -> House:
        if context is None:
            return self._current
        if _house not in context:  # one that begins from nothing: what is begun in a house stays there
            for variable, value in self._current.context.items():
                if variable not in context:
                    context.run(variable.set, value)
        return context[_house]

    # --- what asyncio asks of a loop -------------------------------------------------------------

    def time(self) -> float:
        """What the clock of the house shows that runs."""
        return self._current.shows(self.now)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Have this called in its house, after all that waits there."""
        house = self._house_of(context)
        handle = asyncio.Handle(callback, args, self, context)
        if not (house.is_razed or self._is_closed):
            self._add(house, handle)
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
        house = self._house_of(context)
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not (house.is_razed or self._is_closed):
            heappush(self._timers, (self._current.moment(when), next(self.numbers), timer, house))
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
        house = self._house_of(context)
        task = _Task(coro, loop=self, name=name, context=context)
        house.tasks.add(task)
        self._houses[house] = None
        if house.is_razed or self._is_closed:
            self._graves.append(task)
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
        house = self._generators.get(generator, self._stage)
        if house.is_razed or self._is_closed:
            self._graves.append(generator)
        else:
            self.begin(house, _closed(generator))

    def close(self) -> None:
        """Make no more steps, and have all that waits forgotten without a word."""
        self._is_closed = True
        for house in self._houses:
            self.raze(house)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._first, self._forgotten)
        asyncio._set_running_loop(self)  # noqa: SLF001 - for those who make loops
        try:
            while self._graves:
                _bury(self._graves.pop())
        finally:
            asyncio._set_running_loop(None)  # noqa: SLF001
            sys.set_asyncgen_hooks(*hooks)
        self._timers.clear()


def new_loop(chance: Callable[[], float], watch: Callable[[], None] = lambda: None) -> SimulatedLoop:
    """A loop whose steps are drawn by this chance; `watch` is called now and then, and may end it."""
    return SimulatedLoop(chance, watch)  # type: ignore[abstract]  # what it lacks would reach the outside


def _raise(_house: House, error: BaseException) -> None:
    raise error


async def _awaited(future: Generator[Any, None, T] | Awaitable[T]) -> T:
    return await future  # type: ignore[misc,no-any-return]


async def _closed(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()


def _bury(dead: asyncio.Task[Any] | AsyncGenerator[Any, Any]) -> None:
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
