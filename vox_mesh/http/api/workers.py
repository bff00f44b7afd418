"""Workers: capacity, load and draining."""

from __future__ import annotations

from typing import Final

from vox_mesh.http.api.operations import Operations, Text
from vox_mesh.http.api.pages import Page, PageAsked
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.jobs import WorkerView, find_worker, workers

WORKERS: Final = Operations("workers")


@WORKERS.get("/v1/workers")
async def list_workers(mesh: MeshServices, query: PageAsked) -> Page[WorkerView]:
    """List the workers: the kinds they work on, how many jobs they have room for, and have in hand."""
    return query.page_of(await workers(mesh), lambda worker: worker.node_id)


@WORKERS.put("/v1/workers/{node_id}/drain")
async def drain_worker(mesh: MeshServices, node_id: Text) -> WorkerView:
    """Have a node take no more jobs, until this is undone; what it has in hand goes on."""
    await mesh.job_kinds.drain(node_id)
    return await find_worker(mesh, node_id)


@WORKERS.delete("/v1/workers/{node_id}/drain")
async def undrain_worker(mesh: MeshServices, node_id: Text) -> WorkerView:
    """Have a node take jobs again."""
    await mesh.job_kinds.undrain(node_id)
    return await find_worker(mesh, node_id)
