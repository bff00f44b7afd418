"""The mesh for code without `await`: `with Mesh.open() as mesh`, and every call blocks until it is done.

The async mesh runs in an event loop in its own thread. Its coroutines become blocking calls here, `async
with` becomes `with`, and `async for` becomes `for`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

from vox_mesh.client import AgentClient as AsyncAgentClient
from vox_mesh.mesh import Mesh as AsyncMesh
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.observability.deprecation import warn_renamed
from vox_mesh.settings import Settings
from vox_mesh.sync.blocking import Block, Blocking
from vox_mesh.sync.loop_thread import LoopThread, timeout

__all__ = ["AgentClient", "ManualClock", "Mesh", "MeshHarness", "MeshNode", "opened", "timeout"]

# For annotations: to a type checker these are different classes, described in the stub `__init__.pyi`.
MeshNode = MeshHarness = ManualClock = Blocking

_DEPRECATED: Final = {"Town": "MeshHarness", "TownClock": "ManualClock"}


def __getattr__(name: str) -> Any:
    if name not in _DEPRECATED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_renamed(f"{__name__}.{name}", f"{__name__}.{_DEPRECATED[name]}")
    return Blocking


@contextmanager
def opened(manager: Callable[[], AbstractAsyncContextManager[Any]]) -> Iterator[Any]:
    """Open any async context manager of this package in its own event loop, for the time of the block."""
    with LoopThread() as loop, Block(loop, manager()) as value:
        yield value


class Mesh:
    """Opens a mesh, as a node or as a command, for code without `await`."""

    @staticmethod
    def open(
        settings: Settings | None = None, dependencies: Dependencies | None = None
    ) -> AbstractContextManager[Any]:
        """Join the mesh that the settings choose, as a node that sends heartbeats until the end."""
        return opened(lambda: AsyncMesh.open(settings, dependencies))

    @staticmethod
    def open_command(
        settings: Settings, dependencies: Dependencies | None = None
    ) -> AbstractContextManager[Any]:
        """Read from the mesh, or write to it, without joining it as a node."""
        return opened(lambda: AsyncMesh.open_command(settings, dependencies))


class AgentClient:
    """Opens the client of an agent, which speaks to a node, for code without `await`."""

    @staticmethod
    def open(
        address: str, agent: str, *, key_file: Path | None = None, bearer: str | None = None
    ) -> AbstractContextManager[Any]:
        """Open a client of the node at `unix:PATH`, `http://HOST:PORT` or `https://HOST`."""
        return opened(lambda: AsyncAgentClient.open(address, agent, key_file=key_file, bearer=bearer))
