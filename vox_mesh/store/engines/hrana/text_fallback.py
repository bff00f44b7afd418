"""Read text that is not UTF-8 from a server, which fails with the whole answer if a single value is none."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadStatement, DatabaseUnavailable, MeshError, UnreadableText
from vox_mesh.model.base.recent import Recent
from vox_mesh.store.engine import Ask
from vox_mesh.store.engines.hrana.connection import ConnectionDropped
from vox_mesh.store.engines.text import note_replaced, replaced
from vox_mesh.store.rows import Row, Rows, Value
from vox_mesh.store.script import Statement

_REMEMBERED_S: Final = 60.0
_MAX_REMEMBERED: Final = 256

Describe = Callable[[str], Awaitable[dict[str, Any]]]
"""Returns the server's description of a statement, which is not run."""


class _Suspect(NamedTuple):
    """A query whose answer held such text: its columns, and until when only its safe form is sent."""

    columns: tuple[str, ...]
    until: float


class TextFallback:
    """Sends a query again in a safe form if its answer can't be sent: all text as bytes.

    Over HTTP, a server names the fault; over WebSocket, it closes the connection. A statement that is not
    known to change nothing is never sent again.
    """

    def __init__(self, ask: Ask, describe: Describe, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._describe = describe
        self._monotonic = monotonic
        self._suspects: Recent[str, _Suspect] = Recent(_MAX_REMEMBERED)

    async def query(self, statement: Statement) -> Rows:
        """Run a query; text that is not UTF-8 comes with replacement characters."""
        suspect = self._suspects.get(statement.sql)
        if suspect is not None and suspect.until > self._monotonic():
            return await self._query_safely(statement, suspect.columns)
        try:
            return await self._ask(statement)
        except (UnreadableText, ConnectionDropped) as fault:
            return await self._query_again(statement, fault)

    async def _query_again(self, statement: Statement, fault: MeshError) -> Rows:
        try:
            described = await self._describe(statement.sql)
            if described["is_readonly"] and described["cols"]:
                columns = tuple(column["name"] or "" for column in described["cols"])
                return await self._query_safely(statement, columns)
        except (BadStatement, DatabaseUnavailable):
            pass  # a statement without a safe form, or the server is really away
        raise fault

    async def _query_safely(self, statement: Statement, columns: tuple[str, ...]) -> Rows:
        answer = await self._ask(_safe_form(statement, len(columns)))
        rows = [_decoded(row) for row in answer]
        if any(was_replaced for _, was_replaced in rows):
            until = self._monotonic() + _REMEMBERED_S
            self._suspects[statement.sql] = _Suspect(columns, until)
            note_replaced(statement.sql)
        return Rows(columns, (values for values, _ in rows))


def _safe_form(statement: Statement, columns: int) -> Statement:
    """Return the query with text as bytes, and first the type of each value by its initial."""
    names = [f"vox_{number}" for number in range(columns)]
    types = " || ".join(f"substr(typeof({name}), 1, 1)" for name in names)
    values = ", ".join(f"iif(typeof({name}) = 'text', CAST({name} AS BLOB), {name})" for name in names)
    sql = f"WITH vox_answer ({', '.join(names)}) AS MATERIALIZED (\n{statement.sql}\n)\n"
    return Statement(f"{sql}SELECT {types}, {values} FROM vox_answer", statement.params)


def _decoded(row: Row) -> tuple[list[Value], bool]:
    """Return the values of a row in the safe form, and whether text was replaced."""
    types, *values = row
    was_replaced = False
    for place, type_ in enumerate(str(types)):
        value = values[place]
        if type_ == "t" and isinstance(value, bytes):
            text = values[place] = replaced(value)
            was_replaced |= text.encode() != value
    return values, was_replaced
