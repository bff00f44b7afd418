"""Watch locks: yield the holders whenever they change."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

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
    async for turn in store.changes(debounce_s=_DEBOUNCE_S):
        with turn.retry_if_unavailable():
            current = await holders()
            now = [(each.lock_key, each.fence_token, each.waiting) for each in current]
            if now != last:
                last = now
                yield current
            if current:  # a lease or a waiter can time out without a commit
                turn.wait_at_most(min(_POLL_INTERVAL_S if each.waiting else each.left_s for each in current))
