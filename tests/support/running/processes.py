"""Writers as the tests see them: started, heard, stopped, killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.running.jobs import Job
from tools.fork_server import Program
from tools.forked import AsyncProcess
from tools.homes import environment
from vox_mesh import MeshError, Script, Settings, Statement, Store

_ROOT: Final = Path(__file__).resolve().parents[3]
_PATIENCE_S: Final = 120.0
_WRITE_S: Final = 1.0

Report = dict[str, Any]


class Writer:
    """A running `tests.support.store.writers` program and what it has reported so far."""

    def __init__(self, process: AsyncProcess, job: Job, log: Path) -> None:
        self.job = job
        self.reports: list[Report] = []
        self.is_running = True
        self._process = process
        self._log = log
        self._news = asyncio.Event()
        self._hearing = asyncio.create_task(self._hear())

    @classmethod
    async def start(
        cls, settings: Settings, job: Job, log: Path, module: str = "tests.support.store.writers"
    ) -> Writer:
        """Start a process of its own for the job, with the program that does such jobs."""
        variables = {**os.environ, "PYTHONPATH": str(_ROOT), **environment(settings)}
        with log.open("wb") as stderr:
            process = await AsyncProcess.start(
                Program((job.argument,), variables, module=module), stderr.fileno()
            )
        return cls(process, job, log)

    async def _hear(self) -> None:
        async for line in self._process.stdout:
            if line.endswith(b"\n"):  # a killed writer may leave half a line
                self.reports.append(json.loads(line))
                self._news.set()
        await self._process.wait()
        self.is_running = False
        self._news.set()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def errors(self) -> str:
        """What it wrote on stderr."""
        return self._log.read_text(errors="replace")

    async def until(self, condition: Callable[[list[Report]], bool]) -> None:
        """Wait for reports that meet the condition; it fails when the process ends before."""
        async with asyncio.timeout(_PATIENCE_S):
            while not condition(self.reports):
                assert self.is_running, f"the writer ended early:\n{self.errors}"
                self._news.clear()
                await self._news.wait()

    async def heard(self) -> None:
        """Wait for its next report, or its end."""
        self._news.clear()
        await self._news.wait()

    async def until_more(self, count: int) -> None:
        """Wait for this many more reports."""
        wanted = len(self.reports) + count
        await self.until(lambda reports: len(reports) >= wanted)

    def ask_to_stop(self) -> None:
        """Close its stdin: a sign to end, or to begin, as its job has it."""
        self._process.stdin.close()

    async def ended(self, timeout: float = _PATIENCE_S) -> int:
        """Wait for its end; the exit code."""
        async with asyncio.timeout(timeout):
            await asyncio.shield(self._hearing)
        assert self._process.returncode is not None
        return self._process.returncode

    async def finish(self) -> list[Report]:
        """Ask it to stop and see that it ends well; all it reported."""
        self.ask_to_stop()
        code = await self.ended()
        assert code == 0, f"the writer ended with {code}:\n{self.errors}"
        return self.reports

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    @asynccontextmanager
    async def paused(self, store: Store) -> AsyncIterator[None]:
        """Stop it in its tracks, and let it go on.

        Not in the middle of a write to a file, which no one else could write to until it goes on.
        """
        pid = self._process.pid
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                os.kill(pid, signal.SIGSTOP)
                try:
                    await store.write(Script(Statement("SELECT 1")), timeout=_WRITE_S)
                    break
                except MeshError:
                    os.kill(pid, signal.SIGCONT)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    async def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        if self._process.returncode is None:
            self._process.kill()
        await self._hearing
        self.ask_to_stop()
