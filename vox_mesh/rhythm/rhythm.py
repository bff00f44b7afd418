"""The rhythm of the mesh: `mesh.rhythm`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import ClassVar, Final

from vox_mesh.errors import BadSettings
from vox_mesh.locks.leadership import Leader, Leadership
from vox_mesh.locks.locks import Locks
from vox_mesh.messages.messages import Messages
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.rhythm.claims import ClaimState
from vox_mesh.model.rhythm.plan import BeatFrame, Plan, PlanEntry, Stamp
from vox_mesh.model.rhythm.policy import TempoPolicy, parse_policy
from vox_mesh.model.rhythm.tempo import Timeline
from vox_mesh.nodes.clock import Dependencies, MeshClock
from vox_mesh.observability.deprecation import RenamedAttributes, warn_renamed
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.rhythm.bar_keys import BarKeys
from vox_mesh.rhythm.bar_reporter import BarReporter
from vox_mesh.rhythm.beat_locks import BeatLocks
from vox_mesh.rhythm.budgets import Budgets, read_rates
from vox_mesh.rhythm.context import RhythmContext, Times
from vox_mesh.rhythm.help import Help
from vox_mesh.rhythm.phrases.phrases import Phrases
from vox_mesh.rhythm.status_claims import StatusClaimWriter
from vox_mesh.rhythm.tallies import Tallies
from vox_mesh.rhythm.task_status import MAX_LIMIT, Position, StatusQueries, TaskStatus
from vox_mesh.rhythm.tempo.controller import TempoController
from vox_mesh.rhythm.tempo.incidents import Incidents
from vox_mesh.rhythm.tempo.policies import Policies
from vox_mesh.rhythm.tempo.pulse import Pulse
from vox_mesh.store.store import Store

OFFICE: Final = "rhythm"
"""The name of the leadership."""


class Rhythm(Phrases, RenamedAttributes):
    """Beats, phrases, budgets, help and reports of the mesh."""

    _RENAMED: ClassVar = {"look": "refresh"}

    def __init__(
        self,
        store: Store,
        writer: OpLogWriter,
        clock: MeshClock,
        dependencies: Dependencies,
        permits: Permits,
        agent: str | None,
        locks: Locks,
        messages: Messages,
        *,
        policy_file: Path | None = None,
        rates_file: Path | None = None,
        shared_token: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.times = Times(clock)
        built_in = TempoPolicy.built_in(store.writer_id.repository_id)
        plan = Plan(PlanEntry.of(built_in if policy_file is None else _policy_at(policy_file)))
        self.context = RhythmContext(store, writer, clock, self.times, permits, agent, plan)
        rates = read_rates(rates_file)
        self.budgets = Budgets(self.context, rates)
        self.tallies = Tallies(self.context, rates)
        self.tokens = self.budgets.tokens
        self.policies = Policies(self.context, built_in)
        self.pulse = Pulse(self.context)
        self._keys = BarKeys(self.context, shared_token)
        self.beat_locks = BeatLocks(self.context, locks)
        self.leadership = Leadership(OFFICE, store, locks, clock, dependencies.monotonic)
        self.status = StatusClaimWriter(self.context)
        self.status_queries = StatusQueries(self.context, messages.verifier)
        self.bar_reporter = BarReporter(self.context)
        self.help = Help(self.context, messages)
        self.incidents = Incidents(self.context)
        self.controller = TempoController(self.context, self.policies, self.leadership, self.incidents)
        super().__init__(self.context, self.status, messages, self.budgets, self.help)

    async def refresh(self) -> None:
        """Read the announced tempos. A node does so in every bar."""
        await self.policies.refresh()

    async def read_plan(self) -> Plan:
        """Read the announced tempos, and return the ones to follow."""
        await self.refresh()
        return self.context.plan

    @property
    def holds(self) -> BeatLocks:
        """Return `beat_locks`. Deprecated."""
        warn_renamed("rhythm.holds", "rhythm.beat_locks")
        return self.beat_locks

    @property
    def timeline(self) -> Timeline:
        """The timeline of beats and bars, as known to this node."""
        return self.context.timeline

    @property
    def policy(self) -> TempoPolicy:
        """The policy in force."""
        return self.context.policy

    # --- beats -----------------------------------------------------------------------------------

    def frame(self, at_ms: int | None = None) -> BeatFrame:
        """Return the frame of the beat at a time, by default now."""
        return self.pulse.frame(at_ms)

    def beats(self) -> AsyncGenerator[BeatFrame, None]:
        """Yield each beat from now on, when it begins."""
        return self.pulse.beats()

    def stamp(self, hlc: str) -> Stamp:
        """Return the bar and beat of a hybrid timestamp."""
        return Stamp(*self.context.plan.stamp_at(Hlc.parse(hlc).wall_ms), hlc)

    # --- status ----------------------------------------------------------------------------------

    async def statuses(
        self,
        *,
        agent: str | None = None,
        state: ClaimState | str | None = None,
        score: str | None = None,
        after: Position | None = None,
        limit: int = MAX_LIMIT,
        fresh: bool = False,
    ) -> list[TaskStatus]:
        """Return the status of tasks in this bar and the one before, by agent and task.

        `after` continues after the position of a status.
        """
        await self.refresh()
        page = await self.status_queries.page(
            agent=agent, state=state, score=score, after=after, limit=limit, fresh=fresh
        )
        return page.items

    # --- keys ------------------------------------------------------------------------------------

    def key(self, purpose: str) -> str:
        """Return the key of this bar for a purpose, to show to another agent. Do not store or log it."""
        return self._keys.key(purpose)

    def accepts(self, purpose: str, key: str) -> bool:
        """Return whether another agent's key is valid for a purpose: of this bar, or of one just before."""
        return self._keys.fault(purpose, key) is None

    # --- leadership ------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """Whether this node leads."""
        return self.leadership.is_ours

    async def leader(self) -> Leader | None:
        """Return the current leader, or `None`."""
        return await self.leadership.leader()

    async def close(self) -> None:
        """Flush pending status claims and bar reports, resign leadership, and stop the pulse."""
        await self.status.close()
        await self.bar_reporter.close()
        await self.leadership.resign()
        await self.pulse.close()


def _policy_at(file: Path) -> TempoPolicy:
    try:
        text = file.read_bytes()
    except OSError as error:
        raise BadSettings(
            f"VOX_MESH_TEMPO_POLICY: {file} can't be read: {error.strerror}",
            hint="name a file, or unset the variable",
        ) from None
    return parse_policy(text, str(file))
