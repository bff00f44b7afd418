"""Choose what a restore may create of a backup: known objects from our schema, and passive ones of users."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vox_mesh.store.schema.passive import is_passive_index, is_passive_table
from vox_mesh.store.schema.shape import SchemaObject, expected
from vox_mesh.store.schema.tables import TableColumns, mesh_tables
from vox_mesh.store.schema.unexpected import our_tables, trigger_names


@dataclass(frozen=True, slots=True)
class Restorable:
    """The parts of a backup that a restore uses, and the descriptions of the skipped ones."""

    tables: list[TableColumns]
    """The tables whose rows are restored, with the known columns."""
    objects: list[SchemaObject]
    """The objects of users to create, as they are."""
    triggers: list[SchemaObject]
    """All triggers of the backup."""
    skipped: tuple[str, ...]


def restorable(tables: Iterable[TableColumns], objects: Sequence[SchemaObject]) -> Restorable:
    """Sort the content of a backup, whose definitions are not trusted."""
    found = list(tables)
    ours = {table.name: table.columns for table in mesh_tables()}
    defined = {each.name: each for each in objects if each.type == "table"}
    passive = {
        each.name: each
        for table in found
        if table.name not in ours and (each := defined.get(table.name)) and _is_passive(each)
    }
    indexed = {name.lower() for name in passive}
    created = [
        *passive.values(),
        *(
            each
            for each in objects
            if each.type == "index" and is_passive_index(each.name, each.sql, indexed)
        ),
    ]
    restored = [_known_columns(table, ours) for table in found if table.name in ours or table.name in passive]
    columns = [
        f"column {table.name}.{column}"
        for table in found
        for column in table.columns
        if table.name in ours and column not in ours[table.name] and column != "rowid"
    ]
    others = [str_of(each) for each in objects if not (each in created or _is_known(each))]
    triggers = [each for each in objects if each.type == "trigger"]
    return Restorable(restored, created, triggers, (*others, *columns))


def str_of(each: SchemaObject) -> str:
    """Return the type and name of an object, and the table that it is on."""
    name = each.name if each.name == each.table else f"{each.name} on {each.table}"
    return f"{each.type} {name}"


def _is_passive(each: SchemaObject) -> bool:
    return is_passive_table(each.name, each.sql, our_tables())


def _is_known(each: SchemaObject) -> bool:
    """Return whether the object is the mesh's, or libSQL's own: it is not created from the backup."""
    if each.type in ("table", "index") and each.table.startswith("libsql_"):
        return True
    return (each.type, each.name) in expected() or (each.type == "trigger" and each.name in trigger_names())


def _known_columns(table: TableColumns, ours: dict[str, tuple[str, ...]]) -> TableColumns:
    known = ours.get(table.name)
    if known is None:
        return table
    return table._replace(columns=tuple(column for column in table.columns if column in known))
