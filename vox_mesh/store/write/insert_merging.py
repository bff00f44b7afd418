"""Merge plain inserts: consecutive scripts that use the same `INSERT` share one statement.

This is faster in a file, and much faster on a server, which prepares every statement it receives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from vox_mesh.store.rows import Value
from vox_mesh.store.script import Script

_PLAIN_INSERT: Final = re.compile(
    r"INSERT INTO \w+ \([\w, ]+\) VALUES (\(\?(?:, ?\?)*\))", re.ASCII | re.IGNORECASE
)
_MAX_ROWS: Final = 64
_MAX_VALUES: Final = 1_024  # far below the limit of any SQLite build


def plain_insert(script: Script) -> str | None:
    """Return the script's `INSERT` if it does nothing but run one such statement, once or repeatedly."""
    statements = script.statements
    if not statements or script.answer is not None:  # an answer may use changes()
        return None
    sql = statements[0].sql
    width = _width(sql)
    for each in statements:
        if not width or each.sql != sql or len(each.params) != width:
            return None
    return sql


def merge_inserts(sql: str, rows: Sequence[Sequence[Value]]) -> Iterator[tuple[str, Sequence[Value]]]:
    """Yield statements, each with its values, that insert these rows in order.

    They have 64, 32, …, 2 or 1 rows, so that few different statements must be prepared.
    """
    most, start = _MAX_ROWS, 0
    while most * _width(sql) > _MAX_VALUES and most > 1:
        most //= 2
    while left := len(rows) - start:
        while most > left:
            most //= 2
        yield _repeat_row(sql, most), [value for row in rows[start : start + most] for value in row]
        start += most


@lru_cache(maxsize=1_024)
def _width(sql: str) -> int:
    """Return the number of values in the row of a plain insert; 0 if it is not a plain insert."""
    found = _PLAIN_INSERT.fullmatch(sql)
    return 0 if found is None else found[1].count("?")


@lru_cache(maxsize=256)
def _repeat_row(sql: str, count: int) -> str:
    row = sql[sql.rindex("(") :]
    return sql + f", {row}" * (count - 1)
