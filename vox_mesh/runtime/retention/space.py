"""Space: what pruning has freed is given back to the file system, a few pages at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_RESERVE_PAGES: Final = 256
_RESERVE_PERCENT: Final = 5
"""Free pages up to this part of the file stay: new rows take them."""

_FIRST_PAGES: Final = 16
_MAX_PAGES: Final = 512
_STEP_S: Final = 0.005
"""How long writers may wait for one step, about."""

_REST: Final = 3
"""How many times as long as a step took the next one waits, so that others write meanwhile."""

_MIN_REST_S: Final = 0.002


async def give_back(store: Store, is_over: Callable[[], bool], monotonic: Callable[[], float]) -> int:
    """Give free pages back until few are left or it is over; return the bytes.

    Only a database file can shrink, and only one that was created or compacted for it.
    """
    pages, given = _FIRST_PAGES, 0
    while (file := store.file) is not None and not is_over():
        space = await file.space()
        if not space.can_shrink:
            break
        spare = space.free_pages - max(_RESERVE_PAGES, space.pages * _RESERVE_PERCENT // 100)
        if spare <= 0:
            break
        step = min(pages, spare)
        began = monotonic()
        await file.shrink(step)
        took_s = monotonic() - began
        given += step * space.page_bytes
        pages = min(_MAX_PAGES, max(1, round(step * _STEP_S / took_s))) if took_s > 0 else pages
        await asyncio.sleep(max(_MIN_REST_S, _REST * took_s))
    if given:
        _log.info("space given back: bytes=%d", given)
    return given
