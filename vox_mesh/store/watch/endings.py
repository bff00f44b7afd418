"""Endings: wait for the ends of many things, with one question for all of them after a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Final

from vox_mesh.errors import DatabaseUnavailable, MeshError, StaleIncarnation, StoreClosed
from vox_mesh.store.store import Store

_AGAIN_S: Final = 1.0
_CALM: Final = 4  # times as long as the last look took passes before the next
_LONGEST_CALM_S: Final = 0.05

StillOpen = Callable[[Sequence[str]], Awaitable[Collection[str]]]
"""Returns those of some keys whose things exist and have not ended."""


class Endings:
    """Wakes each waiter when its thing has ended, or is gone; a commit that ends nothing wakes none."""

    def __init__(self, store: Store, still_open: StillOpen) -> None:
        self._store = store
        self._still_open = still_open
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._seen = -1  # the count of changes before the last look
        self._pause: asyncio.Timeout | None = None
        self._task: asyncio.Task[None] | None = None

    async def ended(self, key: str) -> None:
        """Wait until the thing with this key has ended, or is gone.

        Raises:
            StoreClosed: The store was closed meanwhile.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(future)
        self._look_soon()
        try:
            await future
        finally:
            self._waiting[key].discard(future)
            if not self._waiting[key]:
                del self._waiting[key]
            if not self._waiting:
                self._interrupt()  # to listen for commits is not free everywhere

    def _look_soon(self) -> None:
        """Look for one more: it may have ended before it was waited for."""
        self._seen = -1
        if self._task is None or self._task.done():
            running = self._store.faults.keep_running("endings", self._run)
            self._task = asyncio.create_task(running, name="vox-mesh-endings", context=Context())
        else:
            self._interrupt()

    def _interrupt(self) -> None:
        if self._pause is not None and not self._pause.expired():
            self._pause.reschedule(0.0)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            began = loop.time()
            self._seen = self._store.change_count
            try:
                await self.run_once()
                is_away = False
            except DatabaseUnavailable:  # it goes on when the database is back
                is_away = True
            except (StaleIncarnation, StoreClosed) as error:
                self._fail(error)
                return
            took = loop.time() - began
            await asyncio.sleep(min(_CALM * took, _LONGEST_CALM_S))  # a busy mesh commits all the time
            await self._rest(_AGAIN_S if is_away or not self._store.is_in_touch else None)

    async def _rest(self, pause: float | None) -> None:
        """Wait for a commit, for one more waiter, or for the end of a time."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause) as self._pause:
                    await self._store.changed(self._seen)
        except StoreClosed as error:
            self._fail(error)
        finally:
            self._pause = None

    async def run_once(self) -> None:
        """Wake those whose things have ended."""
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
