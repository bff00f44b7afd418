"""An app: the typed jobs of a program, declared before a mesh is open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Unpack

from vox_mesh.errors import BadValue
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.typed.job_decorator import JobDecorator
from vox_mesh.jobs.typed.job_options import JobOptions
from vox_mesh.jobs.typed.running_job import running_job_of
from vox_mesh.jobs.worker.handlers import HandlerSet
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.settings import Settings


class MeshApp:
    """The jobs of a program: `mesh = MeshApp()` in a module, then `@mesh.job("report.build")` on functions.

    `vox-mesh worker run --app module:mesh` runs them. To schedule them, open the app.
    """

    def __init__(self) -> None:
        self.handlers: Final = HandlerSet()
        """The handlers of the jobs. Other handlers may be added, with `@mesh.handlers.handles(PATTERN)`."""
        self._mesh: Mesh | None = None

    def job(
        self,
        kind: str,
        *,
        concurrency: int | None = None,
        max_running: int | None = None,
        **options: Unpack[JobOptions],
    ) -> JobDecorator:
        """Make a typed job of a function: `@mesh.job("report.build", retries=5)`.

        `concurrency` limits the running jobs of one worker, `max_running` those of the whole mesh.
        """
        return JobDecorator(
            kind, options, self._find_jobs, self.handlers, concurrency=concurrency, max_running=max_running
        )

    @asynccontextmanager
    async def open(
        self, settings: Settings | None = None, dependencies: Dependencies | None = None
    ) -> AsyncIterator[MeshNode]:
        """Join a mesh as `Mesh.open` does. Its jobs are scheduled there until the end of the block.

        The node runs them too while `mesh.worker.running()` does.
        """
        async with Mesh.open(settings, dependencies) as mesh:
            mesh.worker.handlers.include(self.handlers)
            with self.using(mesh):
                yield mesh

    @contextmanager
    def using(self, mesh: Mesh) -> Iterator[None]:
        """Schedule the jobs on this mesh until the end of the block."""
        before, self._mesh = self._mesh, mesh
        try:
            yield
        finally:
            self._mesh = before

    def _find_jobs(self) -> Jobs:
        """Return the jobs of the mesh in which a job of this app runs, or else of the one that is open.

        In a job of another app, an app without an open mesh uses the mesh of that job.
        """
        context = running_job_of(self.handlers, is_open=self._mesh is not None)
        if context is not None:
            return context.jobs
        if self._mesh is None:
            raise BadValue(
                "the app has no open mesh",
                hint="schedule inside `async with app.open():`, or use `job.on(mesh)`",
            )
        return self._mesh.jobs
