"""Refuse the database of another application: the mesh must not move into it unasked."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from vox_mesh.errors import ForeignDatabase
from vox_mesh.store.engine import Ask
from vox_mesh.store.engines.file import turn_path
from vox_mesh.store.schema.shape import expected
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Statement

_TABLES: Final = named("schema")["tables"]
_MESH_SCHEMA: Final = "mesh_schema"
_MAX_LISTED: Final = 3


async def refuse_if_foreign(ask: Ask) -> None:
    """Raise `ForeignDatabase` if the database has tables of an application and no mesh."""
    _refuse([str(row["name"]) for row in await ask(Statement(_TABLES))])


def refuse_foreign_file(path: Path) -> None:
    """Raise `ForeignDatabase` for the file of an application, without changing it.

    A file that a mesh has opened before is left to `refuse_if_foreign`. One without a log is opened
    as immutable: SQLite would create files next to it even for a reader.
    """
    if turn_path(path).exists() or not path.is_file():
        return
    mode = "mode=ro" if _has_log(path) else "mode=ro&immutable=1"
    with (
        suppress(sqlite3.Error),  # reported when it is opened
        closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)) as connection,
    ):
        _refuse([name for (name,) in connection.execute(_TABLES)])


def _has_log(path: Path) -> bool:
    """Return whether another program has the file open in WAL mode, or left changes in its log."""
    log = Path(f"{path}-wal")
    return log.exists() and log.stat().st_size > 0


def _refuse(names: Collection[str]) -> None:
    foreign = [name for name in names if ("table", name) not in expected()]
    if not foreign or _MESH_SCHEMA in names:
        return
    more = f" and {len(foreign) - _MAX_LISTED} more" if len(foreign) > _MAX_LISTED else ""
    raise ForeignDatabase(
        "the database holds tables of another application and no mesh: "
        f"{', '.join(foreign[:_MAX_LISTED])}{more}",
        hint="set VOX_DB_URL or VOX_DB_PATH to a database of its own, "
        "or run `vox-mesh db init` to add the mesh to this one",
    )
