"""Add the statements of scripts to a batch, and split the rows that answer them.

Consecutive scripts of one shape, or with the same `INSERT`, share their statements. This is faster in a file,
and much faster on a server, which prepares every statement it receives.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Final

import orjson

from vox_mesh.store.batch import Batch, BatchStep
from vox_mesh.store.rows import NO_ROWS, Rows, Value
from vox_mesh.store.script import Script, Shape, WriterId

_PLAIN_INSERT: Final = re.compile(
    r"INSERT INTO \w+ \([\w, ]+\) VALUES (\(\?(?:, ?\?)*\))", re.ASCII | re.IGNORECASE
)
_MAX_ROWS: Final = 64
_MAX_VALUES: Final = 1_024  # far below the limit of any SQLite build
CONDITION_VALUES: Final = 4
"""The number of values that a wrapper's condition takes."""

NO_CONDITION: Final = (None,) * CONDITION_VALUES
"""These values where there is no writer to check."""


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


def add_statements(batch: Batch, writer_id: WriterId, run: Sequence[Script]) -> int | None:
    """Add the statements of one script or of a run. Return the step that answers, if any."""
    script = run[0]
    if (shape := script.shape) is not None:
        if shape.is_single_statement:
            return batch.add(*unguarded_statement(writer_id, script, shape), wants_rows=True)
        return _add_merged(batch, writer_id, shape, run)
    if len(run) > 1:
        rows = [each.params for script in run for each in script.statements]
        batch.steps += [
            BatchStep(sql, values) for sql, values in merge_inserts(script.statements[0].sql, rows)
        ]
        return None
    steps = batch.steps
    for each in script.statements:  # a plain loop: a comprehension costs another call
        steps.append(BatchStep(each.sql, each.params))
    answer = script.answer
    if answer is None:
        return None
    if script.repeatable:
        return batch.add(answer.sql, answer.params, wants_rows=True)
    sql = _answer_sql(answer.sql, len(answer.columns))
    return batch.add(sql, (*answer.params, *writer_id[:2], script.key), wants_rows=True)


def unguarded_statement(writer_id: WriterId, script: Script, shape: Shape) -> tuple[str, list[Value]]:
    """Return the single statement of a script, and its values, without the guard of the batch."""
    sql, values = shape.single(writer_id, script, NO_CONDITION)
    return sql.replace("IS_CURRENT", "true"), values


def _add_merged(batch: Batch, writer_id: WriterId, shape: Shape, run: Sequence[Script]) -> int | None:
    items = orjson.dumps([{**script.item, "key": script.key} for script in run]).decode()
    values = (items, *writer_id[:2]) if shape.repeatable else (items,)
    for sql in shape.statements:
        batch.add(sql, values)
    if shape.answer is None:
        return None
    short = shape.answer_for
    answer = shape.answer if short is None else short([script.item for script in run])
    if shape.repeatable:
        return batch.add(answer, values, wants_rows=True)
    sql = _merged_answer_sql(answer, len(shape.columns))
    return batch.add(sql, (items, *writer_id[:2]), wants_rows=True)


@cache
def _answer_sql(query: str, width: int) -> str:
    """Wrap the query so that its rows are stored under a script's key, and returned."""
    columns = ", ".join(f"c{index}" for index in range(width))
    return _storing_sql(query, columns, columns, "?, ?, ?")


@cache
def _merged_answer_sql(query: str, width: int) -> str:
    """Wrap a query whose rows begin with their script's key so that they are stored, and returned."""
    columns = ", ".join(f"c{index}" for index in range(width))
    return _storing_sql(query, f"script_key, {columns}", columns, "?2, ?3, script_key")


def _storing_sql(query: str, answered: str, columns: str, owner: str) -> str:
    return (
        f"WITH answer ({answered}) AS ({query}) "
        f"INSERT INTO script_answers (scope_id, repository_id, script_key, n, {columns}) "
        f"SELECT {owner}, row_number() OVER (), {columns} FROM answer RETURNING script_key, n, {columns}"
    )


def split_rows(run: Sequence[Script], rows: Sequence[Sequence[Value]]) -> list[Rows]:
    """Split the rows that answer a run into those of each script."""
    script = run[0]
    if not script.repeatable:
        kept = by_key(sorted(rows, key=_number))
        return [answered_rows(script, kept) for script in run]
    columns, shape = script.columns, script.shape
    if shape is None or shape.subject is None:
        return [Rows(columns, rows)]
    if len(run) == 1:
        subject = shape.subject(script.item)
        own = [row[1:] for row in rows if row[0] == subject]
        return [Rows(columns, own) if own else NO_ROWS]
    found = by_key(rows)
    return [
        Rows(columns, [row[1:] for row in found[subject]]) if subject in found else NO_ROWS
        for subject in (shape.subject(script.item) for script in run)
    ]


def _number(row: Sequence[Value]) -> int:
    number = row[1]
    assert isinstance(number, int)
    return number


def by_key(rows: Sequence[Sequence[Value]]) -> dict[Hashable, list[Sequence[Value]]]:
    """Group rows by their first value, the script's key or subject; their position has no meaning."""
    found: dict[Hashable, list[Sequence[Value]]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row)
    return found


def answered_rows(script: Script, answers: Mapping[Hashable, list[Sequence[Value]]]) -> Rows:
    """Return the script's rows from all answers."""
    columns = script.columns
    own = answers.get(script.key)
    return Rows(columns, [row[2 : 2 + len(columns)] for row in own]) if own else NO_ROWS
