"""A fleet: real processes that write to one file together, round after round, on a common signal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bench.measure import Pace
from bench.programs.subprocess_driver import ProgramProcess, start_program

_ROUND_FACTOR: Final = 4  # longer rounds: where processes wait for each other, fairness takes time to show


class FleetRound(NamedTuple):
    """What the processes of a fleet did in one round."""

    per_second: float
    longest_wait_ms: float
    smallest_share: float
    """What the slowest process wrote, to what each would have written if all had written the same."""


class Fleet:
    """Processes with a store each, all on the same file, that wait for the signal."""

    def __init__(self, workers: Sequence[ProgramProcess], seconds: float) -> None:
        self._workers = workers
        self._seconds = seconds

    async def round(self) -> FleetRound:
        """Have all of them write for the given time, at once."""
        for worker in self._workers:
            worker.send(str(self._seconds))
        reports = [await worker.report(self._seconds) for worker in self._workers]
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
    arguments: list[object] = [folder, callers]
    if pace.settled:
        arguments.append("--settled")
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(start_program("programs.writer", *arguments))
            for _ in range(processes)
        ]
        for worker in workers:
            await worker.ready()
        yield Fleet(workers, pace.seconds * _ROUND_FACTOR)
