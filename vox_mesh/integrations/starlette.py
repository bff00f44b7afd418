"""Starlette: the mesh is open while the application runs, and errors are answered as problem documents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Final, TypedDict

from vox_mesh.app import MeshApp
from vox_mesh.errors import BadSettings, MeshError
from vox_mesh.http.problems import problem_of
from vox_mesh.jobs.worker.capacity import DEFAULT_CONCURRENCY
from vox_mesh.model.base.durations import Duration
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.settings import Settings

try:
    from starlette.applications import Starlette
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import Response
except ModuleNotFoundError as missing:
    raise BadSettings("Starlette is not installed", hint="pip install 'vox-mesh[starlette]'") from missing

_GRACE_S: Final = 5.0


class MeshState(TypedDict):
    """What a lifespan adds to the state of requests."""

    mesh: MeshNode


Lifespan = Callable[[Starlette], AbstractAsyncContextManager[MeshState]]


def mesh_lifespan(
    app: MeshApp | None = None,
    *,
    settings: Settings | None = None,
    dependencies: Dependencies | None = None,
    runs_jobs: bool = False,
    concurrency: int = DEFAULT_CONCURRENCY,
    grace: Duration = _GRACE_S,
) -> Lifespan:
    """Return a lifespan, which joins the mesh when the application starts and leaves it at its end.

    The typed jobs of `app` are scheduled on this mesh. With `runs_jobs`, this process runs them too; at the
    end, jobs that are unfinished after `grace` are released.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[MeshState]:
        opened = app or MeshApp()
        async with AsyncExitStack() as stack:
            mesh = await stack.enter_async_context(opened.open(settings, dependencies))
            if runs_jobs:
                await stack.enter_async_context(mesh.worker.running(concurrency=concurrency, grace=grace))
            yield {"mesh": mesh}

    return lifespan


def mesh_of(connection: HTTPConnection) -> MeshNode:
    """Return the mesh of a request or WebSocket. Raises `BadSettings` without the lifespan."""
    mesh = getattr(connection.state, "mesh", None)
    if not isinstance(mesh, MeshNode):
        raise BadSettings(
            "the application has no mesh",
            hint="create it with lifespan=mesh_lifespan(...), and run its lifespan",
        )
    return mesh


def answer_errors(application: Starlette) -> None:
    """Answer each `MeshError` as a node does: with a problem document, and the status of its code."""
    application.add_exception_handler(MeshError, _answer)


async def _answer(_: Request, error: Exception) -> Response:
    assert isinstance(error, MeshError)
    answer = problem_of(error).response
    return Response(answer.body, answer.status, dict(answer.headers))
