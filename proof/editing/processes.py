"""The processes of a run: the node, and the agents, which send signals and follow orders."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import repeat
from pathlib import Path
from typing import Final

import psutil

from proof.editing.spec import AgentSpec

_ROOT: Final = Path(__file__).resolve().parents[2]
_LEAVE_S: Final = 60.0
_LOOK_S: Final = 0.02
_LOG_LINES: Final = 15


class AgentProcess:
    """A process that plays an agent."""

    def __init__(self, spec: AgentSpec, process: Process, log: Path) -> None:
        self.spec = spec
        self._process = process
        self._log = log
        self._signals: Counter[str] = Counter()
        self._news = asyncio.Event()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(
        cls, module: str, spec: AgentSpec, variables: Mapping[str, str], logs: Path
    ) -> AgentProcess:
        """Start it."""
        path = logs / f"{spec.who}-{spec.incarnation}.log"
        with path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, spec.argument),
                env={**os.environ, "PYTHONPATH": str(_ROOT), **variables},
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
            )
        return cls(spec, process, path)

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self._signals[line.decode().strip()] += 1
            self._notify()
        await self._process.wait()
        self._notify()

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    @property
    def status(self) -> int | None:
        """Its exit status, or `None` while it runs."""
        return self._process.returncode

    @property
    def log_end(self) -> str:
        """The last lines of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:])

    async def until(self, word: str, times: int = 1) -> None:
        """Wait until it has sent a signal this often from now on. Raises `RuntimeError` if it ends first."""
        wanted = self._signals[word] + times
        await self._until(word, wanted)

    async def until_ever(self, word: str) -> None:
        """Wait until it has sent a signal, now or before."""
        await self._until(word, 1)

    async def _until(self, word: str, wanted: int) -> None:
        while self._signals[word] < wanted:
            if self._listening.done():
                raise RuntimeError(
                    f"{self.spec.who} ended with {self.status} before it was {word}: {self.log_end}"
                )
            await self._news.wait()

    def order(self, what: str, **more: str) -> None:
        """Send it an order."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **more}).encode() + b"\n")

    async def leave(self) -> None:
        """Have it leave, and wait until it is gone."""
        self.order("leave")
        await self._listening

    async def kill(self) -> None:
        """`kill -9`, and wait until it is gone, and so are the hook or the commit that it had begun.

        These outlive it: a hook that ends later may take a lock once more.
        """
        begun: list[psutil.Process] = []
        if self.status is None:
            self._process.send_signal(signal.SIGSTOP)  # it begins no other
            with suppress(psutil.NoSuchProcess):
                begun = psutil.Process(self._process.pid).children()
            self._process.kill()
        await self._listening
        async with asyncio.timeout(_LEAVE_S):
            for wait_s in repeat(_LOOK_S):
                if not any(map(_is_running, begun)):
                    return
                await asyncio.sleep(wait_s)


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@asynccontextmanager
async def running_node(
    variables: Mapping[str, str], plant: str, folder: Path, log: Path
) -> AsyncIterator[None]:
    """Run `vox-mesh up`, with a planted bug if one is named, and stop it afterwards."""
    bug = ("proof.mutants.run_with_bug", plant) if plant else ()
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *bug, "vox_mesh.cli", "up", "--no-worker"),
            env={**os.environ, "PYTHONPATH": str(_ROOT), **variables},
            cwd=folder,
            stdin=DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_LEAVE_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
