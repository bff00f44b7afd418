"""Crons: jobs that come again and again, each fired once, by whichever node is first."""

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
from vox_mesh.model.jobs.cron import Cron, iso
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.observability import tracing
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Script, Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

FIRED: Final = "cron_fired"
"""Why a node is refused that comes second."""

_SQL: Final = named("crons")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_AT_ONCE: Final = 100
_ONCE_ONLY: Final = ("ulid", "nonce", "after", "run_at", "retry_of")
_OPTIONS: Final = ("priority", "max_attempts")
_DURATIONS: Final = ("backoff", "lease")
_MILLISECOND: Final = timedelta(milliseconds=1)


class CronJob(NamedTuple):
    """A cron as the database has it; `manifest` is the core of its jobs, but for the nonce."""

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
        """When it is due; `BadValue` on a machine that does not know its time zone."""
        return Cron(self.expression, self.timezone)

    def job_at(self, time_ms: int) -> Manifest:
        """The job of one time: the same, whoever makes it."""
        options: dict[str, Any] = orjson.loads(self.options)
        options |= {name: options[name] * _MILLISECOND for name in _DURATIONS if name in options}
        options["nonce"] = f"{self.name}@{iso(time_ms)}"
        return Manifest.of_core(orjson.loads(self.manifest)).model_copy(update=options)


class Crons:
    """Adds and removes crons, and fires those that are due. Any number of nodes may, at the same time."""

    def __init__(self, store: Store, jobs: Jobs, clock: MeshClock) -> None:
        self._store = store
        self._mesh = store.tenant[:2]
        self._jobs = jobs
        self._clock = clock
        self._not_here: set[str] = set()  # told of already

    async def add(self, name: str, expression: str, manifest: Manifest, timezone: str = "UTC") -> CronJob:
        """Have a job scheduled whenever the expression says so, from now on; added again, it is the same."""
        if not _NAME.fullmatch(name):
            raise BadValue(
                f"{name!r} is no name for a cron",
                hint="up to 64 letters, digits, _, . and -",
            )
        cron = Cron(" ".join(expression.split()), timezone)
        told = [each for each in _ONCE_ONLY if getattr(manifest, each)]
        if told:
            raise BadManifest([f"{each}: is for one job only, and a cron makes many" for each in told])
        options = {each: getattr(manifest, each) for each in _OPTIONS}
        options |= {"backoff": manifest.backoff_ms, "lease": manifest.lease_ms}
        given = orjson.dumps({each: value for each, value in options.items() if value is not None})
        wanted = (cron.expression, cron.timezone, canonical(manifest.core()), given.decode())
        next_ms = cron.after(self._clock.now_ms)
        script = self._script("add", name, *wanted, next_ms)
        await self._store.write(script)
        try:
            there = await self._find(name)
        except DatabaseUnavailable as error:  # which must not sound as if nothing was added
            raise OutcomeUnknown(f"the cron that was added can't be read: {error}", key=script.key) from error
        if there is None or there[1:5] != wanted:
            raise BadValue(f"there is another cron named {name}", hint="remove that one first")
        return there

    async def listed(self) -> list[CronJob]:
        """All crons, by name."""
        return [CronJob._make(row) for row in await self._store.read(_SQL["listed"], self._mesh)]

    async def remove(self, name: str) -> None:
        """Have no more jobs come of it; those that have come stay."""
        answer = Answer(_SQL["removed"], columns=("removed",))
        if not (await self._store.write(self._script("remove", name, answer=answer))).rows.value:
            raise NotKnown(f"there is no cron {name}", hint="`vox-mesh cron list` shows them")

    async def fire_due(self) -> list[str]:
        """Fire those that are due, as far as our copy of the database shows; the ids of their jobs.

        Times that nobody fired are fired as one, the latest.
        """
        self._clock.refuse_if_off()
        rows = await self._store.read(_SQL["due"], (*self._mesh, self._clock.now_ms, _AT_ONCE))
        fired = []
        for cron in map(CronJob._make, rows):
            with suppress(_NotHere):
                job_id, script = self._firing(cron)
                began = tracing.began()
                try:
                    await self._store.write(script)
                except Refused as refused:
                    if refused.reason != FIRED:
                        raise
                    continue
                tracing.record_jobs("job schedule", [(job_id, {"vox.cron": cron.name})], began)
                _log.info("%s: job %s is scheduled", cron.name, job_id)
                fired.append(job_id)
        return fired

    def _firing(self, cron: CronJob) -> tuple[str, Script]:
        now_ms = self._clock.now_ms
        try:
            schedule = cron.schedule
            time_ms = max(cron.next_ms, schedule.latest(now_ms))
            item = self._jobs.item(cron.job_at(time_ms))
            following_ms = schedule.after(max(now_ms, time_ms))
        except MeshError as error:
            if cron.name not in self._not_here:
                self._not_here.add(cron.name)
                _log.warning("cron %s is left to other nodes: %s", cron.name, error.line)
            raise _NotHere from None
        job_id = item["job_id"]
        due = (*self._mesh, cron.name, cron.next_ms, cron.added_ms, time_ms)
        moved = (*self._mesh, cron.name, time_ms, job_id, following_ms)
        script = self._jobs.moves.schedule(
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


class _NotHere(Exception):
    """This machine can't fire it."""
