"""A town: a mesh in memory whose nodes come, die and come back in one test, by a clock that can be turned."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from vox_mesh.errors import BadValue, NotKnown
from vox_mesh.mesh import Mesh
from vox_mesh.model.base import durations
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.settings import Settings
from vox_mesh.store.engines.memory import SharedMemory
from vox_mesh.store.engines.thread import to_the_end

_DEFAULT_NAME: Final = "local"


class TownSettings(Settings):
    """Nothing of the machine that a test runs on reaches its nodes."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What the test says, and no variable or file."""
        return (init_settings,)


class TownClock:
    """The time of a town's nodes and of its database. It goes on by itself, and can be turned on."""

    def __init__(self, turned: Callable[[], Coroutine[None, None, None]]) -> None:
        self._turned = turned
        self._ahead_ms = 0

    @property
    def now_ms(self) -> int:
        """What it shows, in milliseconds since 1970."""
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def monotonic(self) -> float:
        """The same as a clock that never steps, in seconds."""
        return time.monotonic() + self._ahead_ms / 1_000

    async def turn(self, duration: str | int | timedelta) -> None:
        """Let so much time pass at once (`"5m"`), as if everybody had been asleep; then those who live tick.

        Leases, holds and messages that nobody has renewed in that time are over, and what was to come later
        is due. Whoever works in a `hold` that is over by now is told as ever, with `LockLost`.
        """
        if isinstance(duration, timedelta):
            passed_ms = round(duration.total_seconds() * 1_000)
        else:
            passed_ms = durations.milliseconds(duration)
        if passed_ms < 0:
            raise BadValue("time does not go back")
        self._ahead_ms += passed_ms
        # A lock that is lost by this cancels its body, which may be who turns the clock.
        await to_the_end(asyncio.create_task(self._turned(), name="vox-mesh-town-clock"))


class Town:
    """Nodes that share one database in memory: `async with Town() as town`.

    All of them live in the event loop in which it is used.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._given_folder = folder
        self.clock = TownClock(self._catch_up)
        self._living: dict[str, tuple[MeshNode, AbstractAsyncContextManager[MeshNode]]] = {}

    async def __aenter__(self) -> Self:
        """Build it."""
        self._folder = self._given_folder or Path(tempfile.mkdtemp(prefix="vox-mesh-town-"))
        self._memory = SharedMemory(lambda: self.clock.now_ms)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Have everybody leave."""
        async with AsyncExitStack() as ending:  # in reverse, and each one whatever became of the others
            if self._given_folder is None:
                ending.callback(shutil.rmtree, self._folder, ignore_errors=True)
            ending.push_async_callback(self._memory.drop)
            for name in self._living:
                ending.push_async_callback(self.leave, name)

    async def node(self, name: str = _DEFAULT_NAME, **settings: Any) -> MeshNode:
        """The node of this name; it begins now, unless it is there. It keeps its key if it comes again.

        `settings` are fields of `Settings`, such as `agent_id`.
        """
        if name not in self._living:
            opening = Mesh.open(self._settings(name, **settings), self._dependencies())
            self._living[name] = await opening.__aenter__(), opening
        elif settings:
            raise BadValue(f"{name} is there already, with settings of its own", hint="have it leave before")
        return self._living[name][0]

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes that live."""
        return sorted(self._living)

    async def leave(self, name: str = _DEFAULT_NAME) -> None:
        """Have a node end as it should: it gives back what it has, and says that it leaves."""
        _, opening = self._taken(name)
        await opening.__aexit__(None, None, None)

    async def kill(self, name: str = _DEFAULT_NAME) -> None:
        """Have a node end in the middle of what it does, without a word to anybody."""
        node, opening = self._taken(name)
        await node.store.close()  # from here on nothing that it does has an effect
        await node.worker.stop(grace=0.0)
        await opening.__aexit__(None, None, None)

    def _taken(self, name: str) -> tuple[MeshNode, AbstractAsyncContextManager[MeshNode]]:
        if name not in self._living:
            there = ", ".join(self._living) or "nobody"
            raise NotKnown(f"no node {name} is there", hint=f"there is {there}")
        return self._living.pop(name)

    def _settings(self, name: str, **settings: Any) -> TownSettings:
        given = {"node_id": name, "home_dir": self._folder / name, "http": False, **settings}
        return TownSettings(**given)

    def _dependencies(self) -> Dependencies:
        clock = self.clock
        return Dependencies(
            lambda: clock.now_ms, clock.monotonic, elapsed=clock.monotonic, memory=self._memory
        )

    async def _catch_up(self) -> None:
        """Have those who live tick, before any of them looks who does; then do what is due."""
        nodes = [node for node, _ in self._living.values()]
        for node in nodes:
            await node.run_once()
        for node in nodes:
            await node.catch_up()
