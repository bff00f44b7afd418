"""`vox-mesh db compact`: rewrite the database file without its free pages."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any, Final

import click

from vox_mesh.cli.support.output import json_option, show_one
from vox_mesh.cli.support.session import engine_session, start_shared
from vox_mesh.errors import BadSettings, DatabaseBusy
from vox_mesh.model.base.backends import Backend
from vox_mesh.settings import Settings
from vox_mesh.store.engine import Engine
from vox_mesh.store.engines.file import FileEngine
from vox_mesh.store.schema.schema import versions_at
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Statement

_SQL: Final = named("probe")
_SHOWN: Final = 5
_COPIES: Final = 2
"""The database is written to a temporary file, and from there to its log."""


@click.command()
@json_option
def compact(as_json: bool) -> None:
    """Rewrite the database file without free space.

    Stop all nodes first: nothing can be written meanwhile. A database created by version 0.1 or earlier needs
    it once; after that, nodes give back the space of what they prune. It takes as much free disk space as
    twice the file. If it is interrupted, the file is as before. A server gives no space back: restore a
    backup into a new database.

    \b
    Example:
      vox-mesh db compact
    """
    show_one(asyncio.run(_compact(start_shared("db compact"))), as_json=as_json)


async def _compact(settings: Settings) -> dict[str, Any]:
    async with engine_session(settings) as engine:
        if settings.backend is not Backend.FILE or not isinstance(engine, FileEngine):
            raise BadSettings(
                "nothing compacted: the server gives no space back, and fills free pages with new rows",
                hint="to make it smaller, restore a backup into a new database",
            )
        await _refuse_live_nodes(engine)
        before = await engine.space()
        _refuse_small_disk(settings.db_path, before.pages * before.page_bytes)
        await engine.compact()
        after = await engine.space()
    return {
        "file": str(settings.db_path),
        "bytes_before": before.pages * before.page_bytes,
        "bytes": after.pages * after.page_bytes,
    }


async def _refuse_live_nodes(engine: Engine) -> None:
    version, _ = await versions_at(engine.query)
    rows = await engine.query(Statement(_SQL["live_nodes"])) if version else []
    nodes = [f"{row['node_id']} (pid {row['pid']} on {row['host']})" for row in rows]
    if nodes:
        more = [] if len(nodes) <= _SHOWN else [f"{len(nodes) - _SHOWN} more"]
        raise DatabaseBusy(
            f"nothing compacted: these nodes run: {', '.join([*nodes[:_SHOWN], *more])}",
            hint="stop them; one that was killed counts as stopped a minute later",
        )


def _refuse_small_disk(path: Path, size: int) -> None:
    free = shutil.disk_usage(path.absolute().parent).free
    if free < _COPIES * size:
        raise BadSettings(
            f"nothing compacted: it takes {_COPIES * size} bytes of disk, and {free} are free",
            hint=f"free some space on the disk of {path}",
        )
