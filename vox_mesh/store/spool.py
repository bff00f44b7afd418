"""The spool: appendable scripts on disk, in order, until the database has them."""

from __future__ import annotations

import base64
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from vox_mesh.errors import MeshError, SpoolFull
from vox_mesh.store import sqlite
from vox_mesh.store.script import Script, Statement, shape_named
from vox_mesh.store.values import Value

_DDL: Final = """
CREATE TABLE IF NOT EXISTS kept (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    script BLOB NOT NULL,
    kept_at_ms INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
);
CREATE TABLE IF NOT EXISTS refused (
    seq INTEGER PRIMARY KEY, script BLOB NOT NULL, reason TEXT NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class SpoolStatus:
    """What waits in a spool. `refused` counts scripts that were replayed and that the database refused."""

    depth: int
    bytes: int
    oldest_ms: int | None
    refused: int


class Spool:
    """A small database of its own: what `keep` returned from survives the death of the process."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._connection = sqlite.connect(str(path), busy_timeout_s=5.0)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.executescript(_DDL)
        self._bytes = _status(self._connection).bytes

    def keep(self, scripts: Sequence[Script]) -> None:
        """Write the scripts behind those that are there, all or none."""
        lines = [(encode(script),) for script in scripts]
        added = sum(len(line) for (line,) in lines)
        if self._bytes + added > self._max_bytes:
            raise SpoolFull(
                f"the spool holds {self._bytes} of {self._max_bytes} bytes and has no room for {added} more",
                hint="bring the database back, or raise VOX_SPOOL_MAX_BYTES",
            )
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._connection.executemany("INSERT INTO kept (script) VALUES (?)", lines)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise SpoolFull(f"the spool can't be written: {error}", hint="free some disk space") from None
        self._bytes += added

    def first(self, count: int) -> list[tuple[int, Script]]:
        """The oldest scripts with their numbers."""
        rows = self._connection.execute("SELECT seq, script FROM kept ORDER BY seq LIMIT ?", (count,))
        return [(seq, decode(line)) for seq, line in rows]

    def done(self, up_to: int, refused: Sequence[tuple[int, str]]) -> None:
        """The database has answered for all scripts up to this number; these it refused, and why."""
        self._connection.execute("BEGIN IMMEDIATE")
        for seq, reason in refused:
            self._connection.execute(
                "INSERT OR REPLACE INTO refused SELECT seq, script, ? FROM kept WHERE seq = ?", (reason, seq)
            )
        self._connection.execute("DELETE FROM kept WHERE seq <= ?", (up_to,))
        self._connection.execute("COMMIT")
        self._bytes = _status(self._connection).bytes

    def status(self) -> SpoolStatus:
        """What waits here."""
        return _status(self._connection)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def status_of(path: Path) -> SpoolStatus:
    """What waits in a spool file, which another process may own."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)) as connection:
        return _status(connection)


def _status(connection: sqlite3.Connection) -> SpoolStatus:
    depth, size, oldest = connection.execute(
        "SELECT count(*), coalesce(sum(length(script)), 0), min(kept_at_ms) FROM kept"
    ).fetchone()
    refused = connection.execute("SELECT count(*) FROM refused").fetchone()[0]
    return SpoolStatus(depth, size, oldest, refused)


def encode(script: Script) -> bytes:
    """A script as bytes that `decode` turns back into the same script, key included."""
    record: dict[str, Any] = {"key": script.key}
    if script.shape is not None:
        record |= {"shape": script.shape.name, "item": dict(script.item)}
    else:
        record["statements"] = [
            [each.sql, [_packed(value) for value in each.params], each.refusal] for each in script.statements
        ]
    return orjson.dumps(record)


def decode(line: bytes) -> Script:
    """The script that `encode` wrote."""
    record = orjson.loads(line)
    key = record["key"]
    if "shape" in record:
        shape = shape_named(record["shape"])
        if shape is None:
            raise MeshError(
                f"the spool holds a script of the unknown shape {record['shape']!r}",
                hint="start the version of the program that wrote it",
            )
        return Script.of(shape, record["item"], key=key, appendable=True)
    statements = [
        Statement(sql, [_unpacked(value) for value in params], refusal=refusal)
        for sql, params, refusal in record["statements"]
    ]
    return Script(*statements, key=key, appendable=True)


def _packed(value: Value) -> Any:
    return [base64.b64encode(value).decode()] if isinstance(value, bytes) else value


def _unpacked(value: Any) -> Value:
    return base64.b64decode(value[0]) if isinstance(value, list) else value
