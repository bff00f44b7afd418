"""The mesh for code without `await`: `with Mesh.open() as mesh`, and every call blocks until it is done.

The async mesh runs in an event loop in its own thread. Its coroutines become blocking calls here, `async
with` becomes `with`, and `async for` becomes `for`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from vox_mesh.client import AgentClient as AsyncAgentClient
from vox_mesh.errors import BadValue
from vox_mesh.mesh import Mesh as AsyncMesh
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.observability.deprecation import warn_renamed
from vox_mesh.settings import Settings
from vox_mesh.sync.blocking import Block, Blocking, BlockingMesh, run_in_loop, unwrapped
from vox_mesh.sync.loop_thread import LoopThread, timeout

if TYPE_CHECKING:
    from vox_mesh.jobs.worker.handlers import HandlerSet
    from vox_mesh.sync.typed_jobs import BlockingJobDecorator

T = TypeVar("T")

__all__ = ["AgentClient", "ManualClock", "Mesh", "MeshApp", "MeshHarness", "MeshNode", "opened", "timeout"]

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


class MeshApp:
    """The typed jobs of a program, declared before a mesh is open, for code without `await`."""

    def __init__(self) -> None:
        from vox_mesh.app import MeshApp as AsyncMeshApp  # imported late: few scripts have typed jobs

        self._app = AsyncMeshApp()
        self._mesh: BlockingMesh | None = None

    @property
    def handlers(self) -> HandlerSet:
        """Return the handlers of the jobs. Others may be added, with `@mesh.handlers.handles(PATTERN)`."""
        return self._app.handlers

    def job(self, kind: str, **options: Any) -> BlockingJobDecorator:
        """Make a typed job of a function: `@mesh.job("report.build", retries=5)`."""
        from vox_mesh.sync.typed_jobs import (
            BlockingJobDecorator,  # imported late: few scripts have typed jobs
        )

        return BlockingJobDecorator(self._app.job(kind, **options), self._call)

    @contextmanager
    def open(
        self, settings: Settings | None = None, dependencies: Dependencies | None = None
    ) -> Iterator[Any]:
        """Join a mesh as `Mesh.open` does. Its jobs are scheduled there until the end of the block."""
        with opened(lambda: self._app.open(settings, dependencies)) as mesh, self.using(mesh):
            yield mesh

    @contextmanager
    def using(self, mesh: Any) -> Iterator[None]:
        """Schedule the jobs on this mesh until the end of the block."""
        before, self._mesh = self._mesh, mesh
        try:
            with self._app.using(unwrapped(mesh)):
                yield
        finally:
            self._mesh = before

    def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Call an async function in the loop of the app's running job, or else in that of the open mesh."""
        from vox_mesh.jobs.typed.running_job import (
            running_job_of,
        )  # imported late: few scripts have typed jobs
        from vox_mesh.sync.typed_jobs import call_in_job

        context = running_job_of(self.handlers, is_open=self._mesh is not None)
        if context is not None:
            return call_in_job(context, work)
        if self._mesh is None:
            raise BadValue("the app has no open mesh", hint="schedule inside `with app.open():`")
        return run_in_loop(self._mesh, work)


class AgentClient:
    """Opens the client of an agent, which speaks to a node, for code without `await`."""

    @staticmethod
    def open(
        address: str, agent: str, *, key_file: Path | None = None, bearer: str | None = None
    ) -> AbstractContextManager[Any]:
        """Open a client of the node at `unix:PATH`, `http://HOST:PORT` or `https://HOST`."""
        return opened(lambda: AsyncAgentClient.open(address, agent, key_file=key_file, bearer=bearer))
