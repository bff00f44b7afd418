"""Subscriptions of a session of an older revision; notices of changes go to its own channel, in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Final

from vox_mesh.errors import BadValue
from vox_mesh.hosts.mcp.resources.watches import ResourceWatches

MAX_URIS: Final = 16
_SEND_TIMEOUT_S: Final = 10.0

_log = logging.getLogger(__name__)

Send = Callable[[str], Awaitable[None]]
"""Sends a client that a resource was updated."""


class SessionSubscriptions:
    """The resources that one session has subscribed to. A slow client gets one notice for many changes."""

    def __init__(self, watches: ResourceWatches, send: Send, agent: str | None) -> None:
        self._watches = watches
        self._agent = agent
        self._send = send
        self._uris: set[str] = set()
        self._changed: dict[str, None] = {}
        self._has_changed = asyncio.Event()
        self._task = asyncio.create_task(self._send_all(), name="vox-mesh-mcp-session", context=Context())

    async def add(self, uri: str) -> None:
        """Subscribe to a resource. Raises `BadValue` if it can't be watched, or there are too many."""
        if uri in self._uris:
            return
        if len(self._uris) >= MAX_URIS:
            raise BadValue(
                f"subscriptions of a session must be at most {MAX_URIS}", hint="unsubscribe from others"
            )
        self._uris.add(uri)
        try:
            await self._watches.watch(uri, self._agent)
        except BaseException:
            self._uris.discard(uri)
            raise

    def remove(self, uri: str) -> None:
        """Unsubscribe from a resource."""
        if uri in self._uris:
            self._uris.discard(uri)
            self._changed.pop(uri, None)
            self._watches.unwatch(uri, self._agent)

    def note(self, uri: str) -> None:
        """Notify the client of a change, if it has subscribed to the resource."""
        if uri in self._uris:
            self._changed[uri] = None
            self._has_changed.set()

    async def close(self) -> None:
        """Unsubscribe from everything."""
        for uri in list(self._uris):
            self.remove(uri)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _send_all(self) -> None:
        while await self._has_changed.wait():
            self._has_changed.clear()
            changed, self._changed = self._changed, {}
            for uri in changed:
                try:
                    async with asyncio.timeout(_SEND_TIMEOUT_S):
                        await self._send(uri)
                except Exception as error:  # the client has left, or does not read
                    _log.info("resource update not sent: %s", type(error).__name__)
