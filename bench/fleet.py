"""A fleet: real processes that write to one file together, round after round, on a common signal."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from bench.measure import Pace

_ROOT: Final = Path(__file__).resolve().parent.parent
_READY_S: Final = 60.0
_GRACE_S: Final = 30.0
_ROUND_FACTOR: Final = 4  # longer rounds: where processes wait for each other, fairness takes time to show


class FleetRound(NamedTuple):
    """What the processes of a fleet did in one round."""

    per_second: float
    longest_wait_ms: float
    smallest_share: float
    """What the slowest process wrote, to what each would have written if all had written the same."""


class Fleet:
    """Processes with a store each, all on the same file, that wait for the signal."""

    def __init__(self, workers: Sequence[Process], seconds: float) -> None:
        self._workers = workers
        self._seconds = seconds

    async def ready(self) -> None:
        """Wait until every process has opened its store."""
        async with asyncio.timeout(_READY_S):
            for worker in self._workers:
                await _line(worker)

    async def round(self) -> FleetRound:
        """Have all of them write for the given time, at once."""
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.write(b"%f\n" % self._seconds)
        async with asyncio.timeout(self._seconds + _GRACE_S):
            reports = [orjson.loads(await _line(worker)) for worker in self._workers]
        rates = [report["per_second"] for report in reports]
        total = sum(rates)
        return FleetRound(
            per_second=total,
            longest_wait_ms=max(report["longest_wait_ms"] for report in reports),
            smallest_share=min(rates) * len(rates) / total,
        )


@asynccontextmanager
async def fleet(folder: Path, processes: int, callers: int, pace: Pace) -> AsyncIterator[Fleet]:
    """Start the processes; they end with the context."""
    command = [sys.executable, "-m", "bench.worker", str(folder), str(callers)]
    if pace.settled:
        command.append("--settled")
    async with AsyncExitStack() as stack:
        workers = []
        for _ in range(processes):
            worker = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, cwd=_ROOT)
            stack.push_async_callback(_end, worker)
            workers.append(worker)
        started = Fleet(workers, pace.seconds * _ROUND_FACTOR)
        await started.ready()
        yield started


async def _line(worker: Process) -> bytes:
    assert worker.stdout is not None
    line = await worker.stdout.readline()
    if not line:
        raise RuntimeError(f"a benchmark process ended early, with status {await worker.wait()}")
    return line


async def _end(worker: Process) -> None:
    """A worker ends when nobody can give it a signal any more."""
    assert worker.stdin is not None
    worker.stdin.close()
    try:
        async with asyncio.timeout(_GRACE_S):
            await worker.wait()
    except TimeoutError:
        worker.kill()
        await worker.wait()
