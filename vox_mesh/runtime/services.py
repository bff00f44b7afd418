"""The services of a mesh, for nodes and for commands next to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vox_mesh.model.nodes.features import CRONS_SIGNED
from vox_mesh.nodes.clock import Dependencies, MeshClock
from vox_mesh.nodes.sightings import Sightings
from vox_mesh.observability.deprecation import RenamedAttributes, warn_renamed
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.store import Store

if TYPE_CHECKING:  # each service is imported by its property: a command pays for those it uses
    from vox_mesh.jobs.git.exporter import JobExporter
    from vox_mesh.jobs.git.importer import JobImporter
    from vox_mesh.jobs.git.repository import GitRepository
    from vox_mesh.jobs.git.worker_keys import WorkerKeys
    from vox_mesh.jobs.jobs import Jobs
    from vox_mesh.jobs.kinds import JobKinds
    from vox_mesh.jobs.proof.artifacts import Artifacts, ArtifactSource
    from vox_mesh.jobs.scheduling.crons import Crons
    from vox_mesh.jobs.scheduling.rules import Rules
    from vox_mesh.jobs.scheduling.workflows import Workflows
    from vox_mesh.jobs.work.work import AgentWork
    from vox_mesh.locks.locks import Locks
    from vox_mesh.messages.messages import Messages
    from vox_mesh.model.grants.capability import Capability
    from vox_mesh.model.jobs.policy_roots import PolicyRoots
    from vox_mesh.nodes.agents import Agents
    from vox_mesh.nodes.identity import Identity
    from vox_mesh.nodes.nodes import Features, Nodes
    from vox_mesh.occ.conflicts import Conflict, Conflicts
    from vox_mesh.occ.occ import Occ
    from vox_mesh.occ.versions import Versions
    from vox_mesh.oplog.grants.approvals import Approvals
    from vox_mesh.oplog.grants.grant_log import GrantLog
    from vox_mesh.oplog.grants.grants import Grants
    from vox_mesh.oplog.grants.permits import Permits
    from vox_mesh.oplog.op_kinds import OpKinds
    from vox_mesh.oplog.oplog import OpLog
    from vox_mesh.oplog.ownership import Ownership
    from vox_mesh.oplog.pending_ops import PendingOps
    from vox_mesh.oplog.planted_keys import Apply
    from vox_mesh.oplog.recovery import Recovery
    from vox_mesh.oplog.roles import Roles
    from vox_mesh.oplog.step_memory import StepMemory
    from vox_mesh.oplog.trusted_keys import TrustedKeys
    from vox_mesh.oplog.witness import RememberedStore
    from vox_mesh.rhythm.rhythm import Rhythm
    from vox_mesh.runtime.principals import Principals
    from vox_mesh.runtime.retention.retention import Retention
    from vox_mesh.store.targets.target import FileTarget


class MeshServices(RenamedAttributes):
    """The locks, nodes, op log, versions, messages and jobs of one mesh, each created at its first use."""

    _RENAMED: ClassVar = {"deferral": "pending_ops"}
    find_archive: Callable[[], FileTarget | None] = staticmethod(lambda: None)  # of the log

    def __init__(
        self,
        store: Store,
        writer: OpLogWriter,
        clock: MeshClock,
        dependencies: Dependencies,
        agent: str | None,
        artifacts_folder: Path,
        *,
        policy_file: Path | None = None,
        rates_file: Path | None = None,
        shared_token: Callable[[], str | None] = lambda: None,
        owner_key: str | None = None,
        remembered: Callable[[], Sequence[RememberedStore]] = tuple,
        step_memory: Callable[[], StepMemory | None] = lambda: None,
        policy_roots: PolicyRoots | None = None,
        local_nodes: Callable[[], Sequence[Identity]] = tuple,
        must_be_strict: bool = False,
        message_retention_s: float = 86_400.0,
        scopes: Sequence[str] = (),
    ) -> None:
        """`owner_key` pins the owner; `remembered` returns what nodes of this home know of the database.

        `step_memory` returns what this home knows of earlier owners; `policy_roots` are those whose jobs it
        claims, `None` if it claims any; `local_nodes` returns the identities of this home; with
        `must_be_strict` nothing is done for agents unless the mesh is strict; `message_retention_s` applies
        to messages without a policy; `scopes` are those of the directory.
        """
        self.store, self.clock = store, clock
        self._writer = writer
        writer.drop_planted_keys = self._drop_planted_keys
        self._dependencies = dependencies
        self._agent = agent
        self._artifacts_folder = artifacts_folder
        self._owner_key = owner_key
        self._remembered = remembered
        self._step_memory = step_memory
        self._policy_roots = policy_roots
        self._local_nodes = local_nodes
        self._must_be_strict = must_be_strict
        self._message_retention_s = message_retention_s
        self._scopes = scopes
        self.sightings = Sightings(store.mesh_id, lambda: self.identity.node_id, dependencies.monotonic)
        self._rhythm_files = {"policy_file": policy_file, "rates_file": rates_file}
        self._shared_token = shared_token

    @property
    def identity(self) -> Identity:
        """Return the identity of this process in the mesh."""
        return self._writer.identity

    @property
    def incarnation(self) -> int | None:
        """Return the incarnation of this node; `None` before it is registered, and for commands."""
        return self._writer.incarnation

    # --- nodes and the op log --------------------------------------------------------------------

    @cached_property
    def nodes(self) -> Nodes:
        """Return the nodes of the mesh."""
        from vox_mesh.nodes.nodes import Nodes

        return Nodes(self.store, self.clock, lambda op, *effects: self.permits.write_op(op, *effects))

    @cached_property
    def agents(self) -> Agents:
        """Return the agents of the mesh."""
        from vox_mesh.nodes.agents import Agents

        return Agents(self.store, self.clock)

    @cached_property
    def features(self) -> Features:
        """Return the features that all live nodes know."""
        from vox_mesh.nodes.nodes import Features

        return Features(self.store, self.nodes, self._dependencies.monotonic)

    @cached_property
    def ownership(self) -> Ownership:
        """Return the ownership of the mesh."""
        from vox_mesh.oplog.ownership import Ownership

        return Ownership(self.store, self._owner_key, self._step_memory())

    @cached_property
    def trusted_keys(self) -> TrustedKeys:
        """Return the keys of nodes that the owner vouches for."""
        from vox_mesh.oplog.trusted_keys import TrustedKeys

        return TrustedKeys(self.store, self.ownership)

    async def _drop_planted_keys(self, apply: Apply) -> bool:
        from vox_mesh.oplog.planted_keys import drop_planted_keys

        return await drop_planted_keys(self.trusted_keys, self._writer.identity, apply)

    @cached_property
    def roles(self) -> Roles:
        """Return the roles of nodes, and the routes."""
        from vox_mesh.oplog.roles import Roles

        return Roles(self.store, self._writer, self.nodes, self.clock, self.ownership, self.permits)

    @cached_property
    def recovery(self) -> Recovery:
        """Return the recovery of the ownership."""
        from vox_mesh.oplog.recovery import Recovery

        return Recovery(self.store, self._writer, self.clock, self.ownership, self.trusted_keys)

    @cached_property
    def _op_kinds(self) -> OpKinds:
        from vox_mesh.oplog.op_kinds import OpKinds

        return OpKinds()

    @cached_property
    def pending_ops(self) -> PendingOps:
        """Return the ops that wait for others."""
        from vox_mesh.oplog.pending_ops import PendingOps

        return PendingOps(self.store, self.clock, self._op_kinds, self.trusted_keys)

    @cached_property
    def oplog(self) -> OpLog:
        """Return the op log."""
        from vox_mesh.oplog.oplog import OpLog
        from vox_mesh.oplog.past import LogPast

        return OpLog(
            self.store,
            self._writer,
            self.clock,
            self._op_kinds,
            self.roles,
            self.pending_ops,
            self.trusted_keys,
            LogPast(self.store, self.ownership, self.trusted_keys),
            self._grant_log,
            self.permits,
            self._remembered,
        )

    @cached_property
    def _grant_log(self) -> GrantLog:
        from vox_mesh.oplog.grants.grant_log import GrantLog

        return GrantLog(self.store, self.ownership)

    @cached_property
    def permits(self) -> Permits:
        """Return what decides by which grants the agents of this process act."""
        from vox_mesh.oplog.grants.permits import Permits

        permits = Permits(
            self.store,
            lambda: self._grant_log,
            self.clock,
            self._writer,
            must_be_strict=self._must_be_strict,
        )
        permits.ask = lambda op, needed: self.approvals.ask(op, needed)
        return permits

    @cached_property
    def approvals(self) -> Approvals:
        """Return the approvals: what agents ask for."""
        from vox_mesh.oplog.grants.approvals import Approvals
        from vox_mesh.runtime.approved_operations import find_operation

        return Approvals(
            self.store,
            self._writer,
            self.clock,
            self.permits,
            self._grant_log,
            self.ownership,
            self.trusted_keys,
            lambda kind: find_operation(self, kind),
        )

    @cached_property
    def grants(self) -> Grants:
        """Return the grants of agents."""
        from vox_mesh.oplog.grants.grants import Grants

        return Grants(
            *(self.store, self._writer, self.clock, self.roles, self._grant_log),
            *(self.trusted_keys, self._local_nodes, self.permits, self._refuse_unaskable),
        )

    def _refuse_unaskable(self, capabilities: Sequence[Capability]) -> None:
        from vox_mesh.runtime.approved_operations import refuse_unaskable  # imported late: few issue grants

        refuse_unaskable(capabilities)

    @cached_property
    def principals(self) -> Principals:
        """Return the agents that can prove who they are, and their bearers."""
        from vox_mesh.runtime.principals import Principals

        parts = (self.store, self.roles, self.ownership, self._grant_log, self.permits, self._writer)
        return Principals(*parts, self.clock, lambda: self.rhythm, self._dependencies.monotonic)

    # --- locks and versions ----------------------------------------------------------------------

    @cached_property
    def locks(self) -> Locks:
        """Return the locks."""
        from vox_mesh.locks.locks import Locks

        return Locks(
            self.store,
            self.clock,
            lambda: self.identity.node_id,
            self._agent,
            self._dependencies.monotonic,
            self.permits,
            on_granted=self._writer.witness.record_token,
            on_agent=self.sightings.note,
        )

    @cached_property
    def _versions(self) -> Versions:
        from vox_mesh.occ.versions import Versions

        return Versions(self.store, self._writer, self.clock, self.nodes, self._agent)

    @cached_property
    def conflicts(self) -> Conflicts:
        """Return the conflicts of optimistic writes."""
        from vox_mesh.occ.conflicts import Conflicts

        return Conflicts(self.store, self._versions, self.permits)

    @cached_property
    def occ(self) -> Occ:
        """Return the optimistic writes."""
        from vox_mesh.occ.occ import Occ

        return Occ(
            self._versions,
            self.conflicts,
            notify=self._notify_agent,
            chance=self._dependencies.chance,
        )

    # --- messages, jobs and the rhythm -----------------------------------------------------------

    @cached_property
    def messages(self) -> Messages:
        """Return the messages."""
        from vox_mesh.messages.messages import Messages

        messages = Messages(
            self.store,
            self._writer,
            self.clock,
            self._dependencies,
            self._agent,
            self.trusted_keys,
            self.permits,
            lambda: self.principals.known,
            on_agent=self.sightings.note,
        )
        messages.scopes = self._scopes
        return messages

    @cached_property
    def jobs(self) -> Jobs:
        """Return the jobs."""
        from vox_mesh.jobs.jobs import Jobs

        jobs = Jobs(
            self.store,
            self._writer,
            self.clock,
            self.nodes,
            self._dependencies.secret,
            self.trusted_keys,
            self.roles,
            self._dependencies.monotonic,
            lambda content_hash: self.artifacts.body(content_hash),
            self._read_phases,
            self.permits,
        )
        jobs.questions.notify = self._send_question
        return jobs

    async def _read_phases(self) -> list[str]:
        """Return the phases of the mesh's bars, now and as announced."""
        entries = (await self.rhythm.read_plan()).entries_from(self.clock.now_ms)
        return list(dict.fromkeys(phase for entry in entries for phase in entry.policy.phase_beats))

    @cached_property
    def work(self) -> AgentWork:
        """Return the work of agents: they take jobs and report them."""
        from vox_mesh.jobs.proof.artifacts import Artifacts
        from vox_mesh.jobs.work.work import AgentWork

        return AgentWork(
            self.store,
            self._writer,
            self.jobs,
            self.nodes,
            self.roles,
            Artifacts(self.store, self._artifacts_folder, lambda: self.identity.node_id),
            self.rhythm,
            self.permits,
            policy_roots=self._policy_roots,
            monotonic=self._dependencies.monotonic,
            chance=self._dependencies.chance,
            on_agent=self.sightings.note,
        )

    @cached_property
    def crons(self) -> Crons:
        """Return the recurring jobs."""
        from vox_mesh.jobs.scheduling.crons import Crons

        return Crons(self.store, self.jobs, self.clock, lambda: self.rhythm, self._may_adopt_crons)

    @cached_property
    def rules(self) -> Rules:
        """Return the rules: jobs that are scheduled when ops are logged."""
        from vox_mesh.jobs.scheduling.rules import Rules

        return Rules(self.store, self.jobs, self.clock, self._op_kinds)

    @cached_property
    def workflows(self) -> Workflows:
        """Return the runs of workflows."""
        from vox_mesh.jobs.scheduling.workflows import Workflows

        return Workflows(self.jobs)

    @cached_property
    def job_kinds(self) -> JobKinds:
        """Return the kinds of job."""
        from vox_mesh.jobs.kinds import JobKinds

        return JobKinds(self.store, self.jobs.queries, self.permits)

    @cached_property
    def artifacts(self) -> Artifacts:
        """Return the artifacts of jobs."""
        return self.artifacts_with(self._artifact_source)

    def artifacts_with(self, source: Callable[[], ArtifactSource | None]) -> Artifacts:
        """Return the artifacts of jobs; `source` is where files of other nodes are read."""
        from vox_mesh.jobs.proof.artifacts import Artifacts

        return Artifacts(self.store, self._artifacts_folder, self._artifacts_node, source)

    def job_exporter(self, repository: GitRepository) -> JobExporter:
        """Return what writes the jobs to a git repository."""
        from vox_mesh.jobs.git.exporter import JobExporter

        return JobExporter(self.jobs, self.artifacts, self._worker_keys(), repository)

    def job_importer(self, repository: GitRepository) -> JobImporter:
        """Return what takes jobs and results from a git repository."""
        from vox_mesh.jobs.git.importer import JobImporter
        from vox_mesh.jobs.git.result_writer import ResultWriter
        from vox_mesh.jobs.proof.artifacts import Artifacts

        # Unlike a command that only reads, it keeps files, under the name of its node.
        artifacts = Artifacts(self.store, self._artifacts_folder, lambda: self.identity.node_id)
        writer = ResultWriter(self.store, self.jobs, artifacts, self.roles)
        return JobImporter(self.jobs, writer, self._worker_keys(), repository)

    def _worker_keys(self) -> WorkerKeys:
        from vox_mesh.jobs.git.worker_keys import WorkerKeys

        return WorkerKeys(self.trusted_keys, self.nodes)

    def _artifact_source(self) -> ArtifactSource | None:
        """Return where files of other nodes are read; a command has no connection to them."""
        return None

    def _artifacts_node(self) -> str:
        """Return the node that has the artifacts of this process; a command that only reads has none."""
        return ""

    @cached_property
    def rhythm(self) -> Rhythm:
        """Return the rhythm: tempo, phrases, budgets and reports."""
        from vox_mesh.rhythm.rhythm import Rhythm

        return Rhythm(
            store=self.store,
            writer=self._writer,
            clock=self.clock,
            dependencies=self._dependencies,
            permits=self.permits,
            agent=self._agent,
            locks=self.locks,
            messages=self.messages,
            **self._rhythm_files,
            shared_token=self._shared_token,
        )

    @cached_property
    def retention(self) -> Retention:
        """Return the retention: how long rows are kept."""
        from vox_mesh.runtime.retention.retention import Retention

        parts = (self.store, self.clock, self.locks, self.permits, self.features)
        return Retention(*parts, self._dependencies.monotonic, self._message_retention_s)

    @property
    def bus(self) -> Messages:
        """Return `messages` under its old name, which is deprecated."""
        warn_renamed("Mesh.bus", "Mesh.messages")
        return self.messages

    async def _may_adopt_crons(self) -> bool:
        """Return whether this is the owner of a mesh from before crons were signed, without older nodes."""
        is_owner = await self.ownership.key() == self._writer.identity.key.public
        if not is_owner or await self.ownership.signs_crons():
            return False
        return await self.features.is_known_to_all(CRONS_SIGNED)

    async def _send_question(self, agent: str, question: Mapping[str, Any]) -> None:
        """Send a question of a job to the agent that is asked."""
        from vox_mesh.runtime.notices import send_question  # imported late: few jobs ask

        await send_question(self.messages, agent, question, self.identity.node_id)

    async def _notify_agent(self, conflict: Conflict) -> None:
        """Notify the agent that a conflict was deferred to. The conflict is recorded even if this fails."""
        from vox_mesh.runtime.notices import notify_of_conflict  # imported late: conflicts are rare

        await notify_of_conflict(self.messages, conflict)
