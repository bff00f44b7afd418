"""The nodes of a chaos run, each with one process after another."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from proof.chaos.builds import ROOT, Build, this_build
from proof.chaos.protocol import DRAINED, EXIT_REFUSED, OVER, UP, ProcessSpec
from proof.history import Recorder
from tools.fork_server import Program
from tools.forked import AsyncProcess, begin, load_first
from tools.homes import environment
from vox_mesh import Settings

NAMES: Final = ("ann", "ben", "cleo", "dan", "eve", "finn", "gus", "hana")

_CLIENT_MODULE: Final = "proof.chaos.workload_client"
_PRELOADED: Final = ("proof.suite", "proof.outside", "proof.chaos.points", "proof.chaos.storm")
_RUN_WITH_BUG: Final = "proof.mutants.run_with_bug"
_LEAVE_S: Final = 15.0
_RESTART_DELAY_S: Final = 0.3
"""The delay after a process that failed: the next may fail for the same reason."""


@dataclass
class NodeProcess:
    """One process of a node, from its start until its exit status is known."""

    number: int
    handle: AsyncProcess
    signals: dict[str, asyncio.Event] = field(
        default_factory=lambda: {word: asyncio.Event() for word in (UP, OVER, DRAINED)}
    )
    is_asked_to_leave: bool = False
    is_replaced: bool = False
    """Whether another process of the node follows it although it left."""
    how: str = ""
    """How it ended: `killed`, `left` or `broke`."""
    has_crashed: bool = False
    """Whether it ended without a reason given by the mesh."""

    @property
    def is_over(self) -> bool:
        """Whether its process has ended."""
        return self.handle.returncode is not None

    async def listen(self) -> None:
        """Read its signals until it ends."""
        async for line in self.handle.stdout:
            if (word := line.decode().strip()) in self.signals:
                self.signals[word].set()
        code = await self.handle.wait()
        if code == -signal.SIGKILL:
            self.how = "killed"
        else:
            self.how = "left" if code == 0 and self.is_asked_to_leave else "broke"
        self.has_crashed = self.how == "broke" and code != EXIT_REFUSED

    def order(self, what: str, **more: Any) -> None:
        """Send it an order."""
        if not self.is_over:
            self.handle.stdin.write(json.dumps({"do": what, **more}).encode() + b"\n")


class ClusterNode:
    """A node. One task starts its processes, each when the exit status of the previous one is known."""

    def __init__(
        self,
        spec: ProcessSpec,
        settings: Settings,
        recorder: Recorder,
        logs: Path,
        program: tuple[str, ...],
        build: Build | None = None,
    ) -> None:
        self.name = spec.who
        self.build = build or this_build()
        """The code that its next process runs."""
        self._program = program
        self.settings = settings
        self.process: NodeProcess | None = None
        self.processes: list[NodeProcess] = []
        self.is_removed = False
        self._spec = spec
        self._recorder = recorder
        self._logs = logs
        self._starting = asyncio.Lock()
        self._may_run = asyncio.Event()
        self._may_run.set()
        self._holds = 0
        self._news = asyncio.Event()
        self._supervising: asyncio.Task[None] | None = None

    # --- its processes ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Keep a process running until the end."""
        self._supervising = asyncio.create_task(self._keep_running(), name=f"lives of {self.name}")

    async def _keep_running(self) -> None:
        while True:
            await self._may_run.wait()
            async with self._starting:
                if not self._may_run.is_set():  # cleared while this waited for the lock
                    continue
                process = await self._start_process()
            await process.listen()
            self._recorder.note("life.ended", player=self.name, life=process.number, how=process.how)
            if process.has_crashed:
                error = f"life {process.number} ended with {process.handle.returncode}"
                self._recorder.note("unexpected", player=self.name, where="process", error=error)
            self.process = None
            self._notify()
            if process.how == "left" and not process.is_replaced:
                return
            if process.how == "broke":
                await asyncio.sleep(_RESTART_DELAY_S)

    async def _start_process(self) -> NodeProcess:
        number = len(self.processes) + 1
        spec = replace(self._spec, incarnation=number)
        build = self.build
        about = {"node_id": self.settings.node_id, "build": build.name}
        self._recorder.note("life.began", player=self.name, life=number, **about)
        variables = {**os.environ, "PYTHONPATH": str(build.root), **environment(self.settings)}
        module, *arguments = self._program
        program = Program(
            (*arguments, spec.argument), variables, module=module, folder=str(self._logs.absolute())
        )
        with (self._logs / f"{self.name}-{number}.log").open("wb") as log:
            # Cancelled here, it must not leave a process that is not in the list.
            starting = asyncio.ensure_future(AsyncProcess.start(program, log.fileno(), build.root))
            try:
                handle = await asyncio.shield(starting)
            except asyncio.CancelledError:
                self.processes.append(NodeProcess(number, await starting))
                raise
        self.process = NodeProcess(number, handle)
        self.processes.append(self.process)
        self._notify()
        return self.process

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    @asynccontextmanager
    async def kept_down(self) -> AsyncIterator[None]:
        """Kill it, and start no process until the end of the block."""
        with self.without_restarts():
            await self.kill()
            yield

    @contextmanager
    def without_restarts(self) -> Iterator[None]:
        """Start no process until the end of the block."""
        self._holds += 1
        self._may_run.clear()
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds:
                self._may_run.set()

    async def replace(self, build: Build, *, is_killed: bool) -> None:
        """Stop its process, gracefully or by `kill -9`, and run another build from then on."""
        with self.without_restarts():
            self.build = build
            process = self.process
            if is_killed or process is None:
                await self.kill()
                return
            process.is_replaced = process.is_asked_to_leave = True
            process.order("leave")
            with suppress(TimeoutError):
                async with asyncio.timeout(_LEAVE_S):
                    await self.ended(process)
                    return
            await self.kill()

    async def kill(self) -> None:
        """`kill -9`, and wait until its process has ended; one that is just starting is killed, too."""
        async with self._starting:
            process = self.process
        if process is not None:
            process.handle.kill()
            await self.ended(process)

    async def ended(self, process: NodeProcess) -> None:
        """Wait until a process has ended, or the supervising task has."""
        assert self._supervising is not None
        while self.process is process and not self._supervising.done():
            news = asyncio.create_task(self._news.wait())
            await asyncio.wait((news, self._supervising), return_when=asyncio.FIRST_COMPLETED)
            news.cancel()

    # --- orders and signals ----------------------------------------------------------------------

    async def until(self, word: str) -> None:
        """Wait until the current process has sent this signal; if it ends first, until the next one has."""
        while True:
            process, news = self.process, self._news
            waits = [asyncio.create_task(news.wait())]
            if process is not None:
                waits.append(asyncio.create_task(process.signals[word].wait()))
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            if process is not None and process.signals[word].is_set():
                return

    @property
    def is_up(self) -> bool:
        """Whether it runs, and its node is open."""
        return self.process is not None and self.process.signals[UP].is_set()

    def order(self, what: str, **more: Any) -> None:
        """Send it an order, if it runs."""
        if self.process is not None:
            self.process.order(what, **more)

    async def order_and_wait(self, what: str, word: str) -> None:
        """Send it an order, and wait for the signal that it is done."""
        if self.process is not None:
            self.process.signals[word].clear()
            self.process.order(what)
        await self.until(word)

    def pause(self) -> None:
        """Pause it (SIGSTOP)."""
        self._recorder.note("paused", player=self.name)
        if self.process is not None:
            self.process.handle.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume it."""
        if self.process is not None:
            self.process.handle.send_signal(signal.SIGCONT)
        self._recorder.note("resumed", player=self.name)

    # --- its end ---------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Shut it down gracefully, and wait until it has ended."""
        if (process := self.process) is not None:
            process.is_asked_to_leave = True
            process.order("leave")
            await self.ended(process)

    async def remove(self) -> None:
        """Kill it, and start no other process."""
        self.is_removed = True
        self._holds += 1
        self._may_run.clear()
        await self.kill()

    async def close(self) -> None:
        """End all of its processes, whatever happened."""
        if self._supervising is not None:
            self._supervising.cancel()
            (end,) = await asyncio.gather(self._supervising, return_exceptions=True)
            if isinstance(end, Exception):
                self._recorder.note("unexpected", player=self.name, where="stage", error=repr(end))
        for process in self.processes:
            process.handle.kill()
            await process.handle.wait()


def preload(builds: Sequence[Build] = ()) -> None:
    """Preload the modules of node processes in the fork server of each build."""
    load_first(*_PRELOADED)
    for root in {ROOT, *(build.root for build in builds)}:
        begin(root)


@asynccontextmanager
async def run_cluster(
    specs: dict[ProcessSpec, Settings],
    recorder: Recorder,
    logs: Path,
    plant: str = "",
    module: str = _CLIENT_MODULE,
    build: Build | None = None,
) -> AsyncIterator[dict[str, ClusterNode]]:
    """Run all nodes, with a planted bug if one is named, until the end of the block. Yield them by name.

    They begin with this build; without one, with this checkout.
    """
    program = (_RUN_WITH_BUG, plant, module) if plant else (module,)
    async with AsyncExitStack() as ending:
        nodes = {
            spec.who: ClusterNode(spec, settings, recorder, logs, program, build)
            for spec, settings in specs.items()
        }
        for node in nodes.values():
            ending.push_async_callback(node.close)
            node.begin()
        yield nodes


def assert_all_gone(nodes: dict[str, ClusterNode]) -> None:
    """Assert that no process is left: from now on the database does not change."""
    for node in nodes.values():
        left = [process.handle.pid for process in node.processes if not process.is_over]
        assert not left, f"{node.name} still lives: {left}"


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine in the background until the end of the block; its error is raised."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()
