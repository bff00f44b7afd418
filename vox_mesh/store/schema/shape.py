"""Compare the shape of a database with the schema: tables, columns, constraints, indexes, triggers and views.

The definitions that SQLite keeps are compared word by word, so that spaces, quotes and the order of columns
make no difference. Other objects are judged in `unexpected`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from vox_mesh.store.engine import Ask
from vox_mesh.store.rows import Row
from vox_mesh.store.schema.passive import is_literal
from vox_mesh.store.schema.sql_words import Words, words_of
from vox_mesh.store.schema.statements import ddl
from vox_mesh.store.schema.tables import SQL
from vox_mesh.store.script import Statement

_CREATE: Final = re.compile(r"CREATE (UNIQUE )?(TABLE|INDEX|TRIGGER|VIEW) IF NOT EXISTS (\w+)")
_CONSTRAINTS: Final = frozenset({"constraint", "primary", "unique", "check", "foreign"})

Definitions = Mapping[tuple[str, str], str]
"""The SQL of each definition, by type and name."""


class SchemaObject(NamedTuple):
    """An object of a database; `table` is the table that an index or a trigger is on, as it was written."""

    type: str
    name: str
    table: str
    sql: str


@dataclass(frozen=True, slots=True)
class SchemaDifference:
    """A difference between the database and the schema."""

    type: str
    """table, column, constraint, index, trigger or view"""
    name: str
    problem: str

    def __str__(self) -> str:
        return f"{self.type} {self.name} {self.problem}"


class _TableShape(NamedTuple):
    columns: Mapping[str, Words]
    constraints: frozenset[Words]
    options: Words


async def definitions_at(ask: Ask) -> Definitions:
    """Return the definitions of the queried database."""
    return definitions_of(await objects_at(ask))


def definitions_of(objects: Sequence[SchemaObject]) -> Definitions:
    """Return the definitions of these objects."""
    return {(each.type, each.name): each.sql for each in objects}


async def objects_at(ask: Ask) -> list[SchemaObject]:
    """Return the objects of the queried database, without those of SQLite itself."""
    return objects_in(await ask(Statement(SQL["definitions"])))


def objects_in(rows: Iterable[Row]) -> list[SchemaObject]:
    """Return the objects in the answer to the query `definitions`."""
    objects = (SchemaObject._make(row) for row in rows)
    # A server could answer with any other statement, which must not be run on a copy.
    return [each for each in objects if each.sql.startswith("CREATE ")]


@cache
def expected() -> Definitions:
    """Return the definitions of `sql/coordination.sql`, as SQLite keeps them."""
    found: dict[tuple[str, str], str] = {}
    for statement in ddl():
        created = _CREATE.match(statement)
        assert created is not None, statement
        found[created[2].lower(), created[3]] = statement.replace(" IF NOT EXISTS", "", 1)
    return found


def differences(expected: Definitions, found: Definitions) -> list[SchemaDifference]:
    """Return the definitions that are missing or differ."""
    result: list[SchemaDifference] = []
    for (kind, name), sql in expected.items():
        actual = found.get((kind, name))
        if actual is None:
            problem = "is a view" if ("view", name) in found else "is missing"
            result.append(SchemaDifference(kind, name, problem))
        elif actual == sql:  # the usual case
            continue
        elif kind == "table":
            result += _table_differences(name, _table_shape(sql), _table_shape(actual))
        elif words_of(actual) != words_of(sql):
            result.append(SchemaDifference(kind, name, "has another definition"))
    return result


def _table_differences(name: str, expected: _TableShape, found: _TableShape) -> list[SchemaDifference]:
    result: list[SchemaDifference] = []
    for column, words in expected.columns.items():
        actual = found.columns.get(column)
        if actual is None:
            result.append(SchemaDifference("column", f"{name}.{column}", "is missing"))
        elif actual != words and not _adds_only_a_default(actual, words):
            problem = f"is {' '.join(actual[1:])!r}, expected {' '.join(words[1:])!r}"
            result.append(SchemaDifference("column", f"{name}.{column}", problem))
    for group, problem in (
        (expected.constraints - found.constraints, "is missing"),
        (found.constraints - expected.constraints, "is not expected"),
    ):
        result += [
            SchemaDifference("constraint", f"{name} {' '.join(words)!r}", problem) for words in sorted(group)
        ]
    if expected.options != found.options:
        problem = f"is {' '.join(found.options)!r}, expected {' '.join(expected.options)!r}"
        result.append(SchemaDifference("table", name, problem))
    return result


def _adds_only_a_default(actual: Words, expected: Words) -> bool:
    """Return whether only a default was added: a column added to a table with rows needs one."""
    added = actual[len(expected) :]
    return actual[: len(expected)] == expected and added[:1] == ("default",) and is_literal(added[1:])


def table_columns(sql: str) -> Mapping[str, Words]:
    """Return the definition of each column of a table, by its name."""
    return _table_shape(sql).columns


def _table_shape(sql: str) -> _TableShape:
    words = words_of(sql)
    parts: list[Words] = []
    depth = 0
    begin = end = words.index("(") + 1
    for end, word in enumerate(words[begin:], begin):
        if depth == 0 and word in (",", ")"):
            parts.append(words[begin:end])
            begin = end + 1
            if word == ")":
                break
        depth += (word == "(") - (word == ")")
    columns = {part[0]: part for part in parts if part[0] not in _CONSTRAINTS}
    constraints = frozenset(part for part in parts if part[0] in _CONSTRAINTS)
    return _TableShape(columns, constraints, words[end + 1 :])
