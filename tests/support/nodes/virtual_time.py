"""An event loop whose time jumps to the next timer when nothing else is to be done.

Nothing in it may wait for another thread or process: the memory home does not.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from vox_mesh.nodes.clock import Dependencies
from vox_mesh.store.engines.memory import SharedMemory

T = TypeVar("T")
P = ParamSpec("P")

EPOCH_MS = 1_800_000_000_000
"""What the clock shows in the beginning: a downbeat of the built-in tempo."""


class _Selector(selectors.DefaultSelector):
    """Instead of waiting, lets time pass."""

    passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        self.passed_s += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time is that of its timers."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.passed_s

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Time does not wait for threads: what one would do is done here."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def pass_time(self, seconds: float) -> None:
        """Let time pass as if the loop had been kept busy so long."""
        self._virtual.passed_s += seconds


def now_ms() -> int:
    """What the clock of the running loop shows."""
    return EPOCH_MS + round(asyncio.get_running_loop().time() * 1_000)


def dependencies() -> Dependencies:
    """A memory home of its own, by the time of the running loop."""
    loop = asyncio.get_running_loop()
    return Dependencies(now_ms, loop.time, memory=SharedMemory(now_ms), elapsed=loop.time)


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Run it in a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test in a `VirtualLoop`: waits cost no time and last exactly as long as asked."""

    @wraps(test)
    def run_test(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return run_test
