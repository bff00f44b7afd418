"""Query the database as a whole, for `db status` and `doctor`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from vox_mesh.errors import DatabaseFault, MeshError, ScriptFailed, Unauthorized
from vox_mesh.store.batch import Batch, StepError
from vox_mesh.store.engine import Engine
from vox_mesh.store.schema.statements import named
from vox_mesh.store.schema.tables import TableColumns, mesh_tables
from vox_mesh.store.script import Statement, WriterId
from vox_mesh.store.slots import spools
from vox_mesh.store.spool.spool import SpoolStatus, status_of
from vox_mesh.store.store import Store

_SQL: Final = named("probe")
_CLOCK: Final = named("database_clock")
_FILE_ACCESS: Final = (
    "SELECT lsmode(0)",
    "SELECT sha3_query('SELECT 1')",
    "SELECT count(*) FROM fsdir('/dev/null')",
)
"""Statements that succeed, without an effect, on a server that gives every client access to its files."""

_MESH_COLUMNS: Final = ("scope_id", "repository_id")


async def row_counts(store: Store) -> dict[str, int]:
    """Return the number of rows in each table of the mesh, limited to this mesh where rows belong to one."""
    counts = " UNION ALL ".join(_count(table) for table in mesh_tables())
    params = [value for table in mesh_tables() if _is_shared(table) for value in _ids(store.writer_id)]
    return {row["table_name"]: row["rows"] for row in await store.read(counts, params)}


def _count(table: TableColumns) -> str:
    where = " WHERE scope_id = ? AND repository_id = ?" if _is_shared(table) else ""
    return f"SELECT '{table.name}' AS table_name, count(*) AS rows FROM {table.quoted}{where}"


def _is_shared(table: TableColumns) -> bool:
    return set(_MESH_COLUMNS) <= set(table.columns)


def _ids(writer_id: WriterId) -> tuple[str, str]:
    return writer_id.scope_id, writer_id.repository_id


async def ping(engine: Engine) -> None:
    """Run the cheapest query."""
    await engine.query(Statement(_SQL["ping"]))


async def now_ms(engine: Engine) -> int:
    """Return the database's clock, in milliseconds since 1970."""
    now: int = (await engine.query(Statement(_SQL["now_ms"]))).value
    return now


class ClockReport(NamedTuple):
    """The correction of the database's clock, and the number of nodes that have noticed a step since."""

    correction_ms: int = 0
    witnesses: int = 0


NO_CORRECTION: Final = ClockReport()
"""The report of a database whose clock was never corrected."""


async def clock_report(engine: Engine) -> ClockReport:
    """Return the nodes' view of the database's clock; no correction in a database of an older version."""
    if not await engine.query(Statement(_CLOCK["is_there"])):
        return NO_CORRECTION
    return ClockReport._make((await engine.query(Statement(_CLOCK["report"])))[0])


async def checkpoint_pages(engine: Engine) -> int:
    """Return the number of log pages after which a commit also checkpoints; 0 means never."""
    pages: int = (await engine.query(Statement(_SQL["checkpoint_pages"]))).value
    return pages


async def has_file_access(engine: Engine) -> bool:
    """Return whether SQL statements can read and write files of the database's machine."""
    for sql in _FILE_ACCESS:
        try:
            await engine.query(Statement(sql))
        except ScriptFailed:
            continue
        return True
    return False


async def try_to_write(engine: Engine) -> None:
    """Commit a change that leaves nothing behind, or raise the error that prevents writing."""
    batch = Batch()
    attempted = batch.add(_SQL["begin_write_test"])
    batch.add(_SQL["end_write_test"])
    result = await engine.run(batch.seal())
    step = result.steps[attempted]
    if isinstance(step, StepError):
        raise _write_error(step)
    if not result.committed and result.error is not None:
        raise _write_error(result.error)


def _write_error(error: StepError) -> MeshError:
    reason = f"nothing can be written: {error.message}"
    if error.is_fault:
        return DatabaseFault(reason, hint="make room on the disk of the database")
    return Unauthorized(reason, hint="use a token that may write")


def all_spools(home: Path) -> SpoolStatus:
    """Return the total status of the spools of all slots, including those of other processes."""
    return _sum_statuses(status_of(path) for path in spools(home))


def _sum_statuses(parts: Iterable[SpoolStatus]) -> SpoolStatus:
    statuses = list(parts)
    return SpoolStatus(
        depth=sum(part.depth for part in statuses),
        bytes=sum(part.bytes for part in statuses),
        oldest_ms=min((part.oldest_ms for part in statuses if part.oldest_ms is not None), default=None),
        refused=sum(part.refused for part in statuses),
    )
