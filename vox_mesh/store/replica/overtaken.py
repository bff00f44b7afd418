"""Overtaken copies: replicas that hold more than their primary, kept to tell what the primary has lost.

A primary whose folder was put back to an earlier state, or that lost its last commits, has another past than
the replicas that followed it. They fetch everything again; but first their copy is set aside, if it shows
more than the primary does. A server also begins a new log whenever it was killed: that alone is no rollback.
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
_KEPT: Final = 2


class OvertakenCopies:
    """Sets a replica's copy aside before it is dropped, if that is worth it."""

    def __init__(self, path: Path, ask: Ask) -> None:
        self._path = path
        self._ask = ask

    async def keep_if_ahead(self) -> None:
        """Keep the copy if the primary shows less than it does. Raises why the primary does not answer."""
        seen = await asyncio.to_thread(_seen, self._path)
        if seen is not None and (await self._ask(Statement(_SQL["is_behind"], seen))).value:
            await asyncio.to_thread(self._set_aside)

    def _set_aside(self) -> None:
        kept = Path(f"{self._path}{_INFIX}{time.time_ns() // 1_000_000}")
        try:
            os.link(self._path, kept)  # the copy itself gets a new file
        except OSError as error:
            _log.warning("overtaken replica not kept: path=%s error=%s", self._path, error.strerror)
            return
        _log.error("replica holds more than its primary, which has lost commits: kept=%s", kept)
        for old in _copies(self._path.parent, f"{glob.escape(self._path.name)}{_INFIX}*")[:-_KEPT]:
            old.unlink(missing_ok=True)


def overtaken_copies(database: Path) -> list[Path]:
    """Return the copies that are kept beside `VOX_DB_PATH`, oldest first."""
    return _copies(database.parent, f"{glob.escape(database.name)}.replica-*{_INFIX}*")


def _copies(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern), key=lambda path: path.name.rpartition("-")[2])


def _seen(path: Path) -> Sequence[Value] | None:
    """Return what a copy shows of its primary; `None` if it can't be read, or has no epochs yet."""
    with suppress(sqlite3.Error), closing(open_copy(path)) as copy:
        found: Sequence[Value] = copy.execute(_SQL["seen"]).fetchone()
        return found
    return None


def open_copy(path: Path) -> sqlite3.Connection:
    """Open a copy to read from; nobody writes to it."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1&mode=ro", uri=True)
