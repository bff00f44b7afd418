"""The content of a database as lines of JSON: definitions and rows, in the order of a copy.

The same content leads to the same lines, and a change of a row to a change of its line only.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import orjson

from vox_mesh.errors import BadValue
from vox_mesh.store.engines.thread import SerialThread
from vox_mesh.store.rows import Row, Value
from vox_mesh.store.schema.database_file import DatabaseFile
from vox_mesh.store.schema.shape import SchemaObject
from vox_mesh.store.schema.tables import TableColumns

_FORMAT: Final = {"format": "vox-mesh rows", "version": 1}
_MAX_LINE_BYTES: Final = 2**31
_INFINITE: Final = {float("inf"): "inf", float("-inf"): "-inf"}


class RowLines:
    """Turns what is copied into lines, and hands them on, in a thread."""

    def __init__(self, write: Callable[[bytes], None], disk: SerialThread) -> None:
        self._write_line = write
        self._disk = disk
        self._table: TableColumns | None = None
        self._has_begun = False

    async def define(self, objects: Sequence[SchemaObject]) -> None:
        """Write definitions."""
        if not self._has_begun:
            self._has_begun = True
            await self._write([_FORMAT])
        await self._write([{"define": [each.sql for each in objects]}])

    async def add(self, table: TableColumns, rows: Sequence[Row]) -> None:
        """Write rows, the first of a table after a line about it."""
        if table != self._table and rows:
            self._table = table
            await self._write([{"table": table.name, "columns": table.columns, "key": table.key}])
        await self._disk.do(lambda: self._write_rows(rows))

    async def finish(self, sequences: Sequence[Row]) -> None:
        """Write the last line."""
        await self._write([{"sequences": [list(each) for each in sequences]}])

    async def _write(self, documents: Iterable[dict[str, Any]]) -> None:
        lines = [orjson.dumps(each) + b"\n" for each in documents]
        await self._disk.do(lambda: [self._write_line(line) for line in lines])

    def _write_rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._write_line(orjson.dumps(list(map(_written, row))) + b"\n")


class RowLineReader:
    """Fills a file from such lines. They may come from anyone."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._table: TableColumns | None = None
        self._has_begun = False
        self._begun_line: list[bytes] = []
        self._begun_bytes = 0
        self.is_complete = False
        """Whether the last line was read."""

    def read(self, part: bytes) -> None:
        """Read the next part, which may end within a line.

        Raises `BadValue` if no `RowLines` has written it, or `sqlite3.Error`.
        """
        end = part.rfind(b"\n") + 1
        lines = part[:end]
        if end:
            lines = b"".join((*self._begun_line, lines))
            self._begun_line, self._begun_bytes = [], 0
        if end < len(part):
            self._begun_line.append(part[end:])
            self._begun_bytes += len(part) - end
            if self._begun_bytes > _MAX_LINE_BYTES:
                raise BadValue(f"a line has more than {_MAX_LINE_BYTES} bytes")
        self._read_lines(lines)

    def _read_lines(self, lines: bytes) -> None:
        rows: list[list[Value]] = []
        try:
            for line in lines.splitlines():
                document = orjson.loads(line)
                if isinstance(document, list):
                    rows.append(list(map(_read, document)))
                else:
                    self._add(rows)
                    self._read_document(document)
            self._add(rows)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadValue(f"not lines of rows: {error}") from None

    def _add(self, rows: list[list[Value]]) -> None:
        if rows:
            if self._table is None:
                raise ValueError("a row comes before its table")
            self._file.add(self._table, rows)
            rows.clear()

    def _read_document(self, document: dict[str, Any]) -> None:
        if self.is_complete:
            raise ValueError("something follows the last line")
        if not self._has_begun:
            if document != _FORMAT:
                raise ValueError("the first line has another format")
            self._has_begun = True
        elif "define" in document:
            self._file.define(document["define"])
        elif "table" in document:
            self._table = TableColumns(
                str(document["table"]), tuple(map(str, document["columns"])), tuple(map(str, document["key"]))
            )
        else:
            self._file.finish(document["sequences"])
            self.is_complete = True


def _written(value: Value) -> Value | dict[str, str]:
    if isinstance(value, bytes):
        return {"bytes": b64encode(value).decode()}
    if isinstance(value, float) and value in _INFINITE:
        return {"float": _INFINITE[value]}
    return value


def _read(value: Any) -> Value:
    if not isinstance(value, dict):
        found: Value = value
        return found
    if "bytes" in value:
        return b64decode(value["bytes"], validate=True)
    return float(value["float"])
