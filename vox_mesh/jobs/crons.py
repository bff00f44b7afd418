"""Crons: recurring jobs. Each due time is fired once, by the first node that gets to it."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import (
    BadManifest,
    BadValue,
    DatabaseUnavailable,
    MeshError,
    NotKnown,
    OutcomeUnknown,
    Refused,
)
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.json_text import read_stored
from vox_mesh.model.jobs.cron import Cron, iso
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.observability import tracing
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Script, Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

FIRED: Final = "cron_fired"
"""The refusal of a node that fires a time which another node has fired."""

_SQL: Final = named("crons")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MAX_DUE: Final = 100
_SINGLE_JOB_FIELDS: Final = ("ulid", "nonce", "after", "run_at", "retry_of")
_OPTIONS: Final = ("priority", "max_attempts")
_DURATIONS: Final = ("backoff", "lease")
_MILLISECOND: Final = timedelta(milliseconds=1)


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
    def schedule(self) -> Cron:
        """Return its schedule. Raises `BadValue` if this machine does not know its time zone."""
        return Cron(self.expression, self.timezone)

    def job_at(self, time_ms: int) -> Manifest:
        """Return the manifest of the job of one due time, identical on every node."""
        options, core = read_stored(self.options), read_stored(self.manifest)
        if not isinstance(options, dict) or not isinstance(core, dict):
            raise BadValue(f"the options and the manifest of cron {self.name} must be objects")
        options |= {name: options[name] * _MILLISECOND for name in _DURATIONS if name in options}
        options["nonce"] = f"{self.name}@{iso(time_ms)}"
        return Manifest.of_core(core).model_copy(update=options)


class Crons:
    """Adds, removes and fires crons. Any number of nodes may do so concurrently."""

    def __init__(self, store: Store, jobs: Jobs, clock: MeshClock) -> None:
        self._store = store
        self._mesh = store.mesh_id
        self._jobs = jobs
        self._clock = clock
        self._logged_unusable: set[str] = set()

    async def add(self, name: str, expression: str, manifest: Manifest, timezone: str = "UTC") -> CronJob:
        """Add a cron that schedules a job at each time of the expression. Adding it again changes nothing.

        Raises `BadValue` if another cron has this name.
        """
        if not _NAME.fullmatch(name):
            raise BadValue(
                f"a cron's name must be up to 64 letters, digits, _, . and -, got {name!r}",
                hint="choose another name",
            )
        cron = Cron(" ".join(expression.split()), timezone)
        single = [each for each in _SINGLE_JOB_FIELDS if getattr(manifest, each)]
        if single:
            raise BadManifest([f"{each}: is for one job only, and a cron makes many" for each in single])
        options = {each: getattr(manifest, each) for each in _OPTIONS}
        options |= {"backoff": manifest.backoff_ms, "lease": manifest.lease_ms}
        given = orjson.dumps({each: value for each, value in options.items() if value is not None})
        wanted = (cron.expression, cron.timezone, canonical(manifest.core(), max_depth=None), given.decode())
        next_ms = cron.after(self._clock.now_ms)
        script = self._script("add", name, *wanted, next_ms)
        await self._store.write(script)
        try:
            stored = await self._find(name)
        except DatabaseUnavailable as error:  # the cron may be added
            raise OutcomeUnknown(f"the cron that was added can't be read: {error}", key=script.key) from error
        if stored is None or stored[1:5] != wanted:
            raise BadValue(f"cron {name} exists already with another definition", hint="remove it first")
        return stored

    async def listed(self) -> list[CronJob]:
        """Return all crons by name."""
        return [CronJob._make(row) for row in await self._store.read(_SQL["listed"], self._mesh)]

    async def remove(self, name: str) -> None:
        """Remove a cron; jobs it has scheduled stay. Raises `NotKnown` if there is none."""
        answer = Answer(_SQL["removed"], columns=("removed",))
        if not (await self._store.write(self._script("remove", name, answer=answer))).rows.value:
            raise NotKnown(f"there is no cron {name}", hint="run `vox-mesh cron list`")

    async def fire_due(self) -> list[str]:
        """Fire the crons that are due according to the replica, and return the ids of their jobs.

        Of several missed times only the latest is fired.
        """
        self._clock.refuse_if_off()
        rows = await self._store.read(_SQL["due"], (*self._mesh, self._clock.now_ms, _MAX_DUE))
        fired = []
        for cron in map(CronJob._make, rows):
            with suppress(_Unusable):
                job_id, script = self._prepare_firing(cron)
                began = tracing.began()
                try:
                    await self._store.write(script)
                except Refused as refused:
                    if refused.reason != FIRED:
                        raise
                    continue
                tracing.record_jobs("job schedule", [(job_id, {"vox.cron": cron.name})], began)
                _log.info("cron fired: cron=%s job_id=%s", cron.name, job_id)
                fired.append(job_id)
        return fired

    def _prepare_firing(self, cron: CronJob) -> tuple[str, Script]:
        now_ms = self._clock.now_ms
        try:
            schedule = cron.schedule
            time_ms = max(cron.next_ms, schedule.latest(now_ms))
            item = self._jobs.item(cron.job_at(time_ms))
            following_ms = schedule.after(max(now_ms, time_ms))
        except (MeshError, TypeError, ValueError) as error:  # the others: a hostile row
            if cron.name not in self._logged_unusable:
                self._logged_unusable.add(cron.name)
                _log.warning("cron left to other nodes: cron=%s: %s", cron.name, error)
            raise _Unusable from None
        job_id = item["job_id"]
        due = (*self._mesh, cron.name, cron.next_ms, cron.added_ms, time_ms)
        moved = (*self._mesh, cron.name, time_ms, job_id, following_ms)
        script = self._jobs.transitions.schedule(
            [item],
            Statement(_SQL["refuse_unless_due"], due, refusal=FIRED),
            Statement(_SQL["move_on"], moved),
        )
        return job_id, script

    async def _find(self, name: str) -> CronJob | None:
        rows = await self._store.read(_SQL["find"], (*self._mesh, name), fresh=True)
        return CronJob._make(rows[0]) if rows else None

    def _script(self, statement: str, *values: Any, answer: Answer | None = None) -> Script:
        return Script(Statement(_SQL[statement], (*self._mesh, *values)), answer=answer)


class _Unusable(Exception):
    """This machine can't fire the cron."""
