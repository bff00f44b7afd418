"""The processes of the demo, and what they tell."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TextIO

from tools.demo.cast import CAST
from tools.demo.stage import Event, Stage

_LEAVE_S: Final = 15.0


class Failed(Exception):
    """The demo can't go on."""


class Troupe:
    """The orchestrators as processes; all that they tell is kept in order, here and on disk."""

    def __init__(self, stage: Stage, heard: Callable[[Event], None]) -> None:
        self.events: list[Event] = []
        self._stage = stage
        self._heard = heard
        self._diary: TextIO = stage.diary.open("w")
        self._players: dict[str, Player] = {}
        self._news = asyncio.Event()
        self._failure: str | None = None

    async def start(self, name: str) -> Player:
        """Start an orchestrator, for the first time or again, and wait until it is one of the nodes."""
        player = await Player.start(self._stage, name, self)
        self._players[name] = player
        await self.until("joined", node=name, pid=player.pid)
        return player

    def player(self, name: str) -> Player:
        """The process of an orchestrator."""
        return self._players[name]

    def tell(self, event: Event) -> None:
        """Keep what somebody told."""
        self.events.append(event)
        self._diary.write(json.dumps(event) + "\n")
        self._diary.flush()
        self._heard(event)
        self.wake()

    def wake(self) -> None:
        """Have those who wait look again."""
        self._news.set()

    def failed(self, why: str) -> None:
        """Nobody need wait any longer."""
        self._failure = why
        self.wake()

    async def until(self, event: str, **about: Any) -> Event:
        """Wait for an event like this; one that was told before is one, too."""
        return await self.first(lambda each: _is_like(each, event, about))

    async def first(self, is_it: Callable[[Event], bool]) -> Event:
        """Wait for the first event that is one."""
        seen = 0
        while True:
            for event in self.events[seen:]:
                seen += 1
                if is_it(event):
                    return event
            await self.change()

    async def change(self) -> None:
        """Wait until there is something new."""
        if self._failure is not None:
            raise Failed(self._failure)
        self._news.clear()
        await self._news.wait()

    async def leave(self) -> None:
        """Have all of them finish what they do, and wait for their end."""
        async with asyncio.timeout(_LEAVE_S):
            await asyncio.gather(*(player.leave() for player in self._players.values()))
        if self._failure is not None:
            raise Failed(self._failure)

    async def close(self) -> None:
        """Leave no process behind, whatever has happened."""
        await asyncio.gather(*(player.kill() for player in self._players.values()))
        self._diary.close()


class Player:
    """One orchestrator's process. It ends with its input, so also when the demo itself is killed."""

    def __init__(self, process: asyncio.subprocess.Process, name: str, log: Path, troupe: Troupe) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._log = log
        self._troupe = troupe
        self._is_expected = False
        self._listening = asyncio.create_task(self._listen(), name=f"demo-{name}")

    @classmethod
    async def start(cls, stage: Stage, name: str, troupe: Troupe) -> Player:
        """Start the process."""
        assert name in CAST
        with stage.log(name).open("a") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tools.demo.orchestrator", name),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=stage.folder,
                env=stage.environment(name),
                start_new_session=True,  # a Ctrl-C is for the demo, which ends it
            )
        return cls(process, name, stage.log(name), troupe)

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.endswith(b"\n"):  # the last words of one that is killed may be cut off
                self._troupe.tell({**json.loads(line), "pid": self.pid})
        code = await self._process.wait()
        if not self._is_expected or code > 0:
            self._troupe.failed(f"{self.name} ended with exit code {code}, see {self._log}")

    async def leave(self) -> None:
        """End its input, and wait until it has left."""
        self._is_expected = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._listening

    async def kill(self) -> None:
        """`kill -9`: no chance to tidy up. What it told before is heard first."""
        self._is_expected = True
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._listening


def _is_like(event: Event, name: str, about: dict[str, Any]) -> bool:
    return bool(event["event"] == name and all(event.get(key) == value for key, value in about.items()))
