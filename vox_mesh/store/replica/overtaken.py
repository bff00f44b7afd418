"""Keep overtaken copies: replicas that hold more than their primary, to find out what the primary has lost.

A primary that was rolled back, or that lost its last commits, has a different history than the replicas that
followed it. They fetch everything again; but before that, their copy is kept if it shows more than the
primary. A server also starts a new log whenever it was killed: that alone is not a rollback.
"""

from __future__ import annotations

import asyncio
import glob
import logging
import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from vox_mesh.store.engine import Ask
from vox_mesh.store.rows import Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Statement

_log = logging.getLogger(__name__)

_SQL: Final = named("lost")
_INFIX: Final = ".overtaken-"
_MAX_KEPT: Final = 2


class OvertakenCopies:
    """Keeps a replica's copy before it is dropped, if it holds more than the primary."""

    def __init__(self, path: Path, ask: Ask) -> None:
        self._path = path
        self._ask = ask

    async def keep_if_ahead(self) -> None:
        """Keep the copy if it shows more than the primary. Raises if the primary does not answer."""
        seen = await asyncio.to_thread(_seen, self._path)
        if seen is not None and (await self._ask(Statement(_SQL["is_behind"], seen))).value:
            await asyncio.to_thread(self._keep)

    def _keep(self) -> None:
        kept = Path(f"{self._path}{_INFIX}{time.time_ns() // 1_000_000}")
        try:
            os.link(self._path, kept)  # the replica itself continues with a new file
        except OSError as error:
            _log.warning("overtaken replica not kept: path=%s error=%s", self._path, error.strerror)
            return
        _log.error("replica holds more than its primary, which has lost commits: kept=%s", kept)
        for old in _copies(self._path.parent, f"{glob.escape(self._path.name)}{_INFIX}*")[:-_MAX_KEPT]:
            old.unlink(missing_ok=True)


def overtaken_copies(database: Path) -> list[Path]:
    """Return the copies kept next to `VOX_DB_PATH`, oldest first."""
    return _copies(database.parent, f"{glob.escape(database.name)}.replica-*{_INFIX}*")


def _copies(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern), key=lambda path: path.name.rpartition("-")[2])


def _seen(path: Path) -> Sequence[Value] | None:
    """Return how much of its primary a copy shows; `None` if it can't be read or has no epochs yet."""
    with suppress(sqlite3.Error), closing(open_copy(path)) as copy:
        found: Sequence[Value] = copy.execute(_SQL["copy_state"]).fetchone()
        return found
    return None


def open_copy(path: Path) -> sqlite3.Connection:
    """Open a copy read-only. The file must not change meanwhile."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1&mode=ro", uri=True)
