"""The services of a mesh, for nodes and for commands next to them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from vox_mesh.errors import MeshError
from vox_mesh.jobs.cron_ops import CRONS_SIGNED
from vox_mesh.jobs.crons import Crons
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.kinds import JobKinds
from vox_mesh.jobs.proof.artifacts import Artifacts
from vox_mesh.locks.locks import Locks
from vox_mesh.messages.messages import Messages
from vox_mesh.nodes.clock import Dependencies, MeshClock
from vox_mesh.nodes.identity import Identity
from vox_mesh.nodes.nodes import Features, Nodes
from vox_mesh.observability.deprecation import RenamedAttributes, warn_renamed
from vox_mesh.occ.conflicts import Conflict, Conflicts
from vox_mesh.occ.occ import Occ
from vox_mesh.occ.versions import Versions
from vox_mesh.oplog.op_kinds import OpKinds
from vox_mesh.oplog.oplog import OpLog
from vox_mesh.oplog.ownership import Ownership
from vox_mesh.oplog.past import LogPast
from vox_mesh.oplog.pending_ops import PendingOps
from vox_mesh.oplog.roles import Roles
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.oplog.witness import RememberedStore
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.store import Store

if TYPE_CHECKING:
    from vox_mesh.rhythm.rhythm import Rhythm

_log = logging.getLogger(__name__)


class MeshServices(RenamedAttributes):
    """The locks, nodes, op log, versions, messages and jobs of one mesh."""

    _RENAMED: ClassVar = {"deferral": "pending_ops"}

    def __init__(
        self,
        store: Store,
        writer: OpLogWriter,
        clock: MeshClock,
        dependencies: Dependencies,
        agent: str | None,
        artifacts: Artifacts,
        *,
        policy_file: Path | None = None,
        rates_file: Path | None = None,
        owner_key: str | None = None,
        remembered: Callable[[], Sequence[RememberedStore]] = tuple,
    ) -> None:
        """`owner_key` pins the owner; `remembered` returns what nodes of this home know of the database."""
        kinds = OpKinds()
        self.store = store
        self._writer = writer
        self.clock = clock
        self.nodes = Nodes(store, clock)
        self.features = Features(store, self.nodes, dependencies.monotonic)
        self.ownership = Ownership(store, owner_key)
        self.trusted_keys = TrustedKeys(store, self.ownership)
        self.roles = Roles(store, writer, self.nodes, clock, self.ownership)
        self.pending_ops = PendingOps(store, clock, kinds, self.trusted_keys)
        self.oplog = OpLog(
            store,
            writer,
            clock,
            kinds,
            self.roles,
            self.pending_ops,
            self.trusted_keys,
            LogPast(store, self.ownership, self.trusted_keys),
            remembered,
        )
        versions = Versions(store, writer, clock, self.nodes, agent)
        self.conflicts = Conflicts(store, versions)
        self.occ = Occ(versions, self.conflicts, notify=self._notify_agent, chance=dependencies.chance)
        self.locks = Locks(
            store,
            clock,
            lambda: self.identity.node_id,
            agent,
            dependencies.monotonic,
            on_granted=writer.witness.record_token,
        )
        self.messages = Messages(store, writer, clock, dependencies, agent, self.trusted_keys)
        self.jobs = Jobs(
            store,
            writer,
            clock,
            self.nodes,
            dependencies.secret,
            self.trusted_keys,
            dependencies.monotonic,
        )
        self.crons = Crons(store, self.jobs, clock, self._may_adopt_crons)
        self.job_kinds = JobKinds(store, self.jobs.queries)
        self.artifacts = artifacts
        self._writer = writer
        self._dependencies = dependencies
        self._agent = agent
        self._rhythm_files = {"policy_file": policy_file, "rates_file": rates_file}

    @cached_property
    def rhythm(self) -> Rhythm:
        """Return the rhythm: tempo, phrases, budgets and reports."""
        from vox_mesh.rhythm.rhythm import Rhythm  # imported late: most commands do not need it

        return Rhythm(
            store=self.store,
            writer=self._writer,
            clock=self.clock,
            dependencies=self._dependencies,
            agent=self._agent,
            locks=self.locks,
            messages=self.messages,
            **self._rhythm_files,
        )

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

    async def _notify_agent(self, conflict: Conflict) -> None:
        """Notify the agent that a conflict was deferred to. The conflict is recorded even if this fails."""
        if conflict.deferred_to is None:
            return
        body = {
            "conflict_id": conflict.conflict_id,
            "table_name": conflict.table_name,
            "row_key": conflict.row_key,
        }
        try:
            await self.messages.send(conflict.deferred_to, body, msg_type="conflict")
        except MeshError as error:
            _log.warning("conflict notification failed: agent=%s: %s", conflict.deferred_to, error.line)

    @property
    def identity(self) -> Identity:
        """Return the identity of this process in the mesh."""
        return self._writer.identity

    @property
    def incarnation(self) -> int | None:
        """Return the incarnation of this node; `None` before it is registered, and for commands."""
        return self._writer.incarnation
