"""The database, and the overview of the mesh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vox_mesh.http.api.operations import Operations
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.engine import EngineFacts
from vox_mesh.store.replica.replica import ReplicaStatus
from vox_mesh.store.spool.spool import SpoolStatus
from vox_mesh.views.overview import Overview, overview
from vox_mesh.views.retention import RetentionView, retention

DATABASE: Final = Operations("database")


@dataclass(frozen=True)
class StoreView:
    """The state of the database from this node. Without `engine`, the database does not answer."""

    home: str
    scope_id: str
    repository_id: str
    schema_version: int
    breaker: str
    waiting: int
    engine: EngineFacts | None
    spool: SpoolStatus | None
    replica: ReplicaStatus | None


@DATABASE.get("/v1/db")
async def show_database(mesh: MeshServices) -> StoreView:
    """Show the state of the database, and of this node's replica, spool and circuit breaker."""
    status, (scope_id, repository_id, *_) = await mesh.store.status(), mesh.store.writer_id
    return StoreView(
        status.backend.value,
        scope_id,
        repository_id,
        status.schema_version,
        status.breaker,
        status.waiting,
        status.engine,
        status.spool,
        status.replica,
    )


@DATABASE.get("/v1/retention")
async def show_retention(mesh: MeshServices) -> RetentionView:
    """Show how long rows are kept, and how far pruning is."""
    return await retention(mesh)


@DATABASE.get("/v1/overview")
async def show_overview(mesh: MeshServices) -> Overview:
    """Show the current nodes, jobs, locks, messages and conflicts."""
    return await overview(mesh)
