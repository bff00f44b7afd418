"""Watch locks: yield the holders whenever they change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Final

from vox_mesh.errors import DatabaseUnavailable
from vox_mesh.model.locks.records import Holder
from vox_mesh.store.store import Store

_POLL_INTERVAL_S: Final = 1.0
_DEBOUNCE_S: Final = 0.02


async def watch_holders(
    store: Store, holders: Callable[[], Awaitable[list[Holder]]]
) -> AsyncGenerator[list[Holder], None]:
    """Yield all holders now, and again when a lock or its number of waiters changes.

    Renewals are not reported.
    """
    last: list[tuple[str, int, int]] | None = None
    while True:
        seen = store.change_count
        next_s: float | None = _POLL_INTERVAL_S
        with suppress(DatabaseUnavailable):  # retried when the database is back
            current = await holders()
            now = [(each.lock_key, each.fence_token, each.waiting) for each in current]
            if now != last:
                last = now
                yield current
            # A lease or a waiter can time out without a commit.
            next_s = min(
                (_POLL_INTERVAL_S if each.waiting else each.left_s for each in current), default=None
            )
        with suppress(TimeoutError):
            async with asyncio.timeout(next_s):
                await store.changed(seen)
        await asyncio.sleep(_DEBOUNCE_S)  # a busy mesh commits all the time
