"""Store appendable scripts on disk, in order, until they are replayed."""

from __future__ import annotations

import base64
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from vox_mesh.errors import DatabaseFault, MeshError, SpoolFull
from vox_mesh.store.engines import sqlite
from vox_mesh.store.rows import Value
from vox_mesh.store.script import Op, Script, Statement, shape_named

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

_OPS: Final = """
WITH texts AS (
    SELECT 0 AS part, seq, CAST(script AS TEXT) AS script, reason FROM refused
    UNION ALL
    SELECT 1, seq, CAST(script AS TEXT), NULL FROM kept
)
SELECT script ->> '$.key', script ->> '$.op[1]', reason
FROM texts WHERE script ->> '$.op[0]' = ? ORDER BY part, seq LIMIT ?
"""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class SpoolStatus:
    """The contents of a spool. `refused` counts replayed scripts that the database refused."""

    depth: int
    bytes: int
    oldest_ms: int | None
    refused: int


class SpooledOp(NamedTuple):
    """A spooled op: its payload as JSON, and why the database refused it, if it did."""

    op_id: str
    payload: str
    reason: str | None


class Spool:
    """A local SQLite database of scripts: once `keep` returns, its scripts survive a crash of the process."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._connection = sqlite.connect(str(path), busy_timeout_s=5.0)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.executescript(_DDL)
        self._bytes = _status(self._connection).bytes

    def keep(self, scripts: Sequence[Script]) -> None:
        """Append the scripts, all or none."""
        lines = [(encode(script),) for script in scripts]
        added = sum(len(line) for (line,) in lines)
        if self._bytes + added > self._max_bytes:
            raise SpoolFull(
                f"the spool holds {self._bytes} of {self._max_bytes} bytes and has no room for {added} more",
                hint="bring the database back, or raise VOX_SPOOL_MAX_BYTES",
            )
        with self._transaction():
            self._connection.executemany("INSERT INTO kept (script) VALUES (?)", lines)
        self._bytes += added

    def first(self, count: int, max_bytes: int) -> list[tuple[int, Script]]:
        """Return the oldest scripts with their numbers: at least one if there are any, and as many as fit."""
        found: list[tuple[int, Script]] = []
        size = 0
        for seq, line in self._connection.execute(
            "SELECT seq, script FROM kept ORDER BY seq LIMIT ?", (count,)
        ):
            size += len(line)
            if found and size > max_bytes:
                break
            found.append((seq, decode(line)))
        return found

    def finish(self, up_to: int, refused: Sequence[tuple[int, str]]) -> None:
        """Remove all scripts up to this number, and record the refused ones with their reasons."""
        with self._transaction():
            for seq, reason in refused:
                self._connection.execute(
                    "INSERT OR REPLACE INTO refused SELECT seq, script, ? FROM kept WHERE seq = ?",
                    (reason, seq),
                )
            removed = self._connection.execute(
                "SELECT coalesce(sum(length(script)), 0) FROM kept WHERE seq <= ?", (up_to,)
            ).fetchone()
            self._connection.execute("DELETE FROM kept WHERE seq <= ?", (up_to,))
        self._bytes -= removed[0]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit all changes or none, even if the disk is full."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield
            self._connection.execute("COMMIT")
        except BaseException as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                hint = "free some disk space"
                raise SpoolFull(f"the spool can't be written: {error}", hint=hint) from None
            raise

    def status(self) -> SpoolStatus:
        """Return the contents of this spool."""
        return _status(self._connection)

    def ops(self, kind: str, limit: int) -> list[SpooledOp]:
        """Return the first ops of a kind: refused ones, then those to replay, in order."""
        return _ops(self._connection, kind, limit)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def status_of(path: Path) -> SpoolStatus:
    """Return the contents of a spool file, which another process may own."""
    return _read(path, _status, SpoolStatus(0, 0, None, 0))


def ops_of(path: Path, kind: str, limit: int) -> list[SpooledOp]:
    """Return the ops of a kind in a spool file, which another process may own, as `Spool.ops` does."""
    return _read(path, lambda connection: _ops(connection, kind, limit), [])


def _read(path: Path, query: Callable[[sqlite3.Connection], Result], nothing: Result) -> Result:
    address = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=5.0)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'refused'").fetchone():
                return nothing  # its owner is still creating it
            return query(connection)
    except sqlite3.Error as error:
        raise DatabaseFault(
            f"the spool {path} can't be read: {error}", hint="if it is damaged, move it away"
        ) from None


def _status(connection: sqlite3.Connection) -> SpoolStatus:
    depth, size, oldest = connection.execute(
        "SELECT count(*), coalesce(sum(length(script)), 0), min(kept_at_ms) FROM kept"
    ).fetchone()
    refused = connection.execute("SELECT count(*) FROM refused").fetchone()[0]
    return SpoolStatus(depth, size, oldest, refused)


def _ops(connection: sqlite3.Connection, kind: str, limit: int) -> list[SpooledOp]:
    return [SpooledOp(*row) for row in connection.execute(_OPS, (kind, limit))]


def encode(script: Script) -> bytes:
    """Return a script as bytes, which `decode` turns back into the same script with the same key."""
    record: dict[str, Any] = {"key": script.key}
    if script.op is not None:
        record["op"] = list(script.op)
    if script.shape is not None:
        record |= {"shape": script.shape.name, "item": dict(script.item)}
    else:
        record["statements"] = [
            [each.sql, [_pack(value) for value in each.params], each.refusal] for each in script.statements
        ]
    return orjson.dumps(record)


def decode(line: bytes) -> Script:
    """Return the script that was passed to `encode`."""
    record = orjson.loads(line)
    key = record["key"]
    op = _op(*record["op"]) if "op" in record else None
    if "shape" in record:
        shape = shape_named(record["shape"])
        if shape is None:
            raise MeshError(
                f"the spool holds a script of the unknown shape {record['shape']!r}",
                hint="start the version of the program that wrote it",
            )
        return Script.of(shape, record["item"], key=key, appendable=True, op=op)
    statements = [
        Statement(sql, [_unpack(value) for value in params], refusal=refusal)
        for sql, params, refusal in record["statements"]
    ]
    return Script(*statements, key=key, appendable=True, op=op)


def _op(kind: str, payload: str, deps: list[str], *others: Any) -> Op:
    return Op(kind, payload, tuple(deps), *others)


def _pack(value: Value) -> Any:
    return [base64.b64encode(value).decode()] if isinstance(value, bytes) else value


def _unpack(value: Any) -> Value:
    return base64.b64decode(value[0]) if isinstance(value, list) else value
