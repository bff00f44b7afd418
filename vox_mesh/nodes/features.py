"""Features: what this node may do while nodes of an older version are alive in the same mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from vox_mesh.model.nodes.liveness import DEAD_AFTER_TICKS
from vox_mesh.nodes.nodes import STALE_MS, Nodes
from vox_mesh.store.schema.schema import VERSION
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

_SQL: Final = named("nodes")
_CACHE_S: Final = 5.0


class Features:
    """Answer whether every live node knows a schema version.

    Ask before you write what older code would misread. The answer is up to 5 seconds old. It can't foresee a
    node that is started with older code afterwards, and ignores commands, which announce no version.
    """

    def __init__(self, store: Store, nodes: Nodes, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._nodes = nodes
        self._monotonic = monotonic
        self._oldest = VERSION
        self._cached_until: float | None = None

    async def is_known_to_all(self, version: int) -> bool:
        """Return whether no live node runs code for a schema version below this one."""
        return await self.oldest_live_version() >= version

    async def oldest_live_version(self) -> int:
        """Return the lowest schema version that a live node announced; with no live node, that of this code.

        A node counts as live until it has left, or is dead and has been silent for a minute.
        """
        if self._cached_until is None or self._monotonic() >= self._cached_until:
            now_ms = await self._nodes.now_ms()
            values = (*self._store.tenant[:2], now_ms, STALE_MS, DEAD_AFTER_TICKS)
            oldest = (await self._store.read(_SQL["oldest_live_version"], values)).value
            self._oldest = VERSION if oldest is None else min(VERSION, oldest)
            self._cached_until = self._monotonic() + _CACHE_S
        return self._oldest
