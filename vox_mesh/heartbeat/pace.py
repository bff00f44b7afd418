"""How often a node sends heartbeats: each one goes to the replicas of all nodes of a mesh."""

from __future__ import annotations

from typing import Final

from vox_mesh.model.nodes.features import SPARING_NODES
from vox_mesh.model.nodes.liveness import DEAD_AFTER_TICKS, spare_ticks
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

_SQL: Final = named("nodes")


class HeartbeatPace:
    """Decides how much longer than a tick this node may take to its next heartbeat."""

    def __init__(self, store: Store, clock: MeshClock, tick_s: float) -> None:
        self._store = store
        self._clock = clock
        self._tick_ms = tick_s * 1_000
        self.spare_ms = 0
        """How much longer; 0 in a small mesh, and while a node of an older version is live."""
        self.is_clock_doubted = False
        """Whether a node has just noticed a step of the database's clock, which heartbeats decide on."""

    async def refresh(self) -> None:
        """Read what decides it from the replica: without one, asking would cost as much as a heartbeat."""
        if self._store.replica_status is None or not self._clock.is_set:
            return
        values = (*self._store.mesh_id, self._clock.now_ms, DEAD_AFTER_TICKS)
        nodes, oldest, is_doubted = (await self._store.read(_SQL["pace"], values))[0]
        is_known = oldest is not None and oldest >= SPARING_NODES
        self.spare_ms = round(spare_ticks(nodes) * self._tick_ms) if is_known else 0
        self.is_clock_doubted = bool(is_doubted)
