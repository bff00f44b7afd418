"""The schema: created or migrated by whichever process comes first, checked by every process.

The lock is the database's own write transaction: a migration begins by checking that the recorded version is
still the one it was planned for, and records the new version as its last step. Of several processes that try,
one commits; the others find the new version and go on. Nothing is ever half applied.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from vox_mesh.errors import BackupRefused, DatabaseBusy, DatabaseFault, SchemaDiffers, SchemaTooNew
from vox_mesh.store.batch import Batch, StepError
from vox_mesh.store.engine import Ask, Engine
from vox_mesh.store.migrations import Migration, migrations, newest_version, oldest_code
from vox_mesh.store.script import Statement
from vox_mesh.store.shape import Difference, differences_at
from vox_mesh.store.statements import ddl, named

VERSION: Final = newest_version()
"""The version of `sql/coordination.sql`: the highest number in `sql/migrations/`."""

UNFINISHED: Final = 2**31 - 1
"""The version of a database while a restore into it is not finished: no code is new enough for it."""

_log = logging.getLogger(__name__)

_SQL: Final = named("schema")
_TIMEOUT_S: Final = 30.0
_ATTEMPTS: Final = 10
_NAMED: Final = 3  # differences in an error
_FIRST: Final = ("mesh_schema", "refusals")  # what the check of the version needs


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """What one migration does to a certain database, and what it takes for granted about it."""

    migration: Migration
    version: int
    """The version that the database has before it."""
    statements: tuple[str, ...]
    found: tuple[bool, ...]
    """Which of the migration's conditions hold."""


async def ensure_schema(engine: Engine) -> int:
    """Create the schema or bring it to this version, unless it is newer; return the version it has now.

    Raises `SchemaTooNew` if this code can't work with the database, and `SchemaDiffers` if the database does
    not have the shape that its version stands for.
    """
    version, needed = await versions_at(engine.query)
    refuse_if_too_new(version, needed)
    if version < VERSION:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                version = await _bring_up(engine, version)
        except TimeoutError:
            raise DatabaseBusy(
                f"the schema was not migrated: the database was busy for {_TIMEOUT_S:g} s",
                hint="check for a process that writes to the database and is stopped or hanging",
            ) from None
    if version == VERSION:  # what a newer one looks like is not known here
        refuse_if_different(await differences_at(engine.query))
    return version


def refuse_if_too_new(version: int, needed: int) -> None:
    """Raise `SchemaTooNew` if the database needs newer code than this."""
    if needed > VERSION:
        raise SchemaTooNew(
            f"the database has schema version {version}, which needs code for version {needed}; "
            f"this is version {VERSION}",
            hint="upgrade vox-mesh on this machine",
        )


def refuse_if_different(found: list[Difference]) -> None:
    """Raise `SchemaDiffers` on any difference but in indexes: without those, queries are only slower."""
    serious = [each for each in found if each.type != "index"]
    if found:
        _log.warning("schema differs: %s", "; ".join(map(str, found)))
    if serious:
        more = f" and {len(serious) - _NAMED} more" if len(serious) > _NAMED else ""
        raise SchemaDiffers(
            f"the database has schema version {VERSION} but another shape: "
            f"{'; '.join(map(str, serious[:_NAMED]))}{more}",
            hint="run `vox-mesh db migrate --status` to see all differences and what to do",
        )


async def versions_at(ask: Ask) -> tuple[int, int]:
    """The schema's version and the oldest code that can work with it; zeros where there is none."""
    if not await ask(Statement(_SQL["is_there"])):
        return 0, 0
    row = (await ask(Statement(_SQL["versions"])))[0]
    if row["version"] == UNFINISHED:
        raise BackupRefused(
            "a restore into this database was begun and is not finished",
            hint="run `vox-mesh db restore` with the same file again",
        )
    return row["version"] or 0, row["oldest_code"] or 0


async def pending_plan(ask: Ask, version: int) -> MigrationPlan | None:
    """Plan the next migration of a database of this version; none if there is no schema, or nothing to do."""
    migration = next((each for each in migrations() if each.number > version), None)
    if not version or migration is None:
        return None
    held = dict(zip(migration.conditions, await _evaluate(ask, migration.conditions), strict=True))
    statements = tuple(
        each.sql for each in migration.changes if each.condition is None or held[each.condition]
    )
    return MigrationPlan(migration, version, statements, tuple(held.values()))


async def _evaluate(ask: Ask, conditions: tuple[str, ...]) -> list[bool]:
    if not conditions:
        return []
    columns = ", ".join(f"({each}) IS TRUE" for each in conditions)
    return [bool(value) for value in (await ask(Statement(f"SELECT {columns}")))[0]]


async def _bring_up(engine: Engine, version: int) -> int:
    """Create the schema or apply what is pending; another process may do it at the same time."""
    for _ in range(_ATTEMPTS + len(migrations())):
        plan = await pending_plan(engine.query, version)
        batch, guards = _creation() if plan is None else _migration(plan)
        result = await engine.run(batch.seal())
        if result.committed:
            reached = VERSION if plan is None else plan.migration.number
            if plan is not None:
                _log.info(
                    "schema migrated: from=%d to=%d migration=%s", version, reached, plan.migration.name
                )
            version = reached
        elif any(isinstance(result.steps[guard], StepError) for guard in guards) and _is_lost_race(
            result.error
        ):
            version, needed = await versions_at(engine.query)
            refuse_if_too_new(version, needed)
        else:
            raise _failure(result.error, plan)
        if version >= VERSION:
            return version
    raise DatabaseBusy(
        "the schema was not migrated: it kept changing", hint="run `vox-mesh db migrate --status`"
    )


def _creation() -> tuple[Batch, range]:
    batch = Batch()
    statements = sorted(ddl(), key=lambda sql: not sql.startswith(_CREATED_FIRST))
    for statement in statements[: len(_FIRST)]:
        batch.add(statement)
    guard = batch.add(_SQL["refuse_unless_version"], (None,))
    for statement in statements[len(_FIRST) :]:
        batch.add(statement)
    batch.add(_SQL["record_version"], (VERSION, oldest_code(VERSION)))
    return batch, range(guard, guard + 1)


def _migration(plan: MigrationPlan) -> tuple[Batch, range]:
    batch = Batch()
    guard = batch.add(_SQL["refuse_unless_version"], (plan.version,))
    conditions = plan.migration.conditions
    if conditions:
        changed = " OR ".join(f"(({each}) IS TRUE) <> ?" for each in conditions)
        batch.add(
            f"INSERT INTO refusals (reason) SELECT 'refused' WHERE {changed}",
            [int(held) for held in plan.found],
        )
    end = len(batch.steps)
    for statement in plan.statements:
        batch.add(statement)
    number = plan.migration.number
    batch.add(_SQL["record_version"], (number, oldest_code(number)))
    return batch, range(guard, end)


_CREATED_FIRST: Final = tuple(f"CREATE TABLE IF NOT EXISTS {name} " for name in _FIRST)


def _is_lost_race(error: StepError | None) -> bool:
    return error is not None and error.is_constraint


def _failure(error: StepError | None, plan: MigrationPlan | None) -> DatabaseBusy | DatabaseFault:
    message = error.message if error else "the transaction was cut short"
    if error is not None and error.is_busy:
        return DatabaseBusy(f"the database is busy: {message}")
    what = "the schema can't be created" if plan is None else f"migration {plan.migration.number:04d} failed"
    return DatabaseFault(f"{what}, nothing was changed: {message}", hint="run `vox-mesh doctor`")
