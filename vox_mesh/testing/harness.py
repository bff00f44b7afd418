"""A mesh in memory for tests: nodes start, crash and restart in one process, by a clock the test advances."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from vox_mesh.errors import BadValue, NotKnown
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.durations import Duration, seconds_of
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.observability.deprecation import warn_renamed
from vox_mesh.settings import Settings
from vox_mesh.store.engines.memory import SharedMemory
from vox_mesh.store.engines.thread import to_the_end

_DEFAULT_NAME: Final = "local"


class IsolatedSettings(Settings):
    """Settings that ignore the environment variables and `.env` files of the machine."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the constructor's arguments as the only source."""
        return (init_settings,)


class ManualClock:
    """The time of a harness's nodes and database: it runs on its own, and `advance` skips ahead."""

    def __init__(self, on_advance: Callable[[], Coroutine[None, None, None]]) -> None:
        self._on_advance = on_advance
        self._ahead_ms = 0

    @property
    def now_ms(self) -> int:
        """The current time, in milliseconds since 1970."""
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def monotonic(self) -> float:
        """Return the seconds of a clock that is never set back."""
        return time.monotonic() + self._ahead_ms / 1_000

    async def advance(self, duration: Duration) -> None:
        """Skip this much time (`"5m"`) for all nodes and the database; then the live nodes do what is due.

        Leases, locks and messages that were not renewed within that time have expired. A body that runs under
        a lock that expired is cancelled with `LockLost`, as usual.
        """
        passed_ms = round(seconds_of("duration", duration) * 1_000)
        if passed_ms < 0:
            raise BadValue(f"duration must not be negative, got {duration}")
        self._ahead_ms += passed_ms
        # A lock that is lost by this cancels its body, which may be what advances the clock.
        await to_the_end(asyncio.create_task(self._on_advance(), name="vox-mesh-manual-clock"))

    async def turn(self, duration: Duration) -> None:
        """Call `advance`. Deprecated."""
        warn_renamed("ManualClock.turn", "ManualClock.advance")
        await self.advance(duration)


class MeshHarness:
    """Nodes that share one database in memory: `async with MeshHarness() as harness`.

    All of them run in the event loop that enters it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._given_folder = folder
        self.clock = ManualClock(self._catch_up)
        self._running: dict[str, tuple[MeshNode, AbstractAsyncContextManager[MeshNode]]] = {}

    async def __aenter__(self) -> Self:
        """Create the database."""
        self._folder = self._given_folder or Path(tempfile.mkdtemp(prefix="vox-mesh-harness-"))
        self._memory = SharedMemory(lambda: self.clock.now_ms)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop all nodes and drop the database."""
        async with AsyncExitStack() as stack:  # in reverse order, and each one even if another fails
            if self._given_folder is None:
                stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            stack.push_async_callback(self._memory.drop)
            for name in self._running:
                stack.push_async_callback(self.leave, name)

    async def node(self, name: str = _DEFAULT_NAME, **settings: Any) -> MeshNode:
        """Return the running node of this name, or start it. A node that starts again keeps its key.

        `settings` are fields of `Settings`, such as `agent_id`; only a node that is not running takes them.
        """
        if name not in self._running:
            opening = Mesh.open(self._settings(name, **settings), self._dependencies())
            self._running[name] = await opening.__aenter__(), opening
        elif settings:
            raise BadValue(
                f"node {name} is already running, with its own settings", hint=f"call leave({name!r}) first"
            )
        return self._running[name][0]

    @property
    def nodes(self) -> list[str]:
        """The names of the running nodes."""
        return sorted(self._running)

    async def leave(self, name: str = _DEFAULT_NAME) -> None:
        """Shut a node down gracefully: it releases what it holds and leaves the mesh."""
        _, opening = self._remove(name)
        await opening.__aexit__(None, None, None)

    async def kill(self, name: str = _DEFAULT_NAME) -> None:
        """Stop a node as a crash would: nothing is released, and no other node is notified."""
        node, opening = self._remove(name)
        await node.store.close()  # from here on none of its actions has an effect
        await node.worker.stop(grace=0.0)
        await opening.__aexit__(None, None, None)

    def _remove(self, name: str) -> tuple[MeshNode, AbstractAsyncContextManager[MeshNode]]:
        if name not in self._running:
            running = ", ".join(self._running) or "none"
            raise NotKnown(f"node {name} is not running", hint=f"running nodes: {running}")
        return self._running.pop(name)

    def _settings(self, name: str, **settings: Any) -> IsolatedSettings:
        given = {"node_id": name, "home_dir": self._folder / name, "http": False, **settings}
        return IsolatedSettings(**given)

    def _dependencies(self) -> Dependencies:
        clock = self.clock
        return Dependencies(
            lambda: clock.now_ms, clock.monotonic, elapsed=clock.monotonic, memory=self._memory
        )

    async def _catch_up(self) -> None:
        """Have every running node send a heartbeat before any node checks the others; then do what is due."""
        nodes = [node for node, _ in self._running.values()]
        for node in nodes:
            await node.run_once()
        for node in nodes:
            await node.catch_up()
