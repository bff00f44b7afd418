"""Repair a schema of the right version without touching rows, and rehearse a migration in memory."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vox_mesh.errors import DatabaseBusy, DatabaseFault
from vox_mesh.store.batch import Batch
from vox_mesh.store.engine import Ask, Engine
from vox_mesh.store.engines.memory import MemoryEngine
from vox_mesh.store.schema.schema import VERSION, pending_plan, versions_at
from vox_mesh.store.schema.shape import SchemaDifference, definitions_of, differences, expected, objects_at
from vox_mesh.store.schema.statements import ddl, named
from vox_mesh.store.schema.tables import quoted
from vox_mesh.store.schema.unexpected import UnexpectedObject, unexpected, unexpected_triggers
from vox_mesh.store.script import Statement

_log = logging.getLogger(__name__)

_IN_TABLES: Final = frozenset({"column", "constraint"})


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """Statements that recreate missing parts, and differences that only rewriting a table could repair."""

    statements: tuple[str, ...]
    repaired: tuple[SchemaDifference, ...]
    remaining: tuple[SchemaDifference, ...]


async def repair_plan(ask: Ask) -> RepairPlan:
    """Compare a database of this version with the schema, and plan its repair."""
    objects = await objects_at(ask)
    found = definitions_of(objects)
    statements: list[str] = []
    repaired: list[SchemaDifference] = []
    remaining: list[SchemaDifference] = [*unexpected(objects)]
    for each in differences(expected(), found):
        key = (each.type, each.name)
        if each.type in _IN_TABLES or (each.type == "table" and {key, ("view", each.name)} & found.keys()):
            remaining.append(each)
            continue
        if key in found:
            statements.append(f"DROP {each.type.upper()} {quoted(each.name)}")
        statements.append(expected()[key])
        repaired.append(each)
    return RepairPlan(tuple(statements), tuple(repaired), tuple(remaining))


async def repair(engine: Engine, plan: RepairPlan) -> None:
    """Run the plan in one transaction."""
    if plan.statements:
        await _run_all(engine, plan.statements)
        _log.info("schema repaired: %s", "; ".join(map(str, plan.repaired)))


async def unexpected_at(ask: Ask) -> list[UnexpectedObject]:
    """Return the unexpected objects of the queried database; of another version than this, its triggers."""
    objects = await objects_at(ask)
    version, _ = await versions_at(ask)
    if version == VERSION:
        return unexpected(objects)
    return unexpected_triggers(objects, version if version < VERSION else None) if version else []


async def drop_unexpected(engine: Engine) -> list[UnexpectedObject]:
    """Drop the unexpected objects that can be dropped without losing rows. Return them."""
    dropped = [each for each in await unexpected_at(engine.query) if each.drop]
    if dropped:
        await _run_all(engine, [each.drop for each in dropped])
        _log.warning("schema: unexpected objects dropped: %s", "; ".join(map(str, dropped)))
    return dropped


async def _run_all(engine: Engine, statements: Sequence[str]) -> None:
    batch = Batch()
    for statement in statements:
        batch.add(statement)
    result = await engine.run(batch.seal())
    if result.committed:
        return
    error = result.error
    message = error.message if error else "the transaction was cut short"
    if error is not None and error.is_busy:
        raise DatabaseBusy(f"the database is busy: {message}")
    raise DatabaseFault(f"the schema was not repaired, nothing was changed: {message}", hint="run it again")


# --- rehearsal -----------------------------------------------------------------------------------


_COOKIE: Final = Statement("PRAGMA schema_version")  # rises with every schema change


@dataclass(frozen=True, slots=True)
class PlannedStatement:
    """A statement and its migration."""

    migration: str
    sql: str

    def as_record(self) -> dict[str, str]:
        """Return the record to print."""
        return {"migration": self.migration, "statement": self.sql}


async def rehearse(ask: Ask) -> list[PlannedStatement]:
    """Return the statements that `migrate` and `repair` would run on the queried database; change nothing.

    Statements without effect are left out, such as creating what exists. Conditions on the shape evaluate as
    in the database itself; the copy has no rows except one in `mesh_schema`.
    """
    version, _ = await versions_at(ask)
    if not version:
        return [PlannedStatement("create", sql) for sql in ddl()]
    copy = await _empty_copy(ask, version)
    steps: list[PlannedStatement] = []
    try:
        while version < VERSION:
            plan = await pending_plan(copy.query, version)
            assert plan is not None
            name = plan.migration.file_name
            steps += [PlannedStatement(name, sql) for sql in plan.statements if await _has_effect(copy, sql)]
            version = plan.migration.number
        if version == VERSION:
            steps += [PlannedStatement("repair", sql) for sql in (await repair_plan(copy.query)).statements]
    finally:
        await copy.close()
    return steps


async def _empty_copy(ask: Ask, version: int) -> MemoryEngine:
    copy = MemoryEngine()
    for each in await objects_at(ask):
        await _run(copy, each.sql)  # may fail for a user's virtual table, which no migration needs
    await _run(copy, named("schema")["record_version"], version, 0)
    return copy


async def _has_effect(copy: MemoryEngine, sql: str) -> bool:
    before = (await copy.query(_COOKIE)).value
    await _run(copy, sql)
    return not sql.startswith(("CREATE", "DROP")) or (await copy.query(_COOKIE)).value != before


async def _run(copy: MemoryEngine, sql: str, *values: int) -> None:
    batch = Batch()
    batch.add(sql, values)
    await copy.run(batch.seal())
