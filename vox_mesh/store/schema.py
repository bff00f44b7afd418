"""The schema: created by whoever comes first, checked by everyone."""

from __future__ import annotations

import asyncio
from typing import Final

from vox_mesh.errors import BackupRefused, DatabaseBusy, DatabaseFault, SchemaTooNew
from vox_mesh.store.batch import Batch
from vox_mesh.store.engine import Ask, Engine
from vox_mesh.store.script import Statement
from vox_mesh.store.statements import ddl, named

VERSION: Final = 9
"""The version of `sql/coordination.sql`."""

OLDEST_CODE: Final = 1
"""The oldest version of the code that can work with this schema."""

UNFINISHED: Final = 2**31 - 1
"""The version of a database while a restore into it is not finished: no code is new enough for it."""

_SQL: Final = named("schema")
_CREATE_S: Final = 30.0


async def ensure_schema(engine: Engine) -> int:
    """Bring the database to this version, unless it is newer; the version it now has."""
    version, oldest_code = await versions_at(engine.query)
    if oldest_code > VERSION:
        raise SchemaTooNew(
            f"the database has schema version {version}, which needs code for version {oldest_code}; "
            f"this is version {VERSION}",
            hint="upgrade vox-mesh on this machine",
        )
    if version >= VERSION:
        return version
    try:
        async with asyncio.timeout(_CREATE_S):
            await _create(engine)
    except TimeoutError:
        raise DatabaseBusy(
            f"another process has kept the schema from being created for {_CREATE_S:g} s",
            hint="is a process that writes to the database stopped or hanging?",
        ) from None
    return VERSION


async def _create(engine: Engine) -> None:
    batch = Batch()
    for statement in ddl():
        batch.add(statement)
    batch.add(_SQL["record_version"], (VERSION, OLDEST_CODE))
    result = await engine.run(batch.seal())
    if not result.committed:
        error = result.error
        message = error.message if error else "the transaction was cut short"
        if error is not None and error.is_busy:
            raise DatabaseBusy(f"the database is busy: {message}")
        raise DatabaseFault(f"the schema can't be created: {message}", hint="run `vox-mesh doctor`")


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
