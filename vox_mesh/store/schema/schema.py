"""Create, migrate and check the schema. The first process to connect migrates, every process checks.

The lock is the database's own write transaction: a migration first checks that the recorded version is still
the one it was planned for, and records the new version as its last step. Of several concurrent processes one
commits; the others find the new version and continue. No migration is ever applied in part.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from vox_mesh.errors import BackupRefused, DatabaseBusy, DatabaseFault, SchemaDiffers, SchemaTooNew
from vox_mesh.store.batch import Batch, StepError
from vox_mesh.store.engine import Ask, Engine
from vox_mesh.store.rows import Value, whole_number
from vox_mesh.store.schema.foreign import refuse_if_foreign
from vox_mesh.store.schema.migrations import Migration, migrations, newest_version, oldest_code
from vox_mesh.store.schema.shape import SchemaDifference, definitions_of, differences, expected, objects_at
from vox_mesh.store.schema.statements import ddl, named
from vox_mesh.store.script import Statement

VERSION: Final = newest_version()
"""The version of `sql/coordination.sql`: the highest number in `sql/migrations/`."""

UNFINISHED: Final = 2**31 - 1
"""The version of a database during a restore, so that all code is too old for it."""

_log = logging.getLogger(__name__)

_SQL: Final = named("schema")
_TIMEOUT_S: Final = 30.0
_PATIENCE_S: Final = 240.0  # for each migration: to index a large table takes as long as to read it
_ENDED_BY_SERVER: Final = "TRANSACTION_TIMEOUT"  # sqld: after 5 s, if a writer or a checkpoint waits
_STOP_WRITERS: Final = "stop all nodes, run `vox-mesh db migrate`, and start them again"
_ATTEMPTS: Final = 10
_MAX_LISTED: Final = 3  # differences listed in an error
DROPPABLE: Final = "find out who created it, then run `vox-mesh db migrate --drop-unexpected`"
_CREATED_FIRST: Final = ("CREATE TABLE IF NOT EXISTS mesh_schema ", "CREATE TABLE IF NOT EXISTS refusals ")


class MigrationPlan(NamedTuple):
    """The effect of one migration on a given database, and the state that it assumes."""

    migration: Migration
    version: int
    """The version of the database before it."""
    statements: tuple[str, ...]
    found: tuple[bool, ...]
    """Which of the migration's conditions hold."""


class TransactionEnded(DatabaseFault):
    """The server has ended the transaction of a migration; nothing was changed."""


async def ensure_schema(engine: Engine, *, beside_others: bool = False) -> int:
    """Create the schema or migrate it to this version, unless it is newer. Return its version.

    With `beside_others` it may also be created in the database of another application.

    Raises:
        ForeignDatabase: The database holds other tables and no mesh.
        SchemaTooNew: This code can't work with the database.
        SchemaDiffers: The database does not have the shape of its version.
    """
    return await check_schema(engine.query, await migrate(engine, beside_others=beside_others))


async def check_schema(ask: Ask, version: int) -> int:
    """Raise `SchemaDiffers` if the database, of this version, has another shape. Return its version."""
    found = await differences_at(ask, version)
    if found:
        read_at, (version, _) = version, await versions_at(ask)
        if version != read_at:  # it was migrated meanwhile
            found = await differences_at(ask, version)
    refuse_if_different(found, version)
    return version


async def differences_at(ask: Ask, version: int) -> list[SchemaDifference]:
    """Return what is missing, different or unexpected in the queried database, which has this version.

    What a newer version has added is not known here. It adds no trigger without excluding this code
    (`oldest-code`), so an unknown trigger is unexpected in every version.
    """
    found = await objects_at(ask)
    definitions = definitions_of(found)
    if version <= VERSION and definitions == expected():  # the usual case
        return []
    from vox_mesh.store.schema.unexpected import changed_triggers, unexpected, unexpected_triggers

    if version > VERSION:
        return [*changed_triggers(found), *unexpected_triggers(found)]
    return [*differences(expected(), definitions), *unexpected(found)]


async def migrate(engine: Engine, *, beside_others: bool = True, attempts: int = 1) -> int:
    """Create the schema or apply all pending migrations. Return its version, which may be newer.

    `attempts` is how often a server may end a transaction before `TransactionEnded` is raised.
    """
    version, needed = await versions_at(engine.query)
    refuse_if_too_new(version, needed)
    if version >= VERSION:
        return version
    if not version and not beside_others:
        await refuse_if_foreign(engine.query)
    if version:  # no trigger but those of the mesh may fire during a migration
        from vox_mesh.store.schema.unexpected import unexpected_triggers

        refuse_if_different(unexpected_triggers(await objects_at(engine.query), version), version)
    pending = sum(each.number > version for each in migrations()) if version else 0
    timeout_s = _TIMEOUT_S + _PATIENCE_S * pending
    try:
        async with asyncio.timeout(timeout_s):
            return await _create_or_migrate(engine, version, attempts)
    except TimeoutError:
        raise DatabaseBusy(
            f"the schema was not migrated: the database was busy for {timeout_s:g} s",
            hint="check for a process that writes to the database and is stopped or hanging",
        ) from None


def refuse_if_too_new(version: int, needed: int) -> None:
    """Raise `SchemaTooNew` if the database needs newer code than this."""
    if needed > VERSION:
        raise SchemaTooNew(
            f"the database has schema version {version}, which needs code for version {needed}; "
            f"this is version {VERSION}",
            hint="upgrade vox-mesh on this machine",
        )


def refuse_if_different(found: Sequence[SchemaDifference], version: int) -> None:
    """Raise `SchemaDiffers` on any difference; queries name indexes and fail without them."""
    if found:
        can_be_dropped = any(getattr(each, "drop", "") for each in found)
        more = f" and {len(found) - _MAX_LISTED} more" if len(found) > _MAX_LISTED else ""
        raise SchemaDiffers(
            f"the database has schema version {version} but another shape: "
            f"{'; '.join(map(str, found[:_MAX_LISTED]))}{more}",
            differences=[str(each) for each in found],
            hint=DROPPABLE if can_be_dropped else "run `vox-mesh db migrate --status` to see what to do",
        )


async def versions_at(ask: Ask) -> tuple[int, int]:
    """Return the schema's version and the oldest code that can work with it; zeros without a schema."""
    if not await ask(Statement(_SQL["is_there"])):
        return 0, 0
    row = (await ask(Statement(_SQL["versions"])))[0]
    if row["version"] == UNFINISHED:
        raise BackupRefused(
            "a restore into this database was begun and is not finished",
            hint="run `vox-mesh db restore` with the same file again",
        )
    version, oldest = row["version"] or 0, row["oldest_code"] or 0
    return whole_number(version, "the schema version"), whole_number(oldest, "the oldest version of the code")


async def applied_at(ask: Ask) -> list[dict[str, Value]]:
    """Return the version that the database was created with and each migration since, with their times."""
    if not await ask(Statement(_SQL["is_there"])):
        return []
    return [dict(zip(row.columns, row, strict=True)) for row in await ask(Statement(_SQL["applied"]))]


async def pending_plan(ask: Ask, version: int) -> MigrationPlan | None:
    """Plan the next migration of a database of this version; `None` without a schema or a migration."""
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


async def _create_or_migrate(engine: Engine, version: int, attempts: int) -> int:
    """Create the schema or apply all pending migrations; other processes may do so concurrently."""
    for _ in range(_ATTEMPTS + len(migrations())):
        plan = await pending_plan(engine.query, version)
        try:
            is_done = await (_create(engine) if plan is None else apply_plan(engine, plan))
        except TransactionEnded as ended:
            attempts -= 1
            if not attempts:
                raise
            _log.warning("migration ended by the server, trying again: %s", ended)
            continue
        if is_done and plan is not None:
            number, name = plan.migration.number, plan.migration.name
            _log.info("schema migrated: from=%d to=%d migration=%s", version, number, name)
        version, needed = await versions_at(engine.query)
        refuse_if_too_new(version, needed)
        if version >= VERSION:
            return version
    raise DatabaseBusy(
        "the schema was not migrated: it kept changing", hint="run `vox-mesh db migrate --status`"
    )


async def apply_plan(engine: Engine, plan: MigrationPlan) -> bool:
    """Apply a migration. Return `False`, with nothing changed, if the database has changed since the plan."""
    batch = Batch()
    batch.patience_s = _PATIENCE_S
    guards = [batch.add(_SQL["refuse_unless_version"], (plan.version,))]
    if plan.found:
        changed = " OR ".join(f"(({each}) IS TRUE) <> ?" for each in plan.migration.conditions)
        found = [int(held) for held in plan.found]
        guards.append(batch.add(f"INSERT INTO refusals (reason) SELECT 'refused' WHERE {changed}", found))
    for statement in plan.statements:
        batch.add(statement)
    number = plan.migration.number
    batch.add(_SQL["record_version"], (number, oldest_code(number)))
    return await _run(engine, batch, guards, f"migration {number:04d} failed, nothing was changed")


async def _create(engine: Engine) -> bool:
    batch = Batch()
    statements = sorted(ddl(), key=lambda sql: not sql.startswith(_CREATED_FIRST))
    for statement in statements[: len(_CREATED_FIRST)]:
        batch.add(statement)
    guard = batch.add(_SQL["refuse_unless_version"], (None,))
    for statement in statements[len(_CREATED_FIRST) :]:
        batch.add(statement)
    batch.add(_SQL["record_version"], (VERSION, oldest_code(VERSION)))
    return await _run(engine, batch, [guard], "the schema can't be created")


async def _run(engine: Engine, batch: Batch, guards: list[int], fault: str) -> bool:
    result = await engine.run(batch.seal())
    if result.committed:
        return True
    for guard in guards:
        refused = result.steps[guard]
        if isinstance(refused, StepError) and refused.is_constraint:
            return False
    error = result.error
    message = error.message if error else "the transaction was cut short"
    if error is not None and error.is_busy:
        raise DatabaseBusy(f"the database is busy: {message}")
    if error is not None and error.code == _ENDED_BY_SERVER:
        raise TransactionEnded(f"{fault}: {message}", hint=_STOP_WRITERS)
    raise DatabaseFault(f"{fault}: {message}", hint="run `vox-mesh doctor`")
