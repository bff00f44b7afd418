"""FastAPI and Starlette: the mesh opens and closes with the application, and requests reach it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'vox-mesh[fastapi]'")

import httpx
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vox_mesh import JobContext, Mesh, MeshApp, Settings, load_settings
from vox_mesh.errors import BadSettings
from vox_mesh.integrations.fastapi import MeshDep, answer_errors, mesh_lifespan, mesh_of

_PATIENCE_S: Final = 30.0

jobs = MeshApp()


@jobs.job("words.count")
async def count(context: JobContext, text: str) -> int:
    """Count words."""
    return len(text.split())


def application(settings: Settings, *, runs_jobs: bool = True) -> FastAPI:
    """Return an application that schedules jobs, reads them and takes locks."""
    app = FastAPI(lifespan=mesh_lifespan(jobs, settings=settings, runs_jobs=runs_jobs))
    answer_errors(app)

    @app.post("/jobs")
    async def create(text: str) -> dict[str, str]:
        return {"job_id": (await count.schedule(text)).job_id}

    @app.get("/jobs/{job_id}")
    async def read(job_id: str) -> dict[str, Any]:
        return {"words": await count.handle(job_id).result(timeout=_PATIENCE_S)}

    @app.get("/node")
    async def node(mesh: MeshDep) -> dict[str, str]:
        return {"node_id": mesh.identity.node_id}

    @app.post("/locks/{key}")
    async def lock(key: str, agent: str, mesh: MeshDep) -> dict[str, int]:
        return {"token": (await mesh.locks.acquire(key, agent=agent)).fence_token}

    return app


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Run the lifespan of an application as a server does, and return a client of it."""
    async with AsyncExitStack() as stack:
        state = await stack.enter_async_context(app.router.lifespan_context(app))

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        transport = httpx.ASGITransport(app=with_state)
        yield await stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://test", timeout=_PATIENCE_S)
        )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return the settings of a mesh in a file."""
    return load_settings(_env_file=None, enabled=True, http=False, home_dir=tmp_path / "vox")


async def test_a_request_schedules_a_job_that_the_application_runs(settings: Settings) -> None:
    async with served(application(settings)) as client:
        job_id = (await client.post("/jobs", params={"text": "to be or not"})).json()["job_id"]
        assert (await client.get(f"/jobs/{job_id}")).json() == {"words": 4}


async def test_the_application_is_a_node_until_its_end(settings: Settings) -> None:
    async with served(application(settings)) as client:
        node_id = (await client.get("/node")).json()["node_id"]
        async with Mesh.open_command(settings) as mesh:
            assert [each.node_id for each in await mesh.nodes.live_nodes_from_db()] == [node_id]
    async with Mesh.open_command(settings) as mesh:
        assert await mesh.nodes.live_nodes_from_db() == []


async def test_jobs_are_left_to_workers_unless_the_application_runs_them(settings: Settings) -> None:
    async with served(application(settings, runs_jobs=False)) as client:
        job_id = (await client.post("/jobs", params={"text": "to be"})).json()["job_id"]
        async with Mesh.open_command(settings) as mesh:
            assert (await mesh.jobs.find(job_id)).state == "pending"


async def test_errors_are_answered_as_a_node_answers_them(settings: Settings) -> None:
    async with served(application(settings, runs_jobs=False)) as client:
        assert (await client.post("/locks/report", params={"agent": "ada"})).status_code == 200
        held = await client.post("/locks/report", params={"agent": "bob"})
        assert (held.status_code, held.json()["code"]) == (409, "lock_held")
        assert held.headers["content-type"] == "application/problem+json"
        assert [each["holder_agent"] for each in held.json()["holders"]] == ["ada"]
        missing = await client.get("/jobs/123456789abc")
        assert (missing.status_code, missing.json()["code"]) == (404, "not_known")


async def test_without_the_lifespan_the_error_says_what_to_do() -> None:
    app = FastAPI()

    @app.get("/node")
    async def node(mesh: MeshDep) -> None: ...

    async def read(request: Request) -> Response:
        return Response(mesh_of(request).identity.node_id)

    for each in (app, Starlette(routes=[Route("/node", read)])):
        transport = httpx.ASGITransport(app=each)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            with pytest.raises(BadSettings, match="the application has no mesh"):
                await client.get("/node")
