"""The one place that puts the parts together."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vox_mesh.coordination.author import Author
from vox_mesh.coordination.clock import MeshClock, Surroundings
from vox_mesh.coordination.conflicts import Conflicts
from vox_mesh.coordination.deferral import Deferral
from vox_mesh.coordination.heartbeat import Heartbeat
from vox_mesh.coordination.identity import (
    Identity,
    command_identity,
    node_identity,
    passing_identity,
    place_of,
)
from vox_mesh.coordination.kinds import Kinds
from vox_mesh.coordination.locks.locks import Locks
from vox_mesh.coordination.nodes import Nodes
from vox_mesh.coordination.occ import Occ
from vox_mesh.coordination.oplog import OpLog
from vox_mesh.coordination.presence import Activity, Presence
from vox_mesh.coordination.roles import Roles
from vox_mesh.coordination.versions import Versions
from vox_mesh.errors import (
    DatabaseUnavailable,
    DriverMissing,
    MeshError,
    OutcomeUnknown,
    Overloaded,
    Refused,
    ReplicaOff,
    ScriptFailed,
    StaleIncarnation,
    StoreClosed,
)
from vox_mesh.model.homes import Driver, Home, ReplicaChoice
from vox_mesh.settings import Settings, load_settings
from vox_mesh.store.agent_queue import AgentQueue
from vox_mesh.store.breaker import Breaker
from vox_mesh.store.changes import Changes
from vox_mesh.store.engine import Engine, Note, unnoted
from vox_mesh.store.journal import Journal
from vox_mesh.store.listening import Listener, WalListener
from vox_mesh.store.replica.floor import Floor
from vox_mesh.store.replica.mark import replica_path
from vox_mesh.store.replica.replica import Replica
from vox_mesh.store.request import Tenant
from vox_mesh.store.script import new_key
from vox_mesh.store.slots import Slot, slot_folder, take_slot
from vox_mesh.store.spool import Spool
from vox_mesh.store.store import Store

if TYPE_CHECKING:
    from vox_mesh.store.replica.log import PrimaryLog

_log = logging.getLogger(__name__)

_LOCAL: Final = "local"  # a node that nobody else can see needs no better name
_CALM_S: Final = 0.05
_AGAIN_S: Final = 1.0
_SWEEP_S: Final = 60.0


class Role(StrEnum):
    """Who opens the store: a long-running process with a slot and a spool, or a command that soon ends."""

    NODE = "node"
    COMMAND = "command"


class Mesh:
    """A node of the mesh, or a command beside one: `async with Mesh.open(settings) as mesh`."""

    def __init__(
        self, store: Store, author: Author, clock: MeshClock, surroundings: Surroundings, agent: str | None
    ) -> None:
        kinds = Kinds()
        self.store = store
        self.clock = clock
        self.nodes = Nodes(store, clock)
        self.roles = Roles(store, author, self.nodes, clock)
        self.deferral = Deferral(store, clock, kinds)
        self.oplog = OpLog(store, author, clock, kinds, self.roles, self.deferral)
        versions = Versions(store, author, clock, self.nodes, agent)
        self.conflicts = Conflicts(store, versions)
        self.occ = Occ(versions, self.conflicts, chance=surroundings.chance)
        self.locks = Locks(store, clock, lambda: self.identity.node_id, agent, surroundings.monotonic)
        self._author = author

    @property
    def identity(self) -> Identity:
        """Who this is in the mesh."""
        return self._author.identity

    @property
    def incarnation(self) -> int | None:
        """How often this node has begun; `None` before the database has heard of it, and for commands."""
        return self._author.incarnation

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: Settings | None = None, surroundings: Surroundings | None = None
    ) -> AsyncIterator[MeshNode]:
        """Join the mesh that the settings choose, as a node that ticks until the end."""
        settings = load_settings() if settings is None else settings
        surroundings = Surroundings() if surroundings is None else surroundings
        node = await _open_node(settings, surroundings)
        try:
            yield node
        finally:
            await node.close()

    @classmethod
    @asynccontextmanager
    async def open_command(
        cls, settings: Settings, surroundings: Surroundings | None = None
    ) -> AsyncIterator[Mesh]:
        """Look at the mesh, or write to it, beside its nodes and without becoming one."""
        tenant = _tenant(settings, None)
        surroundings = Surroundings() if surroundings is None else surroundings
        clock = MeshClock(surroundings)
        author = Author(lambda: _command_identity(settings), tenant, clock)
        store = await _open_store(settings, Role.COMMAND, None, tenant, author)
        mesh = cls(store, author, clock, surroundings, settings.agent_id)
        try:
            await mesh.nodes.now_ms()  # before any time is merged, or made, by a clock of our own
            try:
                yield mesh
            except ScriptFailed:
                await mesh._seal()  # it is in the log too, as refused
                raise
            await mesh._seal()
        finally:
            await mesh.locks.close()
            await mesh.store.close()

    async def _seal(self) -> None:
        """Vouch for what a command did; that is done, also if this fails."""
        if self.oplog.is_seal_due:
            try:
                await self.store.write(self.oplog.seal_script())
            except MeshError as error:
                _log.warning("could not seal the log, the next command will: %s", error.line)


class MeshNode(Mesh):
    """A node: it makes itself known, ticks, vouches for its log, and applies what has waited."""

    def __init__(
        self,
        store: Store,
        author: Author,
        clock: MeshClock,
        presence: Presence,
        settings: Settings,
        surroundings: Surroundings,
    ) -> None:
        super().__init__(store, author, clock, surroundings, settings.agent_id)
        self.presence = presence
        self._heartbeat = Heartbeat(
            store, presence, self.oplog, self.nodes, clock, surroundings, tick_s=settings.tick
        )
        # Commands act for the first slot: of nodes that begin together in a folder, it should be the owner.
        self._may_own = settings.node_id is not None or store.slot_name in (None, "1")
        self._is_owned = False
        self._chance = surroundings.chance
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Make the node known, and begin to tick; while the database is away, in the background."""
        if self.store.is_prepared:
            with suppress(DatabaseUnavailable, OutcomeUnknown, Overloaded):
                await self.run_once()
            if self._author.broken is not None:
                raise self._author.broken
        self._tasks = [
            asyncio.create_task(self._tick(), name="vox-mesh-heartbeat"),
            asyncio.create_task(self._apply_deferred(), name="vox-mesh-deferral"),
            asyncio.create_task(self._sweep(), name="vox-mesh-sweeper"),
        ]

    async def run_once(self) -> None:
        """Tick; and, when the mesh has no owner yet, become it."""
        await self._heartbeat.run_once()
        await self.deferral.look()
        if not self._is_owned and not self.clock.is_off:
            self._is_owned = await self.roles.owner() is not None
            if not self._is_owned and self._may_own:
                with suppress(Refused):  # another node was quicker
                    await self.roles.initialise()
            self._may_own = True  # with the next tick, if by then nobody else did

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat.pause_s)
            if not await _tried(self.run_once, "the heartbeat failed"):
                return

    async def _apply_deferred(self) -> None:
        while True:
            await self.deferral.someone_waits()
            seen = self.store.change_count
            if not await _tried(self.deferral.run_once, "ops that had waited could not be applied"):
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_S):  # also if it failed, and nothing else happens
                    await self.store.changed(seen)
            await asyncio.sleep(_CALM_S)  # a busy mesh commits all the time

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S * (0.9 + 0.2 * self._chance()))
            if not await _tried(lambda: self.locks.sweep_once(0.9 * _SWEEP_S), "the sweep of locks failed"):
                return

    async def close(self) -> None:
        """Leave the mesh, and let go of everything. What can't be said in time is left unsaid."""
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.locks.close()
            if self.incarnation is not None:
                await self._heartbeat.leave()
        except MeshError as error:
            _log.warning("could not say that this node leaves: %s", error.line)
        finally:
            await self.store.close()


async def _tried(run_once: Callable[[], Awaitable[object]], failure: str) -> bool:
    """Do it, and whatever goes wrong is told; `False` if it is of no use to try again."""
    try:
        await run_once()
    except (StaleIncarnation, StoreClosed) as error:
        _log.error("%s", error.line)
        return False
    except MeshError as error:
        _log.warning("%s: %s", failure, error.line)
    except Exception:
        _log.exception(failure)
    return True


async def _open_node(settings: Settings, surroundings: Surroundings) -> MeshNode:
    slot = _slot(settings, Role.NODE)
    tenant = _tenant(settings, slot)
    clock = MeshClock(surroundings)
    try:
        if slot is None:
            identity = passing_identity(settings.node_id or _LOCAL)
            place = f"{_LOCAL}:{new_key()}"
        else:
            identity = node_identity(slot.folder, settings.node_id)
            place = place_of(slot.folder)
    except BaseException:
        if slot is not None:
            slot.release()
        raise
    activity = Activity(agent_id=settings.agent_id, control_addr=settings.control_addr)
    presence = Presence(identity, tenant, clock, place=place, tick_s=settings.tick, activity=activity)
    author = Author(lambda: identity, tenant, clock, presence)
    store = await _open_store(settings, Role.NODE, slot, tenant, author)
    node = MeshNode(store, author, clock, presence, settings, surroundings)
    try:
        await node.start()
    except BaseException:
        await node.close()
        raise
    return node


def _command_identity(settings: Settings) -> Identity:
    if settings.home is Home.MEMORY:
        return passing_identity(settings.node_id or _LOCAL)
    return command_identity(slot_folder(settings.home_dir, settings.node_id), settings.node_id)


async def open_store(settings: Settings, role: Role = Role.NODE) -> Store:
    """Open the store that the settings choose, without a node.

    A command needs the database now; a node may start while it is away.
    """
    slot = _slot(settings, role)
    return await _open_store(settings, role, slot, _tenant(settings, slot))


def _slot(settings: Settings, role: Role) -> Slot | None:
    if role is not Role.NODE or settings.home is Home.MEMORY:
        return None
    return take_slot(settings.home_dir, settings.node_id)


def _tenant(settings: Settings, slot: Slot | None) -> Tenant:
    writer = slot.writer if slot is not None else f"command:{new_key()}"
    return Tenant(settings.scope_id, settings.repository_id, writer)


async def _open_store(
    settings: Settings, role: Role, slot: Slot | None, tenant: Tenant, journal: Journal | None = None
) -> Store:
    """Open the store; it owns the slot from now on."""
    floor = Floor(time.monotonic) if settings.home is Home.MESH else None
    changes = Changes()
    async with AsyncExitStack() as undoing:  # of what was opened, should the rest fail
        if slot is not None:
            undoing.callback(slot.release)
        engine = await open_engine(settings, unnoted if floor is None else floor.note)
        undoing.push_async_callback(engine.close)
        store = Store(
            settings.home,
            engine,
            tenant,
            timeout=settings.db_deadline,
            breaker=Breaker(time.monotonic) if settings.db_circuit_breaker else None,
            agent_queue=_agent_queue(settings, slot, engine.max_scripts),
            slot=slot,
            changes=changes,
            listener=_listener(settings, engine, changes),
            floor=floor,
            replica=_replica(settings, slot, floor, changes),
            journal=journal,
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


def _agent_queue(settings: Settings, slot: Slot | None, max_scripts: int) -> AgentQueue | None:
    """A node's queue for the time when its server is away; the other homes can't be away.

    The spool is for this database and mesh: what waits for another one waits in another file.
    """
    if slot is None or settings.home is not Home.MESH:
        return None
    target = "\n".join((settings.endpoint, settings.scope_id, settings.repository_id))
    name = hashlib.sha256(target.encode()).hexdigest()[:12]
    spool = Spool(slot.folder / f"spool-{name}.db", settings.spool_max_bytes)
    return AgentQueue(spool, timeout=settings.db_deadline, max_scripts=max_scripts)


def _listener(settings: Settings, engine: Engine, changes: Changes) -> Listener | None:
    """What tells of other processes' commits on the file home; in memory there are no others."""
    if settings.home is not Home.FILE:
        return None
    from vox_mesh.store.file import FileEngine

    assert isinstance(engine, FileEngine)
    wal = Path(f"{settings.file_path.resolve()}-wal")  # it lies beside the file itself, not beside a link
    return WalListener(wal, engine.data_version, changes)


def primary_log(settings: Settings) -> PrimaryLog:
    """The log that replicas follow."""
    from vox_mesh.store.replica.log import PrimaryLog

    return PrimaryLog(settings.endpoint, _token(settings), settings.db_request_timeout)


def open_slot_replica(
    settings: Settings, slot: Slot, floor: Floor | None = None, changes: Changes | None = None
) -> Replica:
    """Open a slot's copy of the primary, or raise why there can be none."""
    from vox_mesh.store.replica.choice import Origin, open_replica

    origin = Origin(
        path=replica_path(settings.db_path, slot.name),
        endpoint=settings.endpoint,
        token=_token(settings),
        timeout=settings.db_request_timeout,
        floor=Floor(time.monotonic) if floor is None else floor,
        changes=Changes() if changes is None else changes,
        max_stale_s=settings.db_max_stale_ms / 1_000,
    )
    return open_replica(settings.db_replica, origin)


def _replica(settings: Settings, slot: Slot | None, floor: Floor | None, changes: Changes) -> Replica | None:
    """A node's replica. Where there can be none, the primary answers reads."""
    if slot is None or floor is None or settings.db_replica is ReplicaChoice.OFF:
        return None
    try:
        return open_slot_replica(settings, slot, floor, changes)
    except (ReplicaOff, DriverMissing) as error:
        _log.warning("the replica is off, reads go to the primary: %s", error.line)
        return None


def _token(settings: Settings) -> str | None:
    return None if settings.db_token is None else settings.db_token.get_secret_value()


async def open_engine(settings: Settings, note: Note = unnoted) -> Engine:
    """Open what lies below the store: for work on the database as a whole, such as backup and restore."""
    # Imported where they are needed: a command on the file home never loads the network.
    if settings.home is Home.MEMORY:
        from vox_mesh.store.memory import MemoryEngine

        return MemoryEngine()
    if settings.home is Home.FILE:
        from vox_mesh.store.file import FileEngine

        return await FileEngine.open(settings.file_path)
    arguments = settings.endpoint, _token(settings), settings.db_request_timeout, note
    match settings.db_driver:
        case Driver.WS:
            from vox_mesh.store.hrana.ws import WsEngine

            return WsEngine(*arguments)
        case Driver.HTTP:
            from vox_mesh.store.hrana.http import HttpEngine

            return HttpEngine(*arguments)
        case Driver.LIBSQL_CLIENT:
            from vox_mesh.store.libsql_client import LibsqlClientEngine

            return LibsqlClientEngine(*arguments)
        case Driver.AUTO:
            from vox_mesh.store.hrana.auto import AutoEngine

            return AutoEngine(*arguments)
