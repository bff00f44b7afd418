"""Replicas as commands see them: those of other processes through their marks, their own while it syncs."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from vox_mesh.cli.support.session import engine_session
from vox_mesh.errors import BadSettings, MeshError, NoAnswer, ReplicaOff, SlotInUse
from vox_mesh.model.base.backends import Backend, ReplicaChoice
from vox_mesh.runtime.open_store import open_slot_replica, primary_log
from vox_mesh.settings import Settings
from vox_mesh.store.replica.mark import Record, read_record, replica_path
from vox_mesh.store.replica.replica import Progress
from vox_mesh.store.replica.report import ReplicaReport, reports
from vox_mesh.store.replica.wire import Hello
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
    try:
        slot = take_command_slot(settings.home_dir, settings.node_id)
    except SlotInUse:
        await _wait_for_owner(settings, name, progress)
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
        if report.slot == name:
            return report
    raise ReplicaOff(f"replica of {name} was removed during the sync", hint="run `vox-mesh db sync` again")


async def _wait_for_owner(settings: Settings, name: str, progress: Progress) -> None:
    """Wait until the replica of another process holds everything committed by now."""
    began_ms = time.time_ns() // 1_000_000
    hello = await _hello(settings)
    path = replica_path(settings.db_path, name)
    loop = asyncio.get_running_loop()
    deadline, seen = loop.time() + settings.db_deadline, -1
    while (record := read_record(path)) is None or not _holds(record, hello, began_ms):
        if record is not None and record.next_frame != seen:
            deadline, seen = loop.time() + settings.db_deadline, record.next_frame
            progress(seen, seen if hello is None else hello.next_frame)
        if loop.time() > deadline:
            reason = record.error if record is not None else "it does not exist"
            raise NoAnswer(f"replica of {name} makes no progress: {reason or 'no error reported'}")
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
