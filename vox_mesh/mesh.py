"""The one place that puts the parts together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from vox_mesh.coordination.author import Author
from vox_mesh.coordination.clock import MeshClock, Surroundings
from vox_mesh.coordination.conflicts import Conflict, Conflicts
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
    MeshError,
    OutcomeUnknown,
    Overloaded,
    Refused,
    ScriptFailed,
    StaleIncarnation,
    StoreClosed,
)
from vox_mesh.jobs.artifacts import Artifacts
from vox_mesh.jobs.choosing import Chooser
from vox_mesh.jobs.claiming import Claiming
from vox_mesh.jobs.crons import Crons
from vox_mesh.jobs.exec_policy import ExecPolicy
from vox_mesh.jobs.finishing import Finisher
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.keeper import JobKeeper
from vox_mesh.jobs.kinds import JobKinds
from vox_mesh.jobs.leases import Leases
from vox_mesh.jobs.worker import Worker
from vox_mesh.messages.bus import Bus
from vox_mesh.messages.keeper import Keeper
from vox_mesh.model.homes import Home
from vox_mesh.opening import Role, open_store_of, slot_of, tenant_of
from vox_mesh.settings import Settings, load_settings
from vox_mesh.store.script import new_key
from vox_mesh.store.slots import slot_folder
from vox_mesh.store.store import Store
from vox_mesh.store.thread import to_the_end

if TYPE_CHECKING:
    from vox_mesh.http.relay import Relay

_log = logging.getLogger(__name__)

_LOCAL: Final = "local"  # a node that nobody else can see needs no better name
_CALM_S: Final = 0.05
_AGAIN_S: Final = 1.0
_SWEEP_S: Final = 60.0
_ANNOUNCED_EVERY: Final = 100
"""So many ticks pass before a node says again who receives there."""


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
        self.bus = Bus(store, author, clock, surroundings, agent)
        self.jobs = Jobs(store, author, clock, self.nodes)
        self.crons = Crons(store, self.jobs, clock)
        self.job_kinds = JobKinds(store, self.jobs.roster)
        self.occ.notify = self._tell_of_conflict
        self._author = author

    async def _tell_of_conflict(self, conflict: Conflict) -> None:
        """Have the agent know that a conflict waits for it; it is recorded, also if this fails."""
        if conflict.deferred_to is None:
            return
        told = {
            "conflict_id": conflict.conflict_id,
            "table_name": conflict.table_name,
            "row_key": conflict.row_key,
        }
        try:
            await self.bus.send(conflict.deferred_to, told, msg_type="conflict")
        except MeshError as error:
            _log.warning("%s could not be told of a conflict: %s", conflict.deferred_to, error.line)

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
        tenant = tenant_of(settings, None)
        surroundings = Surroundings() if surroundings is None else surroundings
        clock = MeshClock(surroundings)
        author = Author(lambda: _command_identity(settings), tenant, clock)
        store = await open_store_of(settings, Role.COMMAND, None, tenant, author)
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
            await mesh.bus.close()
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
        self._monotonic = surroundings.monotonic
        self._heartbeat = Heartbeat(
            store, presence, self.oplog, self.nodes, clock, surroundings, tick_s=settings.tick
        )
        # Commands act for the first slot: of nodes that begin together in a folder, it should be the owner.
        self._may_own = settings.node_id is not None or store.slot_name in (None, "1")
        self._is_owned = False
        self._chance = surroundings.chance
        self._tick_s = settings.tick
        self._keeper = Keeper(store, clock, self.bus, settings.message_retention)
        self.worker = self._worker_of(settings)
        self._job_keeper = JobKeeper(
            store, clock, self.jobs, self.crons, chance=surroundings.chance, tick_s=settings.tick
        )
        self._relay = None if settings.home is Home.MEMORY or not settings.http else self._relay_of(settings)
        self._tasks: list[asyncio.Task[None]] = []

    def _worker_of(self, settings: Settings) -> Worker:
        own, jobs, store = self.identity.node_id, self.jobs, self.store
        artifacts = Artifacts(store, settings.home_dir / "artifacts", lambda: own)
        chooser = Chooser(own, jobs.roster, self.nodes, self.roles, self.clock, self._monotonic)
        return Worker(
            store,
            jobs,
            chooser,
            Claiming(store, jobs.moves, chooser, self.clock, own, self._monotonic),
            Leases(store, jobs.moves, jobs.roster, own, self._monotonic),
            Finisher(store, jobs.moves, jobs.roster, artifacts, self._author, self.clock, self._chance),
            artifacts,
            self.presence,
            self._heartbeat.run_once,
            ExecPolicy.parsed(settings.worker_exec_allow) if settings.worker_exec else None,
        )

    def _relay_of(self, settings: Settings) -> Relay:
        from vox_mesh.http.relay import Relay  # where nothing listens, nothing need be loaded

        own = self.identity.node_id
        return Relay(settings, own, self.store, self.bus, self.clock, self._monotonic)

    async def start(self) -> None:
        """Make the node known, and begin to tick; while the database is away, in the background."""
        if self._relay is not None:
            self.presence.activity.control_addr = await self._relay.start()
        if self.store.is_prepared:
            with suppress(DatabaseUnavailable, OutcomeUnknown, Overloaded):
                await self.run_once()
            if self._author.broken is not None:
                raise self._author.broken
        self._tasks = [
            asyncio.create_task(self._tick(), name="vox-mesh-heartbeat"),
            asyncio.create_task(self._apply_deferred(), name="vox-mesh-deferral"),
            asyncio.create_task(self._sweep(), name="vox-mesh-sweeper"),
            asyncio.create_task(self._keep_messages(), name="vox-mesh-keeper"),
            asyncio.create_task(self._keep_jobs(), name="vox-mesh-job-keeper"),
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

    async def _keep_messages(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(self._tick_s * (0.9 + 0.2 * self._chance()))
            if not await _tried(self._keeper.run_once, "the messages could not be kept in order"):
                return
            ticks += 1
            if ticks % _ANNOUNCED_EVERY == 0:
                await self.bus.announce()

    async def _keep_jobs(self) -> None:
        await asyncio.sleep(self._tick_s * self._chance())  # those who begin together do not all look at once
        await self._job_keeper.run()

    async def close(self) -> None:
        """Leave the mesh, and let go of everything. What can't be said in time is left unsaid."""
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.worker.stop()
            await self.bus.close()
            await self.locks.close()
            if self.incarnation is not None:
                await self._heartbeat.leave()
        except MeshError as error:
            _log.warning("could not say that this node leaves: %s", error.line)
        finally:
            try:
                if self._relay is not None:
                    await to_the_end(asyncio.create_task(self._relay.stop(), name="vox-mesh-relay-stop"))
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
    slot = slot_of(settings, Role.NODE)
    tenant = tenant_of(settings, slot)
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
    activity = Activity(agent_id=settings.agent_id)
    presence = Presence(identity, tenant, clock, place=place, tick_s=settings.tick, activity=activity)
    author = Author(lambda: identity, tenant, clock, presence)
    store = await open_store_of(settings, Role.NODE, slot, tenant, author)
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
