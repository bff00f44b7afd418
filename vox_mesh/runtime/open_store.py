"""Opening the store that the settings choose: its home, its engine, and what goes with them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from vox_mesh.errors import DatabaseUnavailable, DriverMissing, ReplicaOff
from vox_mesh.model.base.homes import Driver, Home, ReplicaChoice
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.settings import Settings
from vox_mesh.store.engine import Ask, Engine, Note, ignore_note
from vox_mesh.store.replica.floor import ReadWatermark
from vox_mesh.store.replica.mark import replica_path
from vox_mesh.store.replica.replica import Replica
from vox_mesh.store.script import new_key
from vox_mesh.store.slots import Slot, take_slot
from vox_mesh.store.spool.agent_queue import AgentQueue
from vox_mesh.store.spool.spool import Spool
from vox_mesh.store.stats import StoreStats
from vox_mesh.store.store import Store
from vox_mesh.store.watch.changes import Changes
from vox_mesh.store.watch.listening import Listener, WalListener
from vox_mesh.store.write.breaker import Breaker
from vox_mesh.store.write.journal import WriteInterceptor
from vox_mesh.store.write.request import Tenant

if TYPE_CHECKING:
    from vox_mesh.store.replica.log import PrimaryLog

_log = logging.getLogger(__name__)


class Role(StrEnum):
    """Who opens the store: a long-running process with a slot and a spool, or a command that soon ends."""

    NODE = "node"
    COMMAND = "command"


async def open_store(settings: Settings, role: Role = Role.NODE) -> Store:
    """Open the store that the settings choose, without a node.

    A command needs the database now; a node may start while it is away.
    """
    slot = slot_of(settings, role)
    return await open_store_of(settings, role, slot, tenant_of(settings, slot))


def slot_of(settings: Settings, role: Role) -> Slot | None:
    if role is not Role.NODE or settings.home is Home.MEMORY:
        return None
    return take_slot(settings.home_dir, settings.node_id)


def tenant_of(settings: Settings, slot: Slot | None) -> Tenant:
    writer = slot.writer if slot is not None else f"command:{new_key()}"
    return Tenant(settings.scope_id, settings.repository_id, writer)


async def open_store_of(
    settings: Settings,
    role: Role,
    slot: Slot | None,
    tenant: Tenant,
    journal: WriteInterceptor | None = None,
    dependencies: Dependencies | None = None,
) -> Store:
    """Open the store; it owns the slot from now on. On the memory home it may be one that others share."""
    around = Dependencies() if dependencies is None else dependencies
    floor = ReadWatermark(around.monotonic) if settings.home is Home.MESH else None
    shared = around.memory if settings.home is Home.MEMORY else None
    changes = Changes() if shared is None else shared.changes
    traffic = StoreStats()
    async with AsyncExitStack() as undoing:  # of what was opened, should the rest fail
        if slot is not None:
            undoing.callback(slot.release)
        engine = shared or await open_engine(settings, ignore_note if floor is None else floor.note)
        undoing.push_async_callback(engine.close)
        store = Store(
            settings.home,
            engine,
            tenant,
            timeout=settings.db_deadline,
            is_remote=shared is not None and shared.is_remote,
            breaker=Breaker(around.monotonic) if settings.db_circuit_breaker else None,
            agent_queue=_agent_queue(settings, slot, engine.max_scripts, around.chance),
            slot=slot,
            changes=changes,
            listener=_listener(settings, engine, changes),
            watermark=floor,
            replica=_replica(settings, slot, engine.query, floor, changes, traffic),
            interceptor=journal,
            traffic=traffic,
            wal=getattr(engine, "wal", None),
            monotonic=around.monotonic,
            chance=around.chance,
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


def _agent_queue(
    settings: Settings, slot: Slot | None, max_scripts: int, chance: Callable[[], float]
) -> AgentQueue | None:
    """A node's queue for the time when its server is away; the other homes can't be away.

    The spool is for this database and mesh: what waits for another one waits in another file.
    """
    if slot is None or settings.home is not Home.MESH:
        return None
    spool = Spool(slot.folder / f"spool-{target_of(settings)}.db", settings.spool_max_bytes)
    return AgentQueue(spool, timeout=settings.db_deadline, max_scripts=max_scripts, chance=chance)


def target_of(settings: Settings) -> str:
    """Name the database and mesh, for files in a slot that belong to them."""
    where = settings.endpoint if settings.home is Home.MESH else str(settings.file_path.resolve())
    target = "\n".join((where, settings.scope_id, settings.repository_id))
    return hashlib.sha256(target.encode()).hexdigest()[:12]


def _listener(settings: Settings, engine: Engine, changes: Changes) -> Listener | None:
    """What tells of other processes' commits on the file home; in memory there are no others."""
    if settings.home is not Home.FILE:
        return None
    from vox_mesh.store.engines.file import FileEngine

    assert isinstance(engine, FileEngine)
    wal = Path(f"{settings.file_path.resolve()}-wal")  # it lies beside the file itself, not beside a link
    return WalListener(wal, engine.data_version, changes)


def primary_log(settings: Settings) -> PrimaryLog:
    """The log that replicas follow."""
    from vox_mesh.store.replica.log import PrimaryLog

    return PrimaryLog(settings.endpoint, _token(settings), settings.db_request_timeout)


def open_slot_replica(
    settings: Settings,
    slot: Slot,
    ask: Ask,
    floor: ReadWatermark | None = None,
    changes: Changes | None = None,
    traffic: StoreStats | None = None,
) -> Replica:
    """Open a slot's copy of the primary, or raise why there can be none."""
    from vox_mesh.runtime.open_replica import Origin, open_replica

    traffic = StoreStats() if traffic is None else traffic
    origin = Origin(
        path=replica_path(settings.db_path, slot.name),
        endpoint=settings.endpoint,
        token=_token(settings),
        timeout=settings.db_request_timeout,
        floor=ReadWatermark(Dependencies().monotonic) if floor is None else floor,
        changes=Changes() if changes is None else changes,
        max_stale_s=settings.db_max_stale_ms / 1_000,
        requests=traffic.requests,
        faults=traffic.faults,
        ask=ask,
    )
    return open_replica(settings.db_replica, origin)


def _replica(
    settings: Settings,
    slot: Slot | None,
    ask: Ask,
    floor: ReadWatermark | None,
    changes: Changes,
    traffic: StoreStats,
) -> Replica | None:
    """A node's replica. Where there can be none, the primary answers reads."""
    if slot is None or floor is None or settings.db_replica is ReplicaChoice.OFF:
        return None
    try:
        return open_slot_replica(settings, slot, ask, floor, changes, traffic)
    except (ReplicaOff, DriverMissing) as error:
        _log.warning("the replica is off, reads go to the primary: %s", error.line)
        return None


def _token(settings: Settings) -> str | None:
    return None if settings.db_token is None else settings.db_token.get_secret_value()


async def open_engine(settings: Settings, note: Note = ignore_note) -> Engine:
    """Open what lies below the store: for work on the database as a whole, such as backup and restore."""
    # Imported where they are needed: a command on the file home never loads the network.
    if settings.home is Home.MEMORY:
        from vox_mesh.store.engines.memory import MemoryEngine

        return MemoryEngine()
    if settings.home is Home.FILE:
        from vox_mesh.store.engines.file import FileEngine

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
