"""The node: creates and runs all parts of an orchestrator process."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from vox_mesh.errors import (
    AWAY,
    DatabaseUnavailable,
    MeshError,
    NodeNotAdmitted,
    NotStrict,
    Refused,
    Unauthorized,
)
from vox_mesh.heartbeat.heartbeat import Heartbeat
from vox_mesh.heartbeat.presence import Activity, Presence
from vox_mesh.jobs.scheduling.maintenance import JobMaintenance
from vox_mesh.jobs.steps.step_services import StepServices
from vox_mesh.jobs.worker.chooser import Chooser
from vox_mesh.jobs.worker.claimer import ClaimReconciler, JobClaimer
from vox_mesh.jobs.worker.end_recorder import EndRecorder
from vox_mesh.jobs.worker.finisher import Finisher
from vox_mesh.jobs.worker.leases import Leases
from vox_mesh.jobs.worker.limits import WorkerLimits
from vox_mesh.jobs.worker.worker import Worker
from vox_mesh.mesh import ARTIFACTS, LOCAL, Mesh
from vox_mesh.messages.maintenance import MessageMaintenance
from vox_mesh.model.base.backends import Backend
from vox_mesh.model.jobs.policy_roots import parse_policy_roots
from vox_mesh.model.rhythm.tempo import BeatStamp
from vox_mesh.nodes.clock import Dependencies, MeshClock
from vox_mesh.nodes.host_load import HostLoad
from vox_mesh.nodes.identity import local_identities, node_identity, place_of, temporary_identity
from vox_mesh.observability.log_context import log_scope
from vox_mesh.oplog.witness import MemoryFile, MemoryKeeper, SharedPlace, StoreWitness
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.rhythm.tempo.conductor import Conductor
from vox_mesh.runtime.agents import open_agents
from vox_mesh.runtime.archive.turns import archive_maintenance
from vox_mesh.runtime.archive_target import find_archive
from vox_mesh.runtime.backups.opening import backup_schedule
from vox_mesh.runtime.exec_policy import open_exec_policy
from vox_mesh.runtime.health import Health
from vox_mesh.runtime.open_store import Role, open_store_of, slot_of, writer_id_of
from vox_mesh.runtime.retention.file_removal import FileRemoval
from vox_mesh.runtime.retention.maintenance import RetentionMaintenance
from vox_mesh.runtime.shared_token import shared_token
from vox_mesh.runtime.store_memories import memory_file_name, remembered_stores, step_memory
from vox_mesh.runtime.supervisor import FATAL, Supervisor, log_failure
from vox_mesh.settings import Settings
from vox_mesh.store.engines.thread import to_the_end
from vox_mesh.store.script import new_key
from vox_mesh.store.store import Store

if TYPE_CHECKING:
    from vox_mesh.http.server import NodeServer
    from vox_mesh.jobs.proof.artifacts import ArtifactSource

_log = logging.getLogger(__name__)

_DEBOUNCE_S: Final = 0.05
_RETRY_DELAY_S: Final = 1.0
_SWEEP_INTERVAL_S: Final = 60.0
_SESSION_CHECKS: Final = 5  # in a tick: whether the processes with session locks still run
_MAX_SESSION_PAUSE_S: Final = 10.0
_ANNOUNCE_INTERVAL_TICKS: Final = 100  # between two announcements of a node's recipients


class MeshNode(Mesh):
    """A node: registers, sends heartbeats, seals its log, runs jobs and maintains the mesh."""

    def __init__(
        self,
        store: Store,
        writer: OpLogWriter,
        clock: MeshClock,
        presence: Presence,
        settings: Settings,
        dependencies: Dependencies,
    ) -> None:
        super().__init__(
            store,
            writer,
            clock,
            dependencies,
            settings.agent_id,
            settings.home_dir / ARTIFACTS,
            policy_file=settings.tempo_policy,
            rates_file=settings.rates,
            shared_token=lambda: shared_token(settings),
            owner_key=settings.owner_key,
            remembered=lambda: remembered_stores(settings),
            step_memory=lambda: step_memory(settings),
            policy_roots=parse_policy_roots(settings.worker_policy_roots),
            must_be_strict=settings.strict,
            message_retention_s=settings.message_retention,
            scopes=() if settings.directory is None else settings.directory.names,
            local_nodes=lambda: (
                [self.identity] if store.slot_name is None else local_identities(settings.home_dir)
            ),
        )
        self.presence, self.find_archive = presence, lambda: find_archive(settings)
        self._settings, self._is_mode_settled = settings, False
        self._chance, self._monotonic = dependencies.chance, dependencies.monotonic
        self._heartbeat = Heartbeat(
            store,
            presence,
            self.oplog,
            self.nodes,
            clock,
            writer.database_clock,
            writer.witness,
            dependencies,
            self.agents,
            self.sightings,
            vitals=lambda: self.health.vitals(),
            local_agents=lambda: self._local_agents(settings.agent_id),
            tick_s=settings.tick,
        )
        # Commands act for the first slot: of nodes that start together in a folder, it should be the owner.
        self._may_own = settings.node_id is not None or store.slot_name in (None, "1")
        self._is_owned, self._tick_s = False, settings.tick
        self._message_maintenance = MessageMaintenance(store, clock, self.messages)
        self._retention_maintenance = RetentionMaintenance(
            self.retention, clock, dependencies.chance, settings.prune_interval
        )
        self._removal = FileRemoval(store, settings, self.identity, clock, self.features, self._monotonic)
        self.backup_schedule = backup_schedule(settings, self, dependencies)
        known = self.features.is_known_to_all
        self._steps = StepServices.of(store, self.jobs, self.messages.verifier.verify, known)
        self.worker = self._create_worker(settings)
        job_parts = (self.jobs, self.crons, self.rules, self._steps, self._chance, self._monotonic)
        self._job_maintenance = JobMaintenance(store, clock, *job_parts, tick_s=settings.tick)
        self.supervisor = Supervisor(dependencies.chance, FATAL, dependencies.monotonic)
        host_load = HostLoad(dependencies.monotonic)
        self.health = Health(
            settings=settings,
            store=store,
            writer=writer,
            clock=clock,
            heartbeat=self._heartbeat,
            worker=self.worker,
            supervisor=self.supervisor,
            rhythm=self.rhythm,
            host_load=host_load,
            monotonic=self._monotonic,
        )
        self.health.archive = archive_maintenance(self, settings, self._chance, self._monotonic)
        self._rejoining: asyncio.Task[None] | None = None
        rhythm = self.rhythm
        parts = (rhythm.policies, rhythm.pulse, rhythm.leadership, rhythm.bar_reporter, rhythm.controller)
        self._conductor = Conductor(rhythm.context, *parts, rhythm.help, self.nodes, host_load)
        has_server = settings.http and settings.backend is not Backend.MEMORY
        self._server = self._create_server(settings) if has_server else None

    def _local_agents(self, own: str | None) -> list[str]:
        """Return the agents that live in this process: its own, and the receiving ones."""
        return [*([] if own is None else [own]), *self.messages.local_agents]

    def _artifact_source(self) -> ArtifactSource | None:
        return None if self._server is None else self._server.artifact_source

    def _artifacts_node(self) -> str:
        return self.identity.node_id

    def _create_worker(self, settings: Settings) -> Worker:
        node_id, jobs, store = self.identity.node_id, self.jobs, self.store
        chooser = Chooser(node_id, jobs.queries, self.nodes, self.roles, self.clock, self._monotonic)
        leases = Leases(
            store=store,
            transitions=jobs.transitions,
            queries=jobs.queries,
            node_id=node_id,
            monotonic=self._monotonic,
            to_boundary=lambda until, following: self.rhythm.beat_locks.lease_ms(until, following),
        )
        finisher = Finisher(
            store,
            jobs.transitions,
            self.artifacts,
            self._writer,
            self.clock,
            self._chance,
            EndRecorder(self.rhythm.budgets, self.rhythm.tallies),
            self._stamp_at,
        )
        limits = WorkerLimits(self.rhythm.parts, self._monotonic)
        self.rhythm.status.add_source(limits.begin_phrases)
        reconciler = ClaimReconciler(jobs.queries, finisher, node_id)
        claimer = JobClaimer(
            store,
            jobs.transitions,
            chooser,
            reconciler.request,
            self.clock,
            node_id,
            self._monotonic,
            jobs.authorship.causes_of,
            lambda: limits.agent,
        )
        worker = Worker(
            store=store,
            jobs=jobs,
            artifacts=self.artifacts,
            presence=self.presence,
            chooser=chooser,
            claimer=claimer,
            reconciler=reconciler,
            leases=leases,
            finisher=finisher,
            limits=limits,
            policy=open_exec_policy(settings) if settings.worker_exec else None,
            policy_roots=self._policy_roots,
            send_heartbeat=self._heartbeat.run_once,
            steps=self._steps,
            chance=self._chance,
            tick_s=settings.tick,
        )
        worker.handlers.include(open_agents(settings))
        self._handlers = worker.handlers
        return worker

    def _stamp_at(self, at_ms: int) -> BeatStamp | None:
        """Return the bar and beat of a time for a proof, if the mesh has a tempo."""
        # Nodes from before agents were named would refuse such a proof, too.
        return self.rhythm.context.plan.announced_stamp_at(at_ms) if self._writer.names_agents else None

    def _create_server(self, settings: Settings) -> NodeServer:
        from vox_mesh.http.server import NodeServer  # imported late: not every node has a server

        return NodeServer(settings, self, self, self.health, self._monotonic)

    async def start(self) -> None:
        """Register the node and start its parts; it registers later if the database is unavailable."""
        self.health.is_beginning = True  # the server answers from now on
        if self._server is not None:
            self.presence.announce(await self._server.start(), self._server.token_id)
        if self.store.is_prepared:
            with suppress(*AWAY):
                await self.ownership.refuse_if_foreign()
                await self._join()
                await log_failure(self._take_place, "node not established yet")
                await self._make_strict()
            if self._writer.broken is not None:
                raise self._writer.broken
            with suppress(DatabaseUnavailable, Unauthorized):
                await self.rhythm.refresh()
        for name, run in (
            ("heartbeat", self._tick),
            ("pending-ops", self._apply_deferred),
            ("sweeper", self._sweep),
            ("message-maintenance", self._keep_messages),
            ("job-maintenance", self._keep_jobs),
            ("approvals", self._apply_approved),
            ("retention", self._retention_maintenance.run),
            ("file-removal", lambda: self._removal.run(self._chance)),
            *((part.name, part.run) for part in (self.health.archive, self.backup_schedule) if part),
            ("rhythm", self._conductor.run),
            ("status", self.rhythm.status.run),
            # Without a slot, no other process can have locks next to this node.
            *([("lock-sessions", self._keep_sessions)] if self.store.slot_name is not None else []),
        ):
            self.supervisor.start(name, run)
        self.health.is_beginning = False

    async def _join(self) -> None:
        """Send the first heartbeat; if this home has the owner's key, that admits the node."""
        try:
            await self._heartbeat.run_once()
        except NodeNotAdmitted:
            if not await self._admit_with_local_key():
                raise
            await self._heartbeat.run_once()

    async def _make_strict(self) -> None:
        """If a strict mesh is required, record it as the owner; other nodes start only on such a mesh."""
        try:
            await self.permits.refuse_unless_strict()
        except NotStrict:
            if not await self.ownership.may_act(self.identity.chain, self.identity.key.public):
                raise
            await self.grants.set_strict(strict=True)
            _log.warning("mesh made strict: nothing for agents without a grant from now on")
        self._is_mode_settled = True

    async def _admit_with_local_key(self) -> bool:
        """Admit this node with the owner's key; return whether this home has that key."""
        owner = await self.ownership.owner()
        keys = {(each.node_id, each.key.public) for each in self._local_nodes()}
        if owner is None or owner[:2] not in keys:
            return False
        own, as_owner = self.identity, self._settings.model_copy(update={"node_id": owner.node_id})
        async with Mesh.open_command(as_owner, self._dependencies) as command:
            await command.grants.admit_node(own.node_id, own.key.public)
        return True

    async def broken(self) -> MeshError:
        """Wait for a fatal error of this node, and return it."""
        return await self.supervisor.broken()

    async def run_once(self) -> None:
        """Send a heartbeat; become the owner of a mesh that has none; open the node's chain if empty."""
        await self._heartbeat.run_once()
        await self._take_place()
        if not self._is_mode_settled:  # the database was away at the start
            await self._make_strict()

    async def _take_place(self) -> None:
        is_ownerless = False
        with suppress(TimeoutError):  # a slow answer must not delay the next heartbeat
            async with asyncio.timeout(self._tick_s):
                is_ownerless = await self._check_ownerless()
        if is_ownerless:
            if self._may_own:
                with suppress(Refused):  # another node was quicker
                    await self.roles.initialise()
            self._may_own = True  # at the next tick, unless another node is the owner by then
        if not self._writer.is_chain_open and self.clock.can_author:
            await self.store.write(self._writer.open_script())

    async def _check_ownerless(self) -> bool:
        """Look for deferred ops, and return whether the mesh has no owner and this node could be it."""
        await self.pending_ops.refresh()
        if self._is_owned or not self.clock.can_author:
            return False
        is_reserved = self.ownership.pinned_key not in (None, self.identity.key.public)  # for another node
        self._is_owned = is_reserved or await self.roles.owner() is not None
        return not self._is_owned

    async def catch_up(self) -> None:
        """Do all work that is due by the clock now, for clocks that are set by hand: no timer fires then."""
        self.rhythm.times.notify_clock_set()
        await self.rhythm.status.catch_up()
        await self._conductor.catch_up()
        await self.locks.catch_up()
        await self.worker.catch_up()
        await self.locks.sweep_expired_distributed_locks()
        await self._message_maintenance.run_once()
        await self._job_maintenance.run_once()
        await self.approvals.apply_due()
        await self._retention_maintenance.run_once()
        await self._removal.run_once()

    @property
    def writer(self) -> OpLogWriter:
        """Return what signs the writes of this node, and logs its ops."""
        return self._writer

    @property
    def rollbacks(self) -> int:
        """Return how often this process has detected a rollback of the database."""
        return self._writer.rollbacks

    def start_rejoin(self) -> None:
        """After a rollback, let each part reconcile its work. Nothing is written here."""
        self.ownership.forget()
        self.trusted_keys.forget()
        self.jobs.authorship.forget()
        self.crons.forget()
        self.worker.reconcile()
        self.messages.forget_leases()
        self._conductor.announce_again()
        self._rejoining = asyncio.create_task(self._reconcile(), name="vox-mesh-rejoin")

    async def _reconcile(self) -> None:
        try:
            await self.locks.catch_up()
            await self.messages.announce()
        except MeshError as error:  # leases are renewed in time, or lost
            _log.warning("reconciliation after a rollback failed: %s", error.line)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat.pause_s)
            await log_failure(self._run_tick, "heartbeat failed")

    async def _run_tick(self) -> None:
        """Send a heartbeat if one is due, and look for what else a tick is for."""
        is_due = True
        with suppress(DatabaseUnavailable):  # the heartbeat says what is wrong
            is_due = await self._heartbeat.is_due()
        await (self.run_once() if is_due else self._take_place())

    async def _apply_deferred(self) -> None:
        # It retries also without a commit, and a busy mesh commits all the time.
        async for _ in self.store.changes(interval_s=_RETRY_DELAY_S, debounce_s=_DEBOUNCE_S):
            await self.pending_ops.wait_until_any()
            await log_failure(self.pending_ops.run_once, "deferred ops not applied")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL_S * (0.9 + 0.2 * self._chance()))
            await log_failure(lambda: self.locks.sweep_once(0.9 * _SWEEP_INTERVAL_S), "lock sweep failed")

    async def _keep_sessions(self) -> None:
        pause_s = min(self._tick_s / _SESSION_CHECKS, _MAX_SESSION_PAUSE_S)
        if self.store.is_remote:  # a server is not asked more often than for a heartbeat
            await asyncio.sleep(pause_s)
            pause_s = min(self._tick_s, _MAX_SESSION_PAUSE_S)
        while True:
            await log_failure(self.locks.sessions.run_once, "session locks not renewed")
            await asyncio.sleep(pause_s)

    async def _keep_messages(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(self._tick_s * (0.9 + 0.2 * self._chance()))
            await log_failure(self._message_maintenance.run_once, "message maintenance failed")
            if self.messages.is_relayed and self.store.is_remote:
                await self.messages.lease_inboxes()
            ticks += 1
            if ticks % _ANNOUNCE_INTERVAL_TICKS == 0:
                await self.messages.announce()

    async def _apply_approved(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s * (0.5 + self._chance()))  # at another time than other nodes
            await log_failure(self.approvals.apply_due, "approved operations not applied")

    async def _keep_jobs(self) -> None:
        await asyncio.sleep(self._tick_s * self._chance())  # spreads nodes that start together
        await self._job_maintenance.run()

    def begin_to_leave(self) -> None:
        """Report the node as leaving, and end requests that wait for later answers."""
        self.health.is_leaving = True
        if self._server is not None:
            self._server.end_waiting()

    async def close(self) -> None:
        """Leave the mesh and close everything. Announcements that fail or take too long are skipped."""
        self.begin_to_leave()
        try:
            await self.supervisor.stop_all()
            if self._rejoining is not None:
                await asyncio.gather(self._rejoining, return_exceptions=True)
            await self.worker.stop()
            if "work" in vars(self):  # created at its first use
                await self.work.close()
            await self.rhythm.close()
            await self.messages.close()
            await self.locks.close()
            if self.incarnation is not None:
                await self._heartbeat.leave()
        except MeshError as error:
            _log.warning("leave announcement failed: %s", error.line)
        finally:
            try:
                if self._server is not None:
                    await to_the_end(asyncio.create_task(self._server.stop(), name="vox-mesh-http-stop"))
            finally:
                await self.store.close()


async def open_node(settings: Settings, dependencies: Dependencies) -> MeshNode:
    """Create and start a node. The caller must close it."""
    slot = slot_of(settings, Role.NODE)
    writer_id = writer_id_of(settings, slot)
    clock = MeshClock(dependencies, has_own_wall=settings.is_database_elsewhere)
    try:
        if slot is None:
            shared = dependencies.memory
            identity = temporary_identity(settings.node_id or LOCAL, None if shared is None else shared.keys)
            place = dependencies.place or f"{LOCAL}:{new_key()}"
            keeper: MemoryKeeper | None = None if shared is None else SharedPlace(shared.memories, place)
        else:
            identity = node_identity(slot.folder, settings.node_id)
            place = place_of(slot.folder)
            keeper = MemoryFile(slot.folder / memory_file_name(settings))
    except BaseException:
        if slot is not None:
            slot.release()
        raise
    activity = Activity(agent_id=settings.agent_id)
    presence = Presence(identity, writer_id, clock, place=place, tick_s=settings.tick, activity=activity)
    writer = OpLogWriter(
        lambda: identity,
        writer_id,
        clock,
        presence,
        StoreWitness(keeper),
        on_rejoin=lambda: node.start_rejoin(),
        agent=settings.agent_id,
    )
    with log_scope(node=identity.node_id):  # also in the tasks started here
        store = await open_store_of(settings, Role.NODE, slot, writer_id, writer, dependencies)
        node = MeshNode(store, writer, clock, presence, settings, dependencies)
        try:
            await node.start()
        except BaseException:
            await node.close()
            raise
    return node
