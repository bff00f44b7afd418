"""Measuring: short rounds of each side in turn, so that the machine's noise falls on all alike."""

from __future__ import annotations

import asyncio
import resource
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Final, NamedTuple, TypeVar

K = TypeVar("K")
T = TypeVar("T")
Call = Callable[[], Awaitable[object]]

_FEW_ROUNDS: Final = 3
_STATUS: Final = Path("/proc/self/status")


class Pace(NamedTuple):
    """How long to measure: `rounds` of each side, of `seconds` each; `settled` as after a long run.

    A store that is not settled has not yet begun to prune old keys, and is faster than it will be. `idle_s`
    is the duration of idle measurements, `copied_mb` the size of a first copy, `grows` whether growth is
    measured up to the largest sizes.
    """

    rounds: int
    seconds: float
    settled: bool
    idle_s: float
    copied_mb: int
    grows: bool

    @property
    def few_rounds(self) -> int:
        """As many as are enough where each takes long."""
        return min(self.rounds, _FEW_ROUNDS)


FULL: Final = Pace(rounds=5, seconds=0.4, settled=True, idle_s=20.0, copied_mb=100, grows=True)
QUICK: Final = Pace(rounds=3, seconds=0.05, settled=False, idle_s=3.0, copied_mb=20, grows=False)


async def alternate(sides: Mapping[K, Callable[[], Awaitable[T]]], rounds: int) -> dict[K, list[T]]:
    """One round of each side in turn, back and forth; the first of each only warms up and is dropped."""
    for measure in sides.values():
        await measure()
    found: dict[K, list[T]] = {name: [] for name in sides}
    order = list(sides)
    for _ in range(rounds):
        for name in order:
            found[name].append(await sides[name]())
        order.reverse()
    return found


async def rate(call: Call, seconds: float, callers: int = 1) -> float:
    """Return the calls per second of this many callers, each of which calls again after each response."""
    start = perf_counter()
    end = start + seconds

    async def caller() -> int:
        calls = 0
        while perf_counter() < end:
            await call()
            calls += 1
        return calls

    if callers == 1:  # a task of its own would be a cost that a lone caller does not have
        return await caller() / (perf_counter() - start)
    calls = sum(await asyncio.gather(*(caller() for _ in range(callers))))
    return calls / (perf_counter() - start)


def blocking_rate(call: Callable[[], object], seconds: float) -> float:
    """Calls per second, one after another, without an event loop between them."""
    start = perf_counter()
    end = start + seconds
    calls = 0
    while perf_counter() < end:
        call()
        calls += 1
    return calls / (perf_counter() - start)


async def median_us(call: Call, seconds: float) -> float:
    """The median time of a call, in microseconds."""
    times: list[float] = []
    end = perf_counter() + seconds
    while (before := perf_counter()) < end:
        await call()
        times.append(perf_counter() - before)
    return statistics.median(times) * 1e6


async def processor_us(call: Call, seconds: float) -> float:
    """The processor time of a call in all threads of this process, in microseconds."""
    calls, before = 0, process_time()
    end = perf_counter() + seconds
    while perf_counter() < end:
        await call()
        calls += 1
    return (process_time() - before) / calls * 1e6


def blocking_median_us(call: Callable[[], object], seconds: float) -> float:
    """The median time of a blocking call, in microseconds."""
    times: list[float] = []
    end = perf_counter() + seconds
    while (before := perf_counter()) < end:
        call()
        times.append(perf_counter() - before)
    return statistics.median(times) * 1e6


def p99(values: Sequence[float]) -> float:
    """What all but the slowest in a hundred keep to."""
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def ratios(ours: Sequence[float], raw: Sequence[float]) -> list[float]:
    """Ours to raw, round by round: both of a round saw the same machine."""
    return [mine / other for mine, other in zip(ours, raw, strict=True)]


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    if _STATUS.exists():  # what `getrusage` says here includes the process that started this one
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1_024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
