"""Rehearse a migration on an empty in-memory copy of the schema, to find the statements that it would run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vox_mesh.store.batch import Batch
from vox_mesh.store.engine import Ask
from vox_mesh.store.engines.memory import MemoryEngine
from vox_mesh.store.schema.repair import repair_plan
from vox_mesh.store.schema.schema import VERSION, pending_plan, versions_at
from vox_mesh.store.schema.statements import ddl, named
from vox_mesh.store.schema.tables import SQL
from vox_mesh.store.script import Statement

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
    for row in await ask(Statement(SQL["definitions"])):
        await _run(copy, row["sql"])  # may fail for a user's virtual table, which no migration needs
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
