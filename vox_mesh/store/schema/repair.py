"""Repair the schema of a database of the right version: recreate missing parts without touching rows."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from vox_mesh.errors import DatabaseBusy, DatabaseFault
from vox_mesh.store.batch import Batch
from vox_mesh.store.engine import Ask, Engine
from vox_mesh.store.schema.shape import SchemaDifference, definitions_at, differences, expected
from vox_mesh.store.schema.tables import quoted

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
    found = await definitions_at(ask)
    statements: list[str] = []
    repaired: list[SchemaDifference] = []
    remaining: list[SchemaDifference] = []
    for each in differences(expected(), found):
        key = (each.type, each.name)
        if each.type in _IN_TABLES or (each.type == "table" and key in found):
            remaining.append(each)
            continue
        if key in found:
            statements.append(f"DROP {each.type.upper()} {quoted(each.name)}")
        statements.append(expected()[key])
        repaired.append(each)
    return RepairPlan(tuple(statements), tuple(repaired), tuple(remaining))


async def repair(engine: Engine, plan: RepairPlan) -> None:
    """Run the plan in one transaction."""
    if not plan.statements:
        return
    batch = Batch()
    for statement in plan.statements:
        batch.add(statement)
    result = await engine.run(batch.seal())
    if result.committed:
        _log.info("schema repaired: %s", "; ".join(map(str, plan.repaired)))
        return
    error = result.error
    message = error.message if error else "the transaction was cut short"
    if error is not None and error.is_busy:
        raise DatabaseBusy(f"the database is busy: {message}")
    raise DatabaseFault(f"the schema was not repaired, nothing was changed: {message}", hint="run it again")
