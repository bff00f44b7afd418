"""Frames to feed a replica with: made up ones, and those of a real SQLite database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from vox_mesh.store.replica.pages import file_bytes
from vox_mesh.store.replica.wire import PAGE, WalFrame

LOG: Final = "7b353d10-b11b-4042-a1f4-991dc874a3ee"
OTHER_LOG: Final = "4c5590cb-5636-4c3b-92b3-3b8b8bd3d06d"


def page_of(mark: int) -> bytes:
    """A page full of one byte."""
    return bytes([mark]) * PAGE


def frame_of(number: int, page_number: int, size_after: int, page: bytes) -> WalFrame:
    """A frame as the wire would bring it."""
    return WalFrame(number, page_number, size_after, memoryview(page))


def pages_of(data: bytes) -> list[bytes]:
    """A file's contents as pages; a last one may be cut off."""
    return [data[at : at + PAGE] for at in range(0, len(data), PAGE)]


def with_room(data: bytes) -> bytes:
    """A database's bytes as a replica's file holds them: behind them is empty room for further pages."""
    return data.ljust(file_bytes(len(data) // PAGE), b"\0")


class Primary:
    """A real SQLite database, and the frames that its transactions would be in a log."""

    def __init__(self, path: Path, journal: str = "delete") -> None:
        """With a write-ahead log, as a server has one, not every transaction changes the first page."""
        self.path = path
        self.next_frame = 0
        self._pages: list[bytes] = []
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute(f"PRAGMA journal_mode = {journal}")
        self._connection.execute("PRAGMA synchronous = off")

    def commit(self, *statements: str) -> list[WalFrame]:
        """Run the statements in one transaction; its frames."""
        for statement in ("BEGIN", *statements, "COMMIT"):
            self._connection.execute(statement)
        return self._changed()

    def vacuum(self) -> list[WalFrame]:
        """Give free pages back."""
        self._connection.execute("VACUUM")
        return self._changed()

    def _changed(self) -> list[WalFrame]:
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages = pages_of(self.path.read_bytes())
        changed = [at for at, page in enumerate(pages) if self._pages[at : at + 1] != [page]]
        self._pages = pages
        frames = [
            frame_of(self.next_frame + position, at + 1, len(pages) if at == changed[-1] else 0, pages[at])
            for position, at in enumerate(changed)
        ]
        self.next_frame += len(frames)
        return frames

    def snapshot(self) -> list[WalFrame]:
        """All pages, newest first, as a compacted log has them."""
        count = len(self._pages)
        return [
            frame_of(self.next_frame - 1 - at, count - at, count if at == count - 1 else 0, page)
            for at, page in enumerate(reversed(self._pages))
        ]

    def close(self) -> None:
        """Close the database."""
        self._connection.close()


@contextmanager
def primary(path: Path, journal: str = "delete") -> Iterator[Primary]:
    """An open database."""
    database = Primary(path, journal)
    try:
        yield database
    finally:
        database.close()
