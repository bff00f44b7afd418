"""`vox-mesh db`: create, inspect, migrate, back up and restore the database."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import click

from vox_mesh.cli.database.db_backups import backups
from vox_mesh.cli.database.db_compact import compact
from vox_mesh.cli.database.db_lost import lost
from vox_mesh.cli.database.db_migrate import migrate
from vox_mesh.cli.database.db_retention import prune, retention, stats
from vox_mesh.cli.support.mesh_report import mesh_report
from vox_mesh.cli.support.output import CommandGroup, json_option, show_lines, show_one
from vox_mesh.cli.support.session import engine_session, start, start_shared
from vox_mesh.cli.support.terminal import ProgressBar
from vox_mesh.errors import (
    BadSettings,
    DatabaseUnavailable,
    MeshError,
    NoAnswer,
    ReplicaOff,
    SchemaDiffers,
    SlotInUse,
)
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.backends import Backend, ReplicaChoice
from vox_mesh.model.oplog.op_names import RESTORE
from vox_mesh.runtime.open_store import Role, open_slot_replica, open_store, primary_log, replica_of
from vox_mesh.runtime.restore import BackupFile
from vox_mesh.runtime.restore import restore as restore_backup
from vox_mesh.settings import Settings
from vox_mesh.store.replica.mark import Record, ReplicaReport, read_record, reports
from vox_mesh.store.replica.paths import slot_of_replica
from vox_mesh.store.replica.replica import Progress
from vox_mesh.store.replica.wire import Hello
from vox_mesh.store.schema.backup import back_up
from vox_mesh.store.schema.probe import all_spools, row_counts
from vox_mesh.store.schema.schema import VERSION, differences_at, ensure_schema, versions_at
from vox_mesh.store.slots import slot_folder, take_command_slot

_POLL_S: Final = 0.02
_HELLO_S: Final = 2.0


async def replica_reports(settings: Settings) -> list[ReplicaReport]:
    """Return the states of the replicas next to `VOX_DB_PATH`, as far as they are known."""
    hello = await _hello(settings)
    return reports(settings.db_path, settings.endpoint, hello, settings.db_max_stale_ms)


async def sync_replica(settings: Settings, progress: Progress) -> ReplicaReport:
    """Bring this node's replica up to date, or wait until the process that owns it has done so."""
    if settings.backend is not Backend.SERVER or settings.db_replica is ReplicaChoice.OFF:
        raise BadSettings(
            "no replica to sync: the database itself answers reads",
            hint="set VOX_DB_URL, and VOX_DB_REPLICA to a value other than off",
        )
    name = slot_folder(settings.home_dir, settings.node_id).name
    _, path = replica_of(settings, name)
    try:
        slot = take_command_slot(settings.home_dir, settings.node_id)
    except SlotInUse:
        await _wait_for_owner(settings, path, progress)
    else:
        try:
            async with engine_session(settings) as engine:
                replica = open_slot_replica(settings, slot, engine.query)
                try:
                    await replica.wait_until_caught_up(progress, settings.db_deadline)
                finally:
                    await replica.close()
        finally:
            slot.release()
    for report in await replica_reports(settings):
        if report.slot == slot_of_replica(settings.db_path, path):
            return report
    raise ReplicaOff(f"replica of {name} was removed during the sync", hint="run `vox-mesh db sync` again")


async def _wait_for_owner(settings: Settings, path: Path, progress: Progress) -> None:
    """Wait until the replica of another process holds everything committed by now."""
    began_ms = time.time_ns() // 1_000_000
    hello = await _hello(settings)
    loop = asyncio.get_running_loop()
    deadline, seen = loop.time() + settings.db_deadline, -1
    while (record := read_record(path)) is None or not _holds(record, hello, began_ms):
        if record is not None and record.next_frame != seen:
            deadline, seen = loop.time() + settings.db_deadline, record.next_frame
            progress(seen, seen if hello is None else hello.next_frame)
        if loop.time() > deadline:
            reason = record.error if record is not None else "it does not exist"
            raise NoAnswer(f"replica {path} makes no progress: {reason or 'no error reported'}")
        await asyncio.sleep(_POLL_S)  # another process owns it: there is no event to wait for


def _holds(record: Record, hello: Hello | None, began_ms: int) -> bool:
    if record.as_of_ms >= began_ms:
        return True
    return hello is not None and hello.log_id == record.log_id and hello.next_frame <= record.next_frame


async def _hello(settings: Settings) -> Hello | None:
    """Return the primary's log position; `None` if it is away or does not report it."""
    log = primary_log(settings)
    try:
        return await log.hello(min(_HELLO_S, settings.db_request_timeout))
    except MeshError:
        return None
    finally:
        await log.close()


_FILE = click.argument("file", type=click.Path(path_type=Path))


@click.group(cls=CommandGroup, no_args_is_help=False)
def db() -> None:
    """Create, inspect, migrate, back up and restore the database."""


db.add_command(migrate)
db.add_command(compact)
db.add_command(lost)
db.add_command(retention)
db.add_command(backups)
db.add_command(prune)
db.add_command(stats)


@db.command()
@json_option
def init(as_json: bool) -> None:
    """Create the schema, or check the existing one.

    Safe to run at any time, on any number of machines. Other commands create no schema in a database that
    holds tables of another application; this one does.

    \b
    Example:
      vox-mesh db init
    """
    show_one(asyncio.run(init_database(start_shared("db init"), beside_others=True)), as_json=as_json)


async def init_database(settings: Settings, *, beside_others: bool = False) -> dict[str, Any]:
    """Create the schema or check it, and return the record to print."""
    async with engine_session(settings, beside_others=beside_others) as engine:
        found, _ = await versions_at(engine.query)
        schema_version = await ensure_schema(engine, beside_others=beside_others)
        facts = await engine.facts()
    return {
        "home": settings.backend.value,
        "driver": facts.driver,
        "address": facts.address,
        "schema_version": schema_version,
        "done": "checked" if found == schema_version else "upgraded" if found else "created",
    }


@db.command()
@json_option
def status(as_json: bool) -> None:
    """Show the state of the database, replicas and spool.

    Also shows versions, row counts and the circuit breaker.

    \b
    Example:
      vox-mesh db status --json
    """
    settings = start("db status")
    record, fault = asyncio.run(_status(settings))
    show_one(record, as_json=as_json)
    if fault is not None:
        raise fault
    if settings.backend is Backend.MEMORY and not as_json:
        show_lines(["memory backend: data ends with the process; run `vox-mesh init` to share it"])


async def _status(settings: Settings) -> tuple[dict[str, Any], MeshError | None]:
    """Return the known state; without the database it is incomplete, but the spool matters most then."""
    mesh = mesh_report(settings)
    local = {
        "mesh": mesh["mesh"],
        "mesh_from": mesh["mesh_from"],
        "home": settings.backend.value,
        "shared": settings.backend is not Backend.MEMORY,
        "package_version": version("vox-mesh"),
        "scope_id": settings.scope_id,
        "repository_id": settings.repository_id,
    }
    kept: dict[str, Any] = {name: mesh[name] for name in ("settings", "other_meshes")}
    kept |= {"spool": asdict(await asyncio.to_thread(all_spools, settings.home_dir))}
    if settings.backend is Backend.SERVER:
        kept["replicas"] = [asdict(report) for report in await replica_reports(settings)]
    try:
        async with await open_store(settings, Role.COMMAND) as store:
            status = await store.status()
            rows = await row_counts(store)
            differences = await differences_at(
                lambda asked: store.read(asked.sql, asked.params, fresh=True),
                status.schema_version or VERSION,
            )
    except DatabaseUnavailable as fault:
        return local | kept, fault
    except SchemaDiffers as fault:
        differs = [{"difference": each} for each in fault.differences]
        return local | {"schema_version": VERSION, "differences": differs} | kept, fault
    facts = {} if status.engine is None else asdict(status.engine)
    remote = facts | {"schema_version": status.schema_version, "breaker": status.breaker}
    if status.schema_version == VERSION:
        kept["differences"] = [{"difference": str(each)} for each in differences]
    return local | remote | kept | {"rows": rows}, None


@db.command()
@json_option
def sync(as_json: bool) -> None:
    """Bring this node's replica up to date.

    If a node that runs owns the replica, wait until that has caught up. Use it to make the first copy before
    a node starts, or to make sure that later reads miss nothing.

    \b
    Example:
      vox-mesh db sync
    """
    settings = start_shared("db sync")
    with ProgressBar() as bar:
        record = asyncio.run(sync_replica(settings, bar.show))
    show_one(asdict(record), as_json=as_json)


@db.command()
@_FILE
@json_option
def backup(file: Path, as_json: bool) -> None:
    """Copy the whole database to a new SQLite file.

    The copy is a consistent snapshot; nodes may keep writing meanwhile. The file must not exist yet.

    \b
    Example:
      vox-mesh db backup mesh-2026-01-31.db
    """
    settings = start_shared("db backup")
    show_one(asyncio.run(_backup(settings, file)), as_json=as_json)


async def _backup(settings: Settings, file: Path) -> dict[str, Any]:
    async with engine_session(settings) as engine:
        done = await back_up(engine, file)
    return {"file": str(done.path), "tables": done.tables, "rows": done.rows, "bytes": done.bytes}


@db.command()
@_FILE
@click.option("--skip-unknown", is_flag=True, help="Skip objects that are not the mesh's, and list them.")
@json_option
def restore(file: Path, skip_unknown: bool, as_json: bool) -> None:
    """Copy a backup into an empty database.

    The backup may come from any backend. Every fencing token and incarnation is raised by 2^32, so that none
    issued after the backup is issued again. If it is interrupted, run it again to finish.

    No trigger, view or table that calls functions is taken from the file: if it has one that is not the
    mesh's, nothing is restored. Find out who created it, then pass --skip-unknown.

    \b
    Example:
      vox-mesh db restore mesh-2026-01-31.db
    """
    settings = start_shared("db restore")
    with BackupFile(file) as backup:
        record, fault = asyncio.run(_restore(settings, backup, skip_unknown))
    show_one(record, as_json=as_json)
    if fault is not None:
        raise fault


async def _restore(
    settings: Settings, backup: BackupFile, skip_unknown: bool
) -> tuple[dict[str, Any], MeshError | None]:
    """Restore the backup; return what was restored, and the error if the op log could not record it."""
    async with engine_session(settings) as engine:
        done = await restore_backup(engine, backup, timeout=settings.db_deadline, skip_unknown=skip_unknown)
        facts = await engine.facts()
    record = {
        "file": str(backup.path),
        "home": settings.backend.value,
        "address": facts.address,
        **asdict(done),
        "skipped": [{"object": each} for each in done.skipped],
    }
    payload = {
        "fingerprint": backup.fingerprint,
        "rows": done.rows,
        "fences_raised": done.fences_raised,
        "incarnations_raised": done.incarnations_raised,
    }
    try:
        async with Mesh.open_command(settings) as mesh:
            op = await mesh.oplog.append(RESTORE, payload)
    except MeshError as fault:
        return record, fault
    return record | {"op_id": op.key}, None
