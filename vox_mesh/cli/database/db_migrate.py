"""`vox-mesh db migrate`: show and apply schema migrations."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import click

from vox_mesh.cli.support.output import json_option, show_one, show_several
from vox_mesh.cli.support.session import engine_session, start_shared
from vox_mesh.errors import BadSettings
from vox_mesh.settings import Settings
from vox_mesh.store.schema.migrations import migrations
from vox_mesh.store.schema.repair import (
    PlannedStatement,
    RepairPlan,
    drop_unexpected,
    rehearse,
    repair,
    repair_plan,
)
from vox_mesh.store.schema.schema import DROPPABLE, VERSION, applied_at, refuse_if_different, versions_at
from vox_mesh.store.schema.schema import migrate as apply_migrations
from vox_mesh.store.schema.shape import SchemaDifference
from vox_mesh.store.schema.unexpected import UnexpectedObject

REPAIRABLE: Final = "run `vox-mesh db migrate`"
NOT_REPAIRABLE: Final = "restore a backup, or fix the table by hand"
_ATTEMPTS: Final = 2
"""A server's checkpoint, once a minute, ends a long transaction: the next one has a minute."""

_NOTHING: Final = RepairPlan((), (), ())


@click.command()
@click.option("--status", is_flag=True, help="Show versions, pending migrations and differences only.")
@click.option("--dry-run", is_flag=True, help="Show the statements without running them.")
@click.option(
    "--drop-unexpected", "drop", is_flag=True, help="Drop triggers and indexes that are not the mesh's."
)
@json_option
def migrate(status: bool, dry_run: bool, drop: bool, as_json: bool) -> None:
    """Migrate the schema to the version of this code.

    Nodes and commands do the same when they open an older database. This command also creates indexes,
    triggers, views and tables that are missing in a database of the right version. Each migration is one
    transaction and is applied once, however many processes try. Back up first.

    A trigger on the mesh's tables that is not the mesh's, or an index that can refuse rows, keeps nodes and
    commands from starting. Find out who created it, then drop it with --drop-unexpected.

    \b
    Example:
      vox-mesh db migrate --status
      vox-mesh db migrate --dry-run
      vox-mesh db migrate
    """
    if status + dry_run + drop > 1:
        raise BadSettings(
            "--status, --dry-run and --drop-unexpected can't be combined", hint="pass one of them"
        )
    settings = start_shared("db migrate")
    if status:
        show_one(asyncio.run(_status(settings)), as_json=as_json)
    elif dry_run:
        show_several([step.as_record() for step in asyncio.run(_rehearse(settings))], as_json=as_json)
    else:
        record, remaining = asyncio.run(_migrate(settings, drop))
        show_one(record, as_json=as_json)
        refuse_if_different(remaining, VERSION)


async def _rehearse(settings: Settings) -> list[PlannedStatement]:
    async with engine_session(settings) as engine:
        return await rehearse(engine.query)


async def _status(settings: Settings) -> dict[str, Any]:
    async with engine_session(settings) as engine:
        version, oldest_code = await versions_at(engine.query)
        applied = await applied_at(engine.query)
        plan = await repair_plan(engine.query) if version == VERSION else _NOTHING
    return {
        "schema_version": version,
        "code_version": VERSION,
        "oldest_code": oldest_code,
        "state": _state(version, oldest_code, plan),
        "applied": applied,
        "pending": _names(version, VERSION),
        "differences": [
            *(_difference(each, REPAIRABLE) for each in plan.repaired),
            *(_difference(each, advice_for(each)) for each in plan.remaining),
        ],
    }


def _state(version: int, oldest_code: int, plan: RepairPlan) -> str:
    if oldest_code > VERSION:
        return "too_new"
    if version > VERSION:
        return "newer"
    if version < VERSION:
        return "behind" if version else "empty"
    return "differs" if plan.repaired or plan.remaining else "current"


def advice_for(each: SchemaDifference) -> str:
    """Return what to do about a difference that a repair leaves."""
    return DROPPABLE if isinstance(each, UnexpectedObject) and each.drop else NOT_REPAIRABLE


def _difference(each: SchemaDifference, advice: str) -> dict[str, str]:
    return {"type": each.type, "name": each.name, "problem": each.problem, "advice": advice}


async def _migrate(settings: Settings, drop: bool) -> tuple[dict[str, Any], list[SchemaDifference]]:
    async with engine_session(settings) as engine:
        dropped = await drop_unexpected(engine) if drop else []
        found, _ = await versions_at(engine.query)
        reached = await apply_migrations(engine, attempts=_ATTEMPTS)
        plan = await repair_plan(engine.query) if reached == VERSION else _NOTHING
        await repair(engine, plan)
    record = {
        "from_version": found,
        "schema_version": reached,
        "applied": _names(found, reached),
        "repaired": [{"type": each.type, "name": each.name} for each in plan.repaired],
        "dropped": [{"type": each.type, "name": each.name} for each in dropped],
    }
    return record, list(plan.remaining)


def _names(version: int, reached: int) -> list[dict[str, str]]:
    """Return the migrations between two versions; none for a database that was just created."""
    return [{"migration": each.file_name} for each in migrations() if 0 < version < each.number <= reached]
