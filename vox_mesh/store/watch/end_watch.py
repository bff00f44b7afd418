"""Wait for many things to end, with one query for all of them after each commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextvars import Context
from typing import Final

from vox_mesh.errors import MeshError, StaleIncarnation, StoreClosed
from vox_mesh.store.store import Store

_PAUSE_FACTOR: Final = 4  # the pause before the next query, as a multiple of the last one's duration
_MAX_PAUSE_S: Final = 0.05

StillOpen = Callable[[Sequence[str]], Awaitable[Collection[str]]]
"""Returns the subset of keys whose things exist and have not ended."""


class EndWatch:
    """Wakes each waiter when its thing has ended or was removed. Other commits wake no waiter."""

    def __init__(self, store: Store, still_open: StillOpen) -> None:
        self._store = store
        self._still_open = still_open
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._changes = store.changes()
        self._task: asyncio.Task[None] | None = None

    async def wait_until_ended(self, key: str) -> None:
        """Wait until the thing with this key has ended or was removed.

        Raises:
            StoreClosed: The store was closed meanwhile.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(future)
        self._query_soon()
        try:
            await future
        finally:
            self._waiting[key].discard(future)
            if not self._waiting[key]:
                del self._waiting[key]
            if not self._waiting:
                self._changes.wake()  # listening for commits has a cost on some backends

    def _query_soon(self) -> None:
        """Query soon for a new waiter: its thing may have ended already."""
        if self._task is None or self._task.done():
            running = self._store.faults.keep_running("endings", self._run)
            self._task = asyncio.create_task(running, name="vox-mesh-endings", context=Context())
        else:
            self._changes.wake()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._changes = self._store.but_heartbeats.changes()
        try:
            async for turn in self._changes:
                if not self._waiting:
                    return
                began = loop.time()
                with turn.retry_if_unavailable():
                    await self.run_once()
                took = loop.time() - began
                await asyncio.sleep(min(_PAUSE_FACTOR * took, _MAX_PAUSE_S))  # a busy mesh commits constantly
        except (StaleIncarnation, StoreClosed) as error:
            self._fail(error)

    async def run_once(self) -> None:
        """Wake the waiters whose things have ended."""
        asked = list(self._waiting)
        still_open = set(await self._still_open(asked))
        for key in asked:
            if key not in still_open:
                for future in self._waiting.get(key, ()):
                    if not future.done():
                        future.set_result(None)

    def _fail(self, error: MeshError) -> None:
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)
