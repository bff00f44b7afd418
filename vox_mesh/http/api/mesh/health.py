"""The health of the node that answers."""

from __future__ import annotations

from typing import Final, cast

from vox_mesh.http.api.operations import Operations
from vox_mesh.http.principals.needs import OWNER
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.live.health import HealthView, HealthyNode, health_of

HEALTH: Final = Operations("health")


@HEALTH.get("/v1/health", needs=OWNER)
async def show_health(mesh: MeshServices) -> HealthView:
    """Show the health of this node: checks, replica, breaker, spool, writes, latencies and its process."""
    return await health_of(mesh, cast("HealthyNode", mesh))  # only nodes serve the API
