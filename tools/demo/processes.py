"""The processes of the demo, and their events."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TextIO

from tools.demo.scenario import ORCHESTRATORS
from tools.demo.workspace import Event, Workspace

_LEAVE_S: Final = 15.0


class Failed(Exception):
    """The demo can't continue."""


class OrchestratorProcesses:
    """The processes of all orchestrators; their events are kept in order, in memory and on disk."""

    def __init__(self, workspace: Workspace, on_event: Callable[[Event], None]) -> None:
        self.events: list[Event] = []
        self._workspace = workspace
        self._on_event = on_event
        self._event_log: TextIO = workspace.event_log.open("w")
        self._by_name: dict[str, OrchestratorProcess] = {}
        self._news = asyncio.Event()
        self._failure: str | None = None

    async def start(self, name: str) -> OrchestratorProcess:
        """Start an orchestrator, for the first time or again, and wait until its node has joined."""
        process = await OrchestratorProcess.start(self._workspace, name, self)
        self._by_name[name] = process
        await self.until("joined", node=name, pid=process.pid)
        return process

    def process(self, name: str) -> OrchestratorProcess:
        """Return the process of an orchestrator."""
        return self._by_name[name]

    def record(self, event: Event) -> None:
        """Record an event."""
        self.events.append(event)
        self._event_log.write(json.dumps(event) + "\n")
        self._event_log.flush()
        self._on_event(event)
        self.wake()

    def wake(self) -> None:
        """Wake all waiters."""
        self._news.set()

    def failed(self, why: str) -> None:
        """Fail: no waiter need wait any longer."""
        self._failure = why
        self.wake()

    async def until(self, event: str, **about: Any) -> Event:
        """Wait for an event like this; an earlier one counts, too."""
        return await self.first(lambda each: _is_like(each, event, about))

    async def first(self, is_it: Callable[[Event], bool]) -> Event:
        """Wait for the first matching event."""
        seen = 0
        while True:
            for event in self.events[seen:]:
                seen += 1
                if is_it(event):
                    return event
            await self.change()

    async def change(self) -> None:
        """Wait for the next event."""
        if self._failure is not None:
            raise Failed(self._failure)
        self._news.clear()
        await self._news.wait()

    async def leave(self) -> None:
        """Shut all of them down gracefully, and wait for their end."""
        async with asyncio.timeout(_LEAVE_S):
            await asyncio.gather(*(process.leave() for process in self._by_name.values()))
        if self._failure is not None:
            raise Failed(self._failure)

    async def close(self) -> None:
        """End all processes, whatever happened."""
        await asyncio.gather(*(process.kill() for process in self._by_name.values()))
        self._event_log.close()


class OrchestratorProcess:
    """One orchestrator's process. It ends with its input, so also when the demo itself is killed."""

    def __init__(
        self, process: asyncio.subprocess.Process, name: str, log: Path, processes: OrchestratorProcesses
    ) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._log = log
        self._processes = processes
        self._is_expected = False
        self._listening = asyncio.create_task(self._listen(), name=f"demo-{name}")

    @classmethod
    async def start(
        cls, workspace: Workspace, name: str, processes: OrchestratorProcesses
    ) -> OrchestratorProcess:
        """Start the process."""
        assert name in ORCHESTRATORS
        with workspace.log(name).open("a") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tools.demo.orchestrator", name),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=workspace.folder,
                env=workspace.environment(name),
                start_new_session=True,  # a Ctrl-C is for the demo, which ends it
            )
        return cls(process, name, workspace.log(name), processes)

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.endswith(b"\n"):  # the last line of a killed process may be cut off
                self._processes.record({**json.loads(line), "pid": self.pid})
        code = await self._process.wait()
        if not self._is_expected or code > 0:
            self._processes.failed(f"{self.name} ended with exit code {code}, see {self._log}")

    async def leave(self) -> None:
        """Close its input, and wait until it has left."""
        self._is_expected = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._listening

    async def kill(self) -> None:
        """`kill -9`: no graceful shutdown. Its earlier output is read first."""
        self._is_expected = True
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._listening


def _is_like(event: Event, name: str, about: dict[str, Any]) -> bool:
    return bool(event["event"] == name and all(event.get(key) == value for key, value in about.items()))
