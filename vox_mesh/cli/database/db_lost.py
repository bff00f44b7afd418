"""`vox-mesh db lost`: acknowledged writes that a rollback of the database lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import click
import orjson

from vox_mesh.cli.support.output import json_option, show_lines, show_one, table
from vox_mesh.cli.support.session import engine_session, start_shared
from vox_mesh.model.locks.records import iso_of
from vox_mesh.settings import Settings
from vox_mesh.store.engine import Ask
from vox_mesh.store.replica.overtaken import overtaken_copies
from vox_mesh.store.rows import Row
from vox_mesh.store.schema.lost import LostRow, lost_rows
from vox_mesh.store.schema.schema import ensure_schema
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Statement

_EPOCHS: Final = named("rollback")["epochs"]
_MAX_ROWS: Final = 10_000


@click.command()
@click.option("--discard", is_flag=True, help="Remove the replica copies kept as evidence.")
@json_option
def lost(discard: bool, as_json: bool) -> None:
    """List acknowledged work that a rollback lost.

    Lists each detected rollback with the range of lost log entries. If a node on this machine has set its
    replica aside, also lists every row that is in the replica and not, or not the same, in the database. Run
    it on every machine that has a node before you discard the copies.

    \b
    Example:
      vox-mesh db lost --json
      vox-mesh db lost --discard
    """
    settings = start_shared("db lost")
    if discard:
        show_one({"discarded": _discard(settings)}, as_json=as_json)
        return
    record = asyncio.run(_lost(settings))
    if as_json:
        show_one(record, as_json=True)
        return
    for name in ("rollbacks", "copies", "rows"):
        found = record[name]
        show_lines([f"{name}: {len(found)}", *(table([_flat(each) for each in found]) if found else ())])
    if record["truncated"]:
        show_lines([f"only the first {_MAX_ROWS} rows are shown"])


def _discard(settings: Settings) -> int:
    copies = overtaken_copies(settings.db_path)
    for copy in copies:
        copy.unlink(missing_ok=True)
    return len(copies)


async def _lost(settings: Settings) -> dict[str, Any]:
    mesh = (settings.scope_id, settings.repository_id)
    copies = overtaken_copies(settings.db_path)
    async with engine_session(settings) as engine:
        await ensure_schema(engine)
        epochs = await engine.query(Statement(_EPOCHS, mesh))
        rows = [row for copy in copies for row in await _rows(copy, mesh, engine.query)]
    return {
        "rollbacks": [_rollback(row) for row in epochs],
        "copies": [{"file": str(copy), "bytes": copy.stat().st_size} for copy in copies],
        "rows": [row._asdict() for row in rows[:_MAX_ROWS]],
        "truncated": len(rows) > _MAX_ROWS,
    }


async def _rows(copy: Path, mesh: tuple[str, str], ask: Ask) -> list[LostRow]:
    found: list[LostRow] = []
    async for row in lost_rows(copy, *mesh, ask):
        found.append(row)
        if len(found) > _MAX_ROWS:
            break
    return found


def _rollback(row: Row) -> dict[str, Any]:
    """Return a rollback's record: the lost log entries, by chain."""
    detail = orjson.loads(row["detail"])
    log = detail.get("log", {})
    return {
        "epoch": row["epoch"],
        "detected_at": iso_of(row["detected_ms"]),
        "node_id": row["node_id"],
        "op_id": row["op_id"],
        "evidence": detail.get("evidence", "restored from a backup"),
        "after_log_id": log.get("last_id"),
        "to_log_id": log.get("known_id"),
        "chains": detail.get("chains", {}),
    }


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    return {
        name: orjson.dumps(value).decode() if isinstance(value, dict) else value
        for name, value in record.items()
    }
