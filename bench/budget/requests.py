"""Record the statements that a backend of this process runs, and run the same ones by bare `sqlite3`."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from time import process_time
from typing import Any, Final, NamedTuple

from bench.raw import PRAGMAS
from vox_mesh.store.batch import Batch, BatchResult, StepRows
from vox_mesh.store.engines import sqlite
from vox_mesh.store.engines.file import FileEngine
from vox_mesh.store.rows import Rows, Value
from vox_mesh.store.script import Statement

_CACHED_STATEMENTS: Final = 512
_TOKEN: Final = re.compile(r"(?<![0-9a-f])[0-9]{16,19}(?![0-9a-f])")
_TOKENS: Final = 1 << 50
"""Tokens begin here: they are larger than a time in milliseconds."""


class Ran(NamedTuple):
    """A statement that succeeded: its values, and its rows."""

    sql: str
    params: Sequence[Value]
    rows: Sequence[Sequence[Value]]


class Recording:
    """The statements that ran, and a copy of the database as it was before them."""

    def __init__(self) -> None:
        self._ran: list[Ran] = []
        self._writing: sqlite3.Connection | None = None
        self._copy: sqlite3.Connection | None = None

    def note(self, connection: sqlite3.Connection | None, ran: Ran) -> None:
        """Record a statement, and the connection if it was a write."""
        self._writing = connection or self._writing
        self._ran.append(ran)

    def begin(self, path: str) -> None:
        """Copy the database to the path, and record from here on. No write may be in flight."""
        assert self._writing is not None, "nothing was written yet"
        self._copy = sqlite3.connect(path, isolation_level=None, cached_statements=_CACHED_STATEMENTS)
        self._writing.backup(self._copy)
        self._ran.clear()

    def run_again(self) -> tuple[float, int]:
        """Run the statements on the copy. Return the seconds of processor time, and their number.

        What the copy returns is passed on in place of what was returned at first, as fencing tokens are.
        """
        copy, seconds, differing = self._copy, 0.0, 0
        assert copy is not None, "it has not begun"
        passed_on: dict[int, Value] = {}
        with closing(copy):
            for pragma in PRAGMAS:
                copy.execute(f"PRAGMA {pragma}")
            execute = copy.cursor().execute
            ran = [*self._ran]
            for sql, params, rows in ran:
                values = [_with_tokens(value, passed_on) for value in params]
                before = process_time()
                try:
                    now = execute(sql, values).fetchall()
                except sqlite3.Error as error:
                    raise RuntimeError(f"on the copy, {error}: {sql} {values}") from error
                seconds += process_time() - before
                differing += len(now) != len(rows)
                for row, row_now in zip(rows, now, strict=False):
                    pairs = zip(row, row_now, strict=True)
                    passed_on.update(
                        (old, new) for old, new in pairs if isinstance(old, int) and old >= _TOKENS
                    )
        if differing:
            raise RuntimeError(f"{differing} of {len(ran)} statements had another effect on the copy")
        return seconds, len(ran)


def _with_tokens(value: Value, passed_on: Mapping[int, Value]) -> Value:
    """Return a value with the tokens of the copy, also within JSON."""
    if isinstance(value, str):
        return _TOKEN.sub(lambda found: str(passed_on.get(int(found[0]), found[0])), value)
    return passed_on.get(value, value) if isinstance(value, int) else value


@contextmanager
def recorded() -> Iterator[Recording]:
    """Record every statement that succeeds on a file or memory backend of this process."""
    recording = Recording()
    walk, answer_now = sqlite.walk, FileEngine.answer_now

    def walked(
        connection: sqlite3.Connection, batch: Batch, before_last: Callable[[], None] | None = None
    ) -> BatchResult:
        result = walk(connection, batch, before_last)
        for step, end in zip(batch.steps, result.steps, strict=True):
            if isinstance(end, StepRows):
                recording.note(connection, Ran(step.sql, step.params, end.rows))
        return result

    def answered(engine: FileEngine, statement: Statement) -> Rows | None:
        rows = answer_now(engine, statement)
        if rows is not None:
            recording.note(None, Ran(statement.sql, statement.params, [*rows]))
        return rows

    changed: tuple[tuple[Any, str, Any, Any], ...] = (
        (sqlite, "walk", walk, walked),
        (FileEngine, "answer_now", answer_now, answered),
    )
    for owner, name, _, recording_it in changed:
        setattr(owner, name, recording_it)
    try:
        yield recording
    finally:
        for owner, name, original, _ in changed:
            setattr(owner, name, original)
