"""The other nodes that a page may turn to when its own is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from vox_mesh.errors import MeshError
from vox_mesh.http.console.headers import MAX_SOURCES, source_of
from vox_mesh.runtime.services import MeshServices

_log = logging.getLogger(__name__)

_CACHE_S: Final = 5.0
_READ_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True)
class PeerView:
    """Another live node, and the address that it has signed."""

    node_id: str
    url: str


class ConsolePeers:
    """The live nodes whose signed addresses are genuine, remembered for a few seconds.

    A page sends people there, who may then sign in: so a row that someone has planted must not count.
    """

    def __init__(self, mesh: MeshServices, monotonic: Callable[[], float]) -> None:
        self._mesh = mesh
        self._monotonic = monotonic
        self._known: list[PeerView] = []
        self._until = float("-inf")
        self._reading = asyncio.Lock()

    async def all(self) -> list[PeerView]:
        """Return the nodes; while the database does not answer, the last known ones."""
        async with self._reading:
            if self._monotonic() >= self._until:
                try:
                    async with asyncio.timeout(_READ_TIMEOUT_S):
                        self._known = await self._read()
                except (MeshError, TimeoutError) as error:
                    _log.debug("other nodes not read: %s", error)
                self._until = self._monotonic() + _CACHE_S
        return self._known

    async def _read(self) -> list[PeerView]:
        found: list[PeerView] = []
        for node in await self._mesh.nodes.live_nodes_from_db():
            peer = await self._mesh.messages.directory.find_node(node.node_id)
            url = None if peer is None or peer.url is None else source_of(peer.url)
            if url is not None:
                found.append(PeerView(node.node_id, url))
            if len(found) >= MAX_SOURCES:
                break
        return found
