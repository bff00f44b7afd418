"""Watches of resources: one task looks after every commit which of the watched ones have changed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from contextvars import Context
from dataclasses import dataclass
from typing import Final

from vox_mesh.errors import BadValue, StoreClosed
from vox_mesh.hosts.mcp.resources.addresses import ResourceAddress
from vox_mesh.hosts.mcp.resources.versions import ReadVersion, version_reader
from vox_mesh.runtime.services import MeshServices

MAX_WATCHED: Final = 256
MAX_OF_EACH: Final = 64
"""The subscriptions of one agent, in all its sessions: others need some, too."""

_DEBOUNCE_S: Final = 0.05
"""A busy mesh commits all the time; one look serves the commits of this time."""

Publish = Callable[[str], Awaitable[None]]
"""Lets subscribers know that the resource of a URI has changed."""

_TASK: Final = "mcp-resources"


@dataclass
class _Watched:
    """A watched resource, and for how many subscriptions."""

    read_version: ReadVersion
    version: Hashable
    count: int = 0


class ResourceWatches:
    """Watches the resources that are subscribed to, as long as they are."""

    def __init__(self, mesh: MeshServices, publish: Publish, *, most: int = MAX_WATCHED) -> None:
        self._mesh = mesh
        self._publish = publish
        self._most = most
        self._watched: dict[str, _Watched] = {}
        self._counts: Counter[str | None] = Counter()
        self._task: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """The number of watched resources."""
        return len(self._watched)

    async def watch(self, uri: str, agent: str | None) -> None:
        """Watch a resource for an agent from now on.

        Raises `BadValue` if it has no address, or too many are watched.
        """
        reader = version_reader(self._mesh, ResourceAddress.of(uri))
        if self._counts[agent] >= MAX_OF_EACH:
            raise BadValue(
                f"subscriptions of an agent must be at most {MAX_OF_EACH} at a node",
                hint="end subscriptions that are not needed",
            )
        self._counts[agent] += 1
        try:
            await self._add(uri, reader)
        except BaseException:
            self._discount(agent)
            raise

    async def _add(self, uri: str, reader: ReadVersion) -> None:
        if uri not in self._watched:
            version = await reader()
            if uri not in self._watched and len(self._watched) >= self._most:
                raise BadValue(
                    f"watched resources must be at most {self._most} at a node",
                    hint="end subscriptions that are not needed",
                )
            self._watched.setdefault(uri, _Watched(reader, version))
        self._watched[uri].count += 1
        if self._task is None or self._task.done():
            look = self._mesh.store.faults.keep_running(_TASK, self._look, fatal=(StoreClosed,))
            # It outlives the request that starts it, and must not act for its agent.
            self._task = asyncio.create_task(look, name=f"vox-mesh-{_TASK}", context=Context())

    def _discount(self, agent: str | None) -> None:
        self._counts[agent] -= 1
        if self._counts[agent] <= 0:
            del self._counts[agent]

    def unwatch(self, uri: str, agent: str | None) -> None:
        """End one watch of a resource for an agent."""
        if (watched := self._watched.get(uri)) is None:
            return
        self._discount(agent)
        watched.count -= 1
        if watched.count <= 0:
            del self._watched[uri]
        if not self._watched and self._task is not None:
            self._task.cancel()
            self._task = None

    async def close(self) -> None:
        """Stop watching."""
        self._watched.clear()
        self._counts.clear()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _look(self) -> None:
        async for turn in self._mesh.store.changes(debounce_s=_DEBOUNCE_S):
            with turn.retry_if_unavailable():
                for uri, watched in list(self._watched.items()):
                    version = await watched.read_version()
                    if version != watched.version:
                        watched.version = version
                        await self._publish(uri)
