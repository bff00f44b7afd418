"""Crons: recurring jobs. Each due time is fired once, by the first node that gets to it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from vox_mesh.errors import BadValue, MeshError, Refused
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.scheduling.cron_ops import CronDefinition, CronOps, adding, adopting, removing
from vox_mesh.jobs.scheduling.definition_table import DefinitionTable
from vox_mesh.jobs.scheduling.job_template import JobTemplate
from vox_mesh.model.base.hlc import MAX_AHEAD_MS
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.scheduling.cron import Cron, bars_in, iso
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.observability import tracing
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

if TYPE_CHECKING:
    from vox_mesh.model.rhythm.bar_schedule import BarSchedule
    from vox_mesh.model.rhythm.plan import Plan
    from vox_mesh.rhythm.rhythm import Rhythm

_log = logging.getLogger(__name__)

FIRED: Final = "cron_fired"
"""The refusal of a node that fires a time which another node has fired."""

_SQL: Final = named("crons")
_MAX_DUE: Final = 100
_MAX_LOGGED: Final = 1_000


class CronJob(NamedTuple):
    """A stored cron; `manifest` is the core of its jobs without the nonce."""

    name: str
    expression: str
    timezone: str
    manifest: str
    options: str
    next_ms: int
    last_ms: int | None
    last_job: str | None
    added_ms: int

    @property
    def definition(self) -> CronDefinition:
        """Return its definition, which an op must have."""
        return CronDefinition(self.expression, self.timezone, self.manifest, self.options)

    def job_at(self, time_ms: int) -> Manifest:
        """Return the manifest of the job of one due time, identical on every node."""
        time = iso(time_ms) if bars_in(self.expression) is None else str(time_ms)  # bars may be short
        return JobTemplate(self.manifest, self.options).job(f"{self.name}@{time}")


class Crons:
    """Adds, removes and fires crons. Any number of nodes may do so concurrently."""

    def __init__(
        self,
        store: Store,
        jobs: Jobs,
        clock: MeshClock,
        rhythm: Callable[[], Rhythm],
        may_adopt: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """`may_adopt`: whether this process signs for crons that were added before there were ops."""
        self._may_adopt = may_adopt
        self._rhythm = rhythm
        self._aligned_by: Plan | None = None
        self._ops = CronOps(store, jobs.trusted_keys)
        self._table = DefinitionTable("cron", store, _SQL, self._ops, CronJob._make, jobs.permits)
        self._store = store
        self._mesh = store.mesh_id
        self._jobs = jobs
        self._clock = clock
        self._logged_unusable: set[str] = set()
        self._fired_ms: dict[str, int] = {}  # the latest time of each cron that this process has fired

    async def add(
        self, name: str, expression: str, manifest: Manifest | Mapping[str, Any], timezone: str = "UTC"
    ) -> CronJob:
        """Add a cron that schedules a job at each time of the expression. Adding it again changes nothing.

        The expression has five fields, or is `every N bars`. A manifest may be given by its fields. Raises
        `BadValue` if another cron has this name.
        """
        if not isinstance(manifest, Manifest):
            manifest = Manifest.of(**manifest)
        self._table.check_name(name)
        wanted = CronDefinition(" ".join(expression.split()), timezone, *JobTemplate.of(manifest, "cron"))
        await self._jobs.refuse_unknown_phases([manifest])
        return await self.define(name, wanted)

    async def define(self, name: str, definition: CronDefinition) -> CronJob:
        """Add a cron as `add` does, given as an op has it."""
        if bars_in(definition.expression) is not None:
            await self._rhythm().refresh()
        schedule = self._schedule_of(definition.expression, definition.timezone)
        next_ms = schedule.after(self._clock.now_ms)
        return await self._table.add(name, definition, adding(name, definition), next_ms)

    async def listed(self) -> list[CronJob]:
        """Return all crons by name."""
        return await self._table.listed()

    async def remove(self, name: str) -> None:
        """Remove a cron; jobs it has scheduled stay. Raises `NotKnown` if there is none."""
        await self._table.remove(name, removing(name))

    def forget(self) -> None:
        """Forget which times were fired: the database was rolled back, and may have lost their jobs."""
        self._fired_ms.clear()

    async def fire_due(self) -> list[str]:
        """Fire the crons that are due according to the replica, and return the ids of their jobs.

        Of several missed times only the latest is fired.
        """
        self._clock.refuse_if_off()
        await self._ops.refresh()
        await self._adopt_once()
        names = orjson.dumps(list(self._ops.definitions)).decode()
        due = (*self._mesh, self._clock.now_ms, _MAX_DUE, names)
        for row in await self._store.read(_SQL["due_without_op"], due):
            name = str(row["name"])
            self._log_unusable(
                name, logging.ERROR, f"cron not fired, no signed op adds it; add it again: cron={name}"
            )
        rows = await self._store.read(_SQL["due"], due)
        fired = []
        for cron in map(CronJob._make, rows):
            with suppress(_Unusable):
                self._refuse_if_planted(cron)
                time_ms = self._due_ms(cron)
                if time_ms is None:
                    await self._correct(cron)
                elif job_id := await self._fire(cron, time_ms):
                    fired.append(job_id)
        return fired

    async def _fire(self, cron: CronJob, time_ms: int) -> str | None:
        """Schedule the job of a time, and return its id; `None` if another node has."""
        job_id, script = self._prepare_firing(cron, time_ms)
        began = tracing.began()
        if not await self._write_if_due(script):
            return None
        self._fired_ms[cron.name] = time_ms
        tracing.record_jobs("job schedule", [(job_id, {"vox.cron": cron.name})], began)
        _log.info("cron fired: cron=%s job_id=%s", cron.name, job_id)
        return job_id

    async def align(self) -> None:
        """Move the crons in bars to their next downbeats, if this node has learnt of another tempo."""
        plan = self._rhythm().context.plan
        if plan is self._aligned_by:
            return
        rows = await self._store.read(_SQL["in_bars"], self._mesh)
        now_ms = self._clock.now_ms
        for cron in map(CronJob._make, rows):
            with suppress(_Unusable):
                if cron.next_ms > now_ms and cron.next_ms != self._schedule(cron).after(now_ms):
                    await self._move_on(cron)
        self._aligned_by = plan

    async def _correct(self, cron: CronJob) -> None:
        """Move a cron on to its next time, without a job: no node has written the time that it has."""
        if await self._move_on(cron):
            _log.error("cron not fired, its schedule has no such time: cron=%s", cron.name)

    async def _move_on(self, cron: CronJob) -> bool:
        """Set the next time of a cron, and return whether no other node was first."""
        following_ms = self._schedule(cron).after(self._clock.now_ms)
        due = (*self._mesh, cron.name, cron.next_ms, cron.added_ms, 0)
        script = Script(
            Statement(_SQL["refuse_unless_due"], due, refusal=FIRED),
            Statement(_SQL["correct"], (*self._mesh, cron.name, following_ms)),
        )
        return await self._write_if_due(script)

    async def _write_if_due(self, script: Script) -> bool:
        try:
            await self._store.write(script)
        except Refused as refused:
            if refused.reason != FIRED:
                raise
            return False
        return True

    def _due_ms(self, cron: CronJob) -> int | None:
        """Return the latest time of its schedule; `None` if it is not due, whatever its row says.

        A time is due once, after the signed op that added the cron. Clocks may differ by a second.
        """
        latest_ms = self._schedule(cron).latest(self._clock.now_ms)
        since_ms = self._ops.since[cron.name] - MAX_AHEAD_MS
        is_due = cron.next_ms <= latest_ms and latest_ms > max(since_ms, self._fired_ms.get(cron.name, 0))
        return latest_ms if is_due else None

    def _schedule(self, cron: CronJob) -> Cron | BarSchedule:
        try:
            return self._schedule_of(cron.expression, cron.timezone)
        except BadValue as error:
            raise self._unusable(cron, error) from None

    def _schedule_of(self, expression: str, timezone: str) -> Cron | BarSchedule:
        """Return a schedule. Raises `BadValue` if it is none, or its time zone is not known here."""
        bars = bars_in(expression)
        if bars is None:
            return Cron(expression, timezone)
        if timezone != "UTC":
            raise BadValue(f"a schedule in bars has no time zone, got {timezone!r}", hint="omit it")
        from vox_mesh.model.rhythm.bar_schedule import BarSchedule  # imported late: few crons have one

        return BarSchedule(self._rhythm().context.plan, bars)

    def _unusable(self, cron: CronJob, error: Exception) -> _Unusable:
        self._log_unusable(cron.name, logging.WARNING, f"cron left to other nodes: cron={cron.name}: {error}")
        return _Unusable()

    def _refuse_if_planted(self, cron: CronJob) -> None:
        if cron.definition != self._ops.definitions.get(cron.name):
            self._log_unusable(
                cron.name,
                logging.ERROR,
                f"cron not fired, no signed op adds it with this definition: cron={cron.name}",
            )
            raise _Unusable

    async def _adopt_once(self) -> None:
        """Adopt, as the owner, the crons from before there were ops, when no older node is left."""
        if self._may_adopt is None or self._ops.has_adopted or not await self._may_adopt():
            return
        await self._ops.refresh(fresh=True)
        if not self._ops.has_adopted:
            unsigned = {each.name: each.definition for each in await self._table.listed(fresh=True)}
            await self._store.write(Script(op=adopting(unsigned)))
            await self._ops.refresh(fresh=True)
            _log.warning("crons adopted: crons=%s", ",".join(unsigned))

    def _log_unusable(self, name: str, level: int, what: str) -> None:
        if name not in self._logged_unusable and len(self._logged_unusable) < _MAX_LOGGED:
            self._logged_unusable.add(name)
            _log.log(level, "%s", what)

    def _prepare_firing(self, cron: CronJob, time_ms: int) -> tuple[str, Script]:
        try:
            item = self._jobs.item(cron.job_at(time_ms))
            following_ms = self._schedule(cron).after(self._clock.now_ms)
        except (MeshError, TypeError, ValueError) as error:  # the others: a hostile row
            raise self._unusable(cron, error) from None
        job_id = item["job_id"]
        due = (*self._mesh, cron.name, cron.next_ms, cron.added_ms, time_ms)
        moved = (*self._mesh, cron.name, time_ms, job_id, following_ms)
        script = self._jobs.transitions.schedule(
            [item],
            Statement(_SQL["refuse_unless_due"], due, refusal=FIRED),
            Statement(_SQL["move_on"], moved),
        )
        return job_id, script


class _Unusable(Exception):
    """This machine can't fire the cron."""
