"""The memory of steps: a file in the home with the ops by which the ownership passed on."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import orjson

from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.store.files import replace_private

_log = logging.getLogger(__name__)

_MAX_BYTES: Final = 64 * 2**20


class StepMemory:
    """The steps that this home has seen, in order. They prove themselves, so the file is not trusted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def load(self) -> list[LogEntry]:
        """Return the steps in the file; an unreadable file counts as missing."""
        try:
            return await asyncio.to_thread(self._read)
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError) as error:
            _log.warning("memory of the owners unreadable: path=%s error=%s", self._path, error)
            return []

    def _read(self) -> list[LogEntry]:
        with self._path.open("rb") as file:
            rows = orjson.loads(file.read(_MAX_BYTES))
        entries = [LogEntry._make(row) for row in rows]
        if not all(isinstance(value, str | int | None) for entry in entries for value in entry):
            raise ValueError("it holds something that no entry can hold")
        return entries

    async def keep(self, steps: Sequence[LogEntry]) -> None:
        """Replace the file, in a thread."""
        try:
            await asyncio.to_thread(self._replace, orjson.dumps([list(each) for each in steps]))
        except OSError as error:
            _log.warning("memory of the owners not written: path=%s error=%s", self._path, error.strerror)

    def _replace(self, text: bytes) -> None:
        replace_private(self._path, text, self._path.with_suffix(f".{os.getpid()}.new"))
