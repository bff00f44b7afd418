"""Questions about the database as a whole: for `db status` and `doctor`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from vox_mesh.errors import DatabaseFault, MeshError, Unauthorized
from vox_mesh.store.batch import Batch, StepError
from vox_mesh.store.engine import Engine
from vox_mesh.store.schema.statements import named
from vox_mesh.store.schema.tables import TableColumns, mesh_tables
from vox_mesh.store.script import Statement
from vox_mesh.store.slots import spools
from vox_mesh.store.spool.spool import SpoolStatus, status_of
from vox_mesh.store.store import Store
from vox_mesh.store.write.request import Tenant

_SQL: Final = named("probe")
_CLOCK: Final = named("database_clock")
_TENANT: Final = ("scope_id", "repository_id")


async def row_counts(store: Store) -> dict[str, int]:
    """How many rows each table of the mesh has: of this scope and repository, where rows belong to one."""
    counts = " UNION ALL ".join(_count(table) for table in mesh_tables())
    params = [value for table in mesh_tables() if _is_shared(table) for value in _ids(store.tenant)]
    return {row["table_name"]: row["rows"] for row in await store.read(counts, params)}


def _count(table: TableColumns) -> str:
    where = " WHERE scope_id = ? AND repository_id = ?" if _is_shared(table) else ""
    return f"SELECT '{table.name}' AS table_name, count(*) AS rows FROM {table.quoted}{where}"


def _is_shared(table: TableColumns) -> bool:
    return set(_TENANT) <= set(table.columns)


def _ids(tenant: Tenant) -> tuple[str, str]:
    return tenant.scope_id, tenant.repository_id


async def ping(engine: Engine) -> None:
    """Ask the least that can be asked."""
    await engine.query(Statement(_SQL["ping"]))


async def now_ms(engine: Engine) -> int:
    """The database's clock, in milliseconds since 1970."""
    now: int = (await engine.query(Statement(_SQL["now_ms"]))).value
    return now


class ClockReport(NamedTuple):
    """The correction of the database's clock, and how many nodes have noticed a step since."""

    correction_ms: int = 0
    witnesses: int = 0


NO_CORRECTION: Final = ClockReport()
"""As long as nobody has set the database's clock."""


async def clock_report(engine: Engine) -> ClockReport:
    """What the nodes say of the database's clock; nothing in a database of an older version."""
    if not await engine.query(Statement(_CLOCK["is_there"])):
        return NO_CORRECTION
    return ClockReport._make((await engine.query(Statement(_CLOCK["report"])))[0])


async def checkpoint_pages(engine: Engine) -> int:
    """After how many pages of log a commit also checkpoints; 0: never."""
    pages: int = (await engine.query(Statement(_SQL["checkpoint_pages"]))).value
    return pages


async def try_to_write(engine: Engine) -> None:
    """Commit a change that leaves nothing behind; raise what keeps us from writing, such as a full disk."""
    batch = Batch()
    tried = batch.add(_SQL["try_to_write"])
    batch.add(_SQL["take_back_the_try"])
    result = await engine.run(batch.seal())
    step = result.steps[tried]
    if isinstance(step, StepError):
        raise _not_written(step)
    if not result.committed and result.error is not None:
        raise _not_written(result.error)


def _not_written(error: StepError) -> MeshError:
    reason = f"nothing can be written: {error.message}"
    if error.is_fault:
        return DatabaseFault(reason, hint="make room on the disk of the database")
    return Unauthorized(reason, hint="use a token that may write")


def all_spools(home: Path) -> SpoolStatus:
    """What waits in the spools of all slots, those of other processes included."""
    return _together(status_of(path) for path in spools(home))


def _together(parts: Iterable[SpoolStatus]) -> SpoolStatus:
    listed = list(parts)
    return SpoolStatus(
        depth=sum(part.depth for part in listed),
        bytes=sum(part.bytes for part in listed),
        oldest_ms=min((part.oldest_ms for part in listed if part.oldest_ms is not None), default=None),
        refused=sum(part.refused for part in listed),
    )
