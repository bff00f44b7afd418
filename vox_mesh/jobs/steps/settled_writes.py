"""Writes of attempts that are repeated until their outcome is known: they take effect once."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from vox_mesh.errors import DatabaseUnavailable, MeshError, OutcomeUnknown, Overloaded
from vox_mesh.store.script import Script, Verdict
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

UNSETTLED: Final = (OutcomeUnknown, Overloaded, DatabaseUnavailable)
"""Errors after which another try may succeed."""

_RETRY_DELAY_S: Final = 0.5
_MAX_TRIES: Final = 20
_OUTAGE_DELAY_S: Final = 1.0


async def write_settled(store: Store, script: Script, timeout_s: float | None = None) -> Verdict:
    """Write a script, and retry while its outcome is unknown. Return its outcome, or why it has none."""
    for _ in range(_MAX_TRIES):
        try:
            return await store.write(script, timeout=timeout_s)
        except UNSETTLED as error:
            failure: MeshError = error
            if isinstance(error, DatabaseUnavailable) and not script.appendable:
                break
            await asyncio.sleep(_RETRY_DELAY_S)
        except MeshError as error:
            return error
    return failure


async def write_steps(store: Store, script: Script, of: str) -> Verdict:
    """Write a script with steps once the database is available. `of` says in the log whose they are."""
    has_logged = False
    while isinstance(verdict := await write_settled(store, script), DatabaseUnavailable):
        if not has_logged:
            has_logged = True
            _log.warning("steps not stored yet: %s: %s", of, verdict.line)
        await asyncio.sleep(_OUTAGE_DELAY_S)
    return verdict
