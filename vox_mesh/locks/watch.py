"""Watching locks: who holds what, told again whenever that has changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Final

from vox_mesh.errors import DatabaseUnavailable
from vox_mesh.model.locks.records import Holder
from vox_mesh.store.store import Store

_LOOK_S: Final = 1.0
_CALM_S: Final = 0.02


async def watched(
    store: Store, holders: Callable[[], Awaitable[list[Holder]]]
) -> AsyncGenerator[list[Holder], None]:
    """All holds now, and again whenever one came or ended, or somebody began or ceased to wait for it.

    That one was renewed is no change.
    """
    last: list[tuple[str, int, int]] | None = None
    while True:
        seen = store.change_count
        next_s: float | None = _LOOK_S
        with suppress(DatabaseUnavailable):  # it goes on when the database is back
            found = await holders()
            now = [(each.lock_key, each.fence_token, each.waiting) for each in found]
            if now != last:
                last = now
                yield found
            # A hold, or a waiter's patience, can end without anybody's doing.
            next_s = min((_LOOK_S if each.waiting else each.left_s for each in found), default=None)
        with suppress(TimeoutError):
            async with asyncio.timeout(next_s):
                await store.changed(seen)
        await asyncio.sleep(_CALM_S)  # a busy mesh commits all the time
