"""Processes that lock, as the tests see them: ordered about, paused, killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.running.jobs import Job
from tests.support.running.processes import Report, Writer
from tools.forked import AsyncProcess
from vox_mesh import Settings

_PROGRAM: Final = "tests.support.locks.lock_programs"


@dataclass(frozen=True)
class LockJob(Job):
    """Who a process that locks is, and what it has to do with."""

    service: str = ""


class Locker(Writer):
    """A running `tests.support.locks.lock_programs`."""

    def __init__(self, process: AsyncProcess, job: Job, log: Path) -> None:
        super().__init__(process, job, log)
        self._orders = 0
        self._answers: dict[int, Report] = {}
        self._looked = 0

    @property
    def name(self) -> str:
        """The agent that it locks for."""
        return self.job.writer

    def order(self, verb: str, **what: Any) -> asyncio.Task[Report]:
        """Have it do something, now; what came of it."""
        self._orders += 1
        number = self._orders
        self._process.stdin.write(json.dumps({"order": number, "verb": verb, **what}).encode() + b"\n")
        return asyncio.create_task(self._answer_to(number))

    async def _answer_to(self, number: int) -> Report:
        await self.until(lambda reports: number in self._read_answers(reports))
        return self._answers[number]

    def _read_answers(self, reports: list[Report]) -> dict[int, Report]:
        """What came of the orders so far. There may be very many reports: each is looked at once."""
        for report in reports[self._looked :]:
            if "order" in report:
                self._answers[report["order"]] = report
        self._looked = len(reports)
        return self._answers

    def acquire(self, *keys: str, ttl: float = 30.0, wait: float = 0.0) -> asyncio.Task[Report]:
        """Have it take the keys."""
        return self.order("acquire", keys=keys, ttl=ttl, wait=wait)


StartLocker = Callable[[Settings, str], Awaitable[Locker]]


@asynccontextmanager
async def lockers(folder: Path, table: str = "", service: str = "") -> AsyncIterator[StartLocker]:
    """Start processes that lock, and are ready to; whatever becomes of the test, they are gone at the end."""
    started: list[Locker] = []

    async def start(settings: Settings, name: str) -> Locker:
        job = LockJob("", table, name, service=service)
        log = folder / f"{name}-{len(started)}.log"
        locker = await Locker.start(settings, job, log, _PROGRAM)
        assert isinstance(locker, Locker)
        started.append(locker)
        await locker.until(bool)
        return locker

    try:
        yield start
    finally:
        await asyncio.gather(*(locker.kill() for locker in started))
