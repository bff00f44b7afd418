"""Plain inserts: rows that neighbouring scripts add by the same statement are added by one.

That is quicker in a file, and much quicker on a server, which prepares every statement anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from vox_mesh.store.rows import Value
from vox_mesh.store.script import Script

_PLAIN: Final = re.compile(r"INSERT INTO \w+ \([\w, ]+\) VALUES (\(\?(?:, ?\?)*\))", re.ASCII | re.IGNORECASE)
_MOST_ROWS: Final = 64
_MOST_VALUES: Final = 1_024  # far from what any SQLite takes in one statement


def insert_of(script: Script) -> str | None:
    """The statement, if inserting rows by one and the same is all that the script does."""
    statements = script.statements
    if not statements or script.answer is not None:  # which may ask what the last statement changed
        return None
    sql = statements[0].sql
    width = _width(sql)
    for each in statements:
        if not width or each.sql != sql or len(each.params) != width:
            return None
    return sql


def merged(sql: str, rows: Sequence[Sequence[Value]]) -> Iterator[tuple[str, Sequence[Value]]]:
    """Statements that insert these rows, in their order, with the values of each.

    They have 64, 32, …, 2 rows or 1, so that there are few of them to prepare.
    """
    most, start = _MOST_ROWS, 0
    while most * _width(sql) > _MOST_VALUES and most > 1:
        most //= 2
    while left := len(rows) - start:
        while most > left:
            most //= 2
        yield _of_rows(sql, most), [value for row in rows[start : start + most] for value in row]
        start += most


@lru_cache(maxsize=1_024)
def _width(sql: str) -> int:
    """How many values a plain insert has in its one row; 0: it is none."""
    found = _PLAIN.fullmatch(sql)
    return 0 if found is None else found[1].count("?")


@lru_cache(maxsize=256)
def _of_rows(sql: str, count: int) -> str:
    row = sql[sql.rindex("(") :]
    return sql + f", {row}" * (count - 1)
