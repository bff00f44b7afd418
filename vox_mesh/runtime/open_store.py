"""Open the store that the settings choose, with its backend, replica, spool and circuit breaker."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from vox_mesh.errors import DatabaseUnavailable, DriverMissing, ReplicaOff
from vox_mesh.model.base.backends import Backend, Driver, ReplicaChoice
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.nodes.processes import host_id
from vox_mesh.runtime.foreign_home import make_database, refuse_foreign_home
from vox_mesh.runtime.home_check import make_home, refuse_unsafe_home
from vox_mesh.store.engine import Ask, Engine, Note, ignore_note
from vox_mesh.store.replica.read_watermark import ReadWatermark
from vox_mesh.store.script import WriterId, new_key
from vox_mesh.store.slots import Slot, spools, take_slot
from vox_mesh.store.stats import StoreStats
from vox_mesh.store.store import Store
from vox_mesh.store.watch.changes import Changes
from vox_mesh.store.watch.listeners import Listener, WalListener
from vox_mesh.store.write.interceptor import WriteInterceptor

if TYPE_CHECKING:
    from vox_mesh.settings import Settings
    from vox_mesh.store.replica.log import PrimaryLog
    from vox_mesh.store.replica.replica import Replica
    from vox_mesh.store.spool.spool_queue import SpoolQueue
    from vox_mesh.store.write.breaker import Breaker

_log = logging.getLogger(__name__)


class Role(StrEnum):
    """The opener of a store: a long-running node with a slot and a spool, or a short-lived command."""

    NODE = "node"
    COMMAND = "command"


async def open_store(settings: Settings, role: Role = Role.NODE) -> Store:
    """Open the store that the settings choose, without a node.

    A node may start while the database is unavailable; for a command, `DatabaseUnavailable` is raised.
    """
    slot = slot_of(settings, role)
    return await open_store_of(settings, role, slot, writer_id_of(settings, slot))


def slot_of(settings: Settings, role: Role) -> Slot | None:
    """Take a slot for a node with a disk; commands and the memory backend have none."""
    if role is not Role.NODE or settings.backend is Backend.MEMORY:
        return None
    refuse_unsafe_home(settings.home_dir, settings.file_path)
    make_home(settings.home_dir)
    refuse_foreign_home(settings)
    return take_slot(settings.home_dir, settings.node_id)


def writer_id_of(settings: Settings, slot: Slot | None) -> WriterId:
    """Return the writer_id and writer name under which a process writes."""
    writer = slot.writer if slot is not None else f"command:{new_key()}"
    return WriterId(settings.scope_id, settings.repository_id, writer)


async def open_store_of(
    settings: Settings,
    role: Role,
    slot: Slot | None,
    writer_id: WriterId,
    journal: WriteInterceptor | None = None,
    dependencies: Dependencies | None = None,
) -> Store:
    """Open the store, which owns the slot from now on. The memory backend may be shared by several stores."""
    injected = Dependencies() if dependencies is None else dependencies
    watermark = ReadWatermark(injected.monotonic) if settings.backend is Backend.SERVER else None
    shared = injected.memory if settings.backend is Backend.MEMORY else None
    changes = Changes() if shared is None else shared.changes
    stats = StoreStats()
    async with AsyncExitStack() as undoing:  # closes what was opened if the rest fails
        if slot is not None:
            undoing.callback(slot.release)
        engine = shared or await open_engine(settings, ignore_note if watermark is None else watermark.note)
        undoing.push_async_callback(engine.close)
        store = Store(
            settings.backend,
            engine,
            writer_id,
            timeout=settings.db_deadline,
            is_remote=shared is not None and shared.is_remote,
            breaker=_breaker(settings, injected.monotonic),
            spool_queue=_spool_queue(settings, slot, engine.max_scripts, injected.chance),
            slot=slot,
            changes=changes,
            listener=_listener(settings, engine, changes),
            watermark=watermark,
            replica=_replica(settings, slot, engine.query, watermark, changes, stats),
            interceptor=journal,
            stats=stats,
            wal=getattr(engine, "wal", None),
            answer_now=getattr(engine, "answer_now", None),
            monotonic=injected.monotonic,
            chance=injected.chance,
        )
        undoing.pop_all()
    try:
        await store.begin()
    except DatabaseUnavailable:
        if role is Role.COMMAND:
            await store.close()
            raise
    except BaseException:
        await store.close()
        raise
    return store


def _breaker(settings: Settings, monotonic: Callable[[], float]) -> Breaker | None:
    if not settings.db_circuit_breaker:
        return None
    from vox_mesh.store.write.breaker import Breaker

    return Breaker(monotonic)


def _spool_queue(
    settings: Settings, slot: Slot | None, max_scripts: int, chance: Callable[[], float]
) -> SpoolQueue | None:
    """Return a node's queue of writes for when its server is unavailable; other backends need none.

    The spool belongs to this database and mesh; another one has another file.
    """
    if slot is None or settings.backend is not Backend.SERVER:
        return None
    from vox_mesh.store.spool.spool import Spool
    from vox_mesh.store.spool.spool_queue import SpoolQueue

    spool = Spool(slot.folder / _spool_name(settings), settings.spool_max_bytes)
    return SpoolQueue(spool, timeout=settings.db_deadline, max_scripts=max_scripts, chance=chance)


def spool_paths(settings: Settings) -> list[Path]:
    """Return the spools of all slots for this database and mesh."""
    return [path for path in spools(settings.home_dir) if path.name == _spool_name(settings)]


def _spool_name(settings: Settings) -> str:
    return f"spool-{target_of(settings)}.db"


def target_of(settings: Settings) -> str:
    """Return a short name of the database and mesh, for the files of a slot that belong to them."""
    location = settings.endpoint if settings.backend is Backend.SERVER else str(settings.file_path.resolve())
    target = "\n".join((location, settings.scope_id, settings.repository_id))
    return hashlib.sha256(target.encode()).hexdigest()[:12]


def _listener(settings: Settings, engine: Engine, changes: Changes) -> Listener | None:
    """Return the listener for commits of other processes, on the file backend only."""
    if settings.backend is not Backend.FILE:
        return None
    from vox_mesh.store.engines.file import FileEngine, turn_path

    assert isinstance(engine, FileEngine)
    wal = Path(f"{settings.file_path.resolve()}-wal")  # next to the file itself, not next to a link
    return WalListener(wal, turn_path(settings.file_path), engine.data_version, changes)


def primary_log(settings: Settings) -> PrimaryLog:
    """Return the log of the primary that replicas follow."""
    from vox_mesh.store.replica.log import PrimaryLog

    return PrimaryLog(settings.endpoint, _token(settings), settings.db_request_timeout)


def open_slot_replica(
    settings: Settings,
    slot: Slot,
    ask: Ask,
    watermark: ReadWatermark | None = None,
    changes: Changes | None = None,
    stats: StoreStats | None = None,
) -> Replica:
    """Open a slot's replica of the primary. Raises `ReplicaOff` or `DriverMissing` if there is none."""
    from vox_mesh.runtime.open_replica import Origin, open_replica

    choice, path = replica_of(settings, slot.name)
    stats = StoreStats() if stats is None else stats
    origin = Origin(
        path=path,
        endpoint=settings.endpoint,
        token=_token(settings),
        timeout=settings.db_request_timeout,
        watermark=ReadWatermark(Dependencies().monotonic) if watermark is None else watermark,
        changes=Changes() if changes is None else changes,
        max_stale_s=settings.db_max_stale_ms / 1_000,
        requests=stats.requests,
        faults=stats.faults,
        ask=ask,
        host=host_id() or "",
    )
    return open_replica(choice, origin)


def replica_of(settings: Settings, slot_name: str) -> tuple[ReplicaChoice, Path]:
    """Return which replica a slot has, and where: where processes can't share one, one of its own."""
    from vox_mesh.store.replica.paths import replica_path, shared_path

    if settings.db_replica is not ReplicaChoice.SHARED:
        return settings.db_replica, replica_path(settings.db_path, slot_name)
    if host_id() is None:
        _log.warning("a shared replica needs Linux: this node keeps one of its own")
        return ReplicaChoice.PUSHED, replica_path(settings.db_path, slot_name)
    return ReplicaChoice.SHARED, shared_path(settings.db_path, settings.home_dir, settings.endpoint)


def _replica(
    settings: Settings,
    slot: Slot | None,
    ask: Ask,
    watermark: ReadWatermark | None,
    changes: Changes,
    stats: StoreStats,
) -> Replica | None:
    """Open a node's replica; without one, reads go to the primary."""
    if slot is None or watermark is None or settings.db_replica is ReplicaChoice.OFF:
        return None
    try:
        return open_slot_replica(settings, slot, ask, watermark, changes, stats)
    except (ReplicaOff, DriverMissing) as error:
        _log.warning("replica off, reads go to the primary: %s", error.line)
        return None


def _token(settings: Settings) -> str | None:
    return None if settings.db_token is None else settings.db_token.get_secret_value()


async def open_engine(settings: Settings, note: Note = ignore_note, *, beside_others: bool = False) -> Engine:
    """Open the engine below a store, for work on the whole database such as backup and restore.

    With `beside_others` the file may be that of another application.
    """
    # Imported late: a command on the file backend does not load the network engines.
    if settings.backend is Backend.MEMORY:
        from vox_mesh.store.engines.memory import MemoryEngine

        return MemoryEngine()
    refuse_unsafe_home(settings.home_dir, settings.file_path)
    if settings.backend is Backend.FILE:
        from vox_mesh.store.engines.file import FileEngine
        from vox_mesh.store.schema.foreign import refuse_foreign_file

        if not beside_others:
            refuse_foreign_file(settings.file_path)
        if settings.file_path.absolute().is_relative_to(settings.home_dir.absolute()):
            make_home(settings.home_dir)
            make_database(settings.file_path, settings.home_dir)
        return await FileEngine.open(settings.file_path)
    arguments = settings.endpoint, _token(settings), settings.db_request_timeout, note
    match settings.db_driver:
        case Driver.WS:
            from vox_mesh.store.engines.hrana.ws import WsEngine

            return WsEngine(*arguments)
        case Driver.HTTP:
            from vox_mesh.store.engines.hrana.http import HttpEngine

            return HttpEngine(*arguments)
        case Driver.LIBSQL_CLIENT:
            from vox_mesh.contrib.libsql_client import LibsqlClientEngine

            return LibsqlClientEngine(*arguments)
        case Driver.AUTO:
            from vox_mesh.store.engines.hrana.auto import AutoEngine

            return AutoEngine(*arguments)
