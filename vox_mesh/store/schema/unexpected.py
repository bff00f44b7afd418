"""Find objects in the database that are not the schema's and could change what the mesh does.

Your own tables, views, triggers on them, ordinary indexes and additional columns are none. A trigger of yours
on the mesh's tables, or one that writes to them, must be declared by every process that opens the database.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from vox_mesh.store.schema.migrations import migrations
from vox_mesh.store.schema.passive import is_passive_column, is_plain_index, references, written_tables
from vox_mesh.store.schema.shape import SchemaDifference, SchemaObject, expected, table_columns
from vox_mesh.store.schema.sql_words import Words, name_of, words_of
from vox_mesh.store.schema.statements import ddl
from vox_mesh.store.schema.tables import quoted

_NOT_EXPECTED: Final = "is not expected"
_declared: Final[dict[str, Words]] = {}
_TRIGGER: Final = re.compile(r"(?:CREATE|DROP) TRIGGER IF (?:NOT )?EXISTS (\w+)")


@dataclass(frozen=True, slots=True)
class UnexpectedObject(SchemaDifference):
    """An object that is not the schema's, and the statement that drops it, if that loses no rows."""

    drop: str = ""


def unexpected(found: Sequence[SchemaObject]) -> list[UnexpectedObject]:
    """Return the objects that a database of this version must not have."""
    result = unexpected_triggers(found)
    for each in found:
        is_ours = (each.type, each.name) in expected()
        if each.type == "table":
            result += _unexpected_columns(each) if is_ours else _unexpected_references(each)
        elif each.type == "index" and not is_ours and _is_on_ours(each) and not is_plain_index(each.sql):
            result.append(_object(each))
    return result


def unexpected_triggers(found: Sequence[SchemaObject], version: int | None = None) -> list[UnexpectedObject]:
    """Return the triggers that fire on the mesh's tables or write to them, but are not the mesh's.

    `version`: the version of the database, if it is an earlier one.
    """
    triggers = (each for each in found if each.type == "trigger" and not _is_expected(each, version))
    return [_object(each) for each in triggers if _is_on_ours(each) or _writes_to_ours(each)]


def _is_expected(trigger: SchemaObject, version: int | None) -> bool:
    if words_of(trigger.sql) == _declared.get(trigger.name):
        return True
    if version is None:
        return trigger.name in _our_triggers()  # its definition is compared with the others
    has_unknown_form = version < migrations()[0].number  # before the first migration
    return trigger.name in trigger_names() and (has_unknown_form or is_known_trigger(trigger))


def changed_triggers(found: Sequence[SchemaObject]) -> list[SchemaDifference]:
    """Return the triggers of the schema that exist with another definition."""
    ours = _our_triggers()
    return [
        SchemaDifference("trigger", each.name, "has another definition")
        for each in found
        if each.type == "trigger" and each.name in ours and words_of(each.sql) != ours[each.name]
    ]


def declare_triggers(statements: Iterable[str]) -> None:
    """Expect these triggers of your own, created by exactly these statements, in this process."""
    for sql in statements:
        words = words_of(sql.replace(" IF NOT EXISTS", "", 1))
        _declared[name_of(words[2])] = words


def is_known_trigger(each: SchemaObject) -> bool:
    """Return whether this version or an earlier one has created the trigger, in exactly this form."""
    return words_of(each.sql) in _known_triggers()


@cache
def trigger_names() -> frozenset[str]:
    """Return the names of all triggers that this version or an earlier one has created."""
    return frozenset(name for sql in _all_statements() for name in _TRIGGER.findall(sql))


@cache
def _known_triggers() -> frozenset[Words]:
    created = (sql.replace(" IF NOT EXISTS", "", 1) for sql in _all_statements())
    return frozenset(words_of(sql) for sql in created if sql.startswith("CREATE TRIGGER"))


def _all_statements() -> tuple[str, ...]:
    return (*ddl(), *(change.sql for each in migrations() for change in each.changes))


def _object(each: SchemaObject) -> UnexpectedObject:
    drop = f"DROP {each.type.upper()} {quoted(each.name)}"
    return UnexpectedObject(each.type, f"{each.name} on {each.table.lower()}", _NOT_EXPECTED, drop)


def _unexpected_columns(table: SchemaObject) -> list[UnexpectedObject]:
    if table.sql == (own := expected()["table", table.name]):  # the usual case
        return []
    ours = table_columns(own)
    problem = f"{_NOT_EXPECTED}: it can refuse or compute values"
    return [
        UnexpectedObject("column", f"{table.name}.{name}", problem)
        for name, words in table_columns(table.sql).items()
        if name not in ours and not is_passive_column(words)
    ]


def _unexpected_references(table: SchemaObject) -> list[UnexpectedObject]:
    referred = ", ".join(sorted(references(words_of(table.sql)) & our_tables()))
    problem = f"refers to {referred}: a foreign key can block the mesh"
    return [UnexpectedObject("table", table.name, problem)] if referred else []


def _is_on_ours(each: SchemaObject) -> bool:
    return each.table.lower() in our_tables()


def _writes_to_ours(each: SchemaObject) -> bool:
    return bool(written_tables(words_of(each.sql)) & our_tables())


@cache
def our_tables() -> frozenset[str]:
    """Return the names of the schema's tables and views."""
    return frozenset(name.lower() for kind, name in expected() if kind in ("table", "view"))


@cache
def _our_triggers() -> dict[str, Words]:
    return {name: words_of(sql) for (kind, name), sql in expected().items() if kind == "trigger"}
