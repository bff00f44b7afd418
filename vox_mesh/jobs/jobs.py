"""Jobs: schedule work from anywhere, see where it stands, end it, have it done again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import (
    BadValue,
    DatabaseUnavailable,
    IllegalTransition,
    OutcomeUnknown,
    Refused,
)
from vox_mesh.jobs.progress import Notes
from vox_mesh.jobs.queries import JobQueries
from vox_mesh.jobs.transitions import Item, JobTransitions
from vox_mesh.model.base.canonical import canonical, embedded, text_id
from vox_mesh.model.jobs.manifest import After, Manifest, ordered, outside
from vox_mesh.model.jobs.records import (
    DEFAULT_ATTEMPTS,
    DEFAULT_BACKOFF_MS,
    DEFAULT_PRIORITY,
    GONE_WRONG,
    HELD,
    Job,
)
from vox_mesh.model.rhythm.boundaries import Until
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.nodes import Nodes
from vox_mesh.observability import tracing
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.script import Script, new_key
from vox_mesh.store.store import Store
from vox_mesh.store.watch.endings import Endings

MAX_AT_ONCE: Final = 500
"""So many jobs go into one op."""

LONGEST_DELAY: Final = timedelta(days=365)
_AGAIN_S: Final = 1.0
_SEED_BYTES: Final = 32

_REFUSALS: Final = {
    "ulid_taken": ("another job has this ULID", "leave `ulid` out, or choose another"),
    "unknown_predecessor": ("a job that it is to wait for is not there", "schedule that one first"),
    "predecessor_failed": (
        "what it is to wait for has failed, was aborted or refused",
        "retry that one and name the new job, or wait for its end with `when: end`",
    ),
}


class Scheduled(NamedTuple):
    """A job that was scheduled, now or before: the same manifest is the same job."""

    job_id: str
    ulid: str
    kind: str
    is_new: bool = True


Reference = str | Job | Scheduled
"""A job, or its id, the beginning of its id, or its ULID."""


class Jobs:
    """The plane of jobs, as anyone may use it; what works on them is the worker."""

    def __init__(
        self,
        store: Store,
        author: OpLogWriter,
        clock: MeshClock,
        nodes: Nodes,
        secret: Callable[[int], bytes],
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._secret = secret
        self._author = author
        self.clock = clock
        self.roster = JobQueries(store, clock)
        self.moves = JobTransitions(store, author, clock)
        self.notes = Notes(store, self.roster)
        self._endings = Endings(store, self.roster.still_open)
        self.expired = 0
        """How many jobs this process took back because their leases had run out."""

    # --- scheduling ------------------------------------------------------------------------------

    async def schedule(
        self,
        kind: str,
        payload: Any = None,
        *,
        after: Iterable[Reference | Mapping[str, str]] = (),
        priority: int = DEFAULT_PRIORITY,
        run_at: datetime | None = None,
        max_attempts: int = DEFAULT_ATTEMPTS,
        backoff: timedelta | None = None,
        lease: timedelta | Until | None = None,
        timeout: int | None = None,
        ulid: str | None = None,
        new: bool = True,
    ) -> Scheduled:
        """Schedule a job for a handler. With `new=False` the same kind and payload is the same job."""
        fields = {
            "priority": priority,
            "run_at": run_at,
            "max_attempts": max_attempts,
            "backoff": backoff,
            "lease": lease,
            "timeout": timeout,
            "ulid": ulid,
            "after": [_written(each) for each in after] or None,
            "payload": payload,
        }
        given = {name: value for name, value in fields.items() if value is not None}
        (scheduled,) = await self.schedule_all([Manifest.of(kind=kind, **given)], new=new)
        return scheduled

    async def schedule_all(self, manifests: Sequence[Manifest], *, new: bool = False) -> list[Scheduled]:
        """Schedule jobs, all or none. They may name each other in `after`, by their ULIDs.

        Those that others wait for come back before them.
        A manifest that was scheduled before is the same job, unless it is `new`.
        """
        if any(each.after for each in manifests):
            if new:  # those that wait for each other do so by their ids
                manifests = [each.model_copy(update={"nonce": each.nonce or new_key()}) for each in manifests]
            manifests = await self._resolved(manifests)
        items = [self.item(each, new_key() if new and each.nonce is None else None) for each in manifests]
        return await self._schedule(items, new=new)

    async def _schedule(self, items: Sequence[Item], *, new: bool = False) -> list[Scheduled]:
        if not items:
            return []
        await self._nodes.now_ms()  # a time of our own may be far off
        self.clock.refuse_if_off()
        if len(items) > MAX_AT_ONCE:
            raise BadValue(f"{len(items)} jobs are too many at once", hint=f"at most {MAX_AT_ONCE}")
        began, by_id = tracing.began(), {item["job_id"]: item for item in items}
        script = self.moves.schedule(list(by_id.values()))
        await self._write(script)
        told = ((job_id, {"vox.job.kind": item["kind"]}) for job_id, item in by_id.items())
        tracing.tell_of_jobs("job schedule", told, began)
        if new:
            return [Scheduled(item["job_id"], item["ulid"], item["kind"]) for item in items]
        try:
            found = await self.roster.standing(by_id)
        except DatabaseUnavailable as error:  # which must not sound as if nothing was scheduled
            raise OutcomeUnknown(f"what was scheduled can't be read: {error}", key=script.key) from error
        if len(found) < len(by_id):
            raise OutcomeUnknown(
                "what was scheduled is not in the database, which has gone back to an earlier state",
                key=script.key,
            )
        # The jobs as they were scheduled first, by us or by others.
        jobs = [(item, found[item["job_id"]]) for item in items]
        # By its ULID it can't be told: the manifest may have named it, then and now.
        return [Scheduled(job.job_id, job.ulid, job.kind, job.seed == item["seed"]) for item, job in jobs]

    async def _resolved(self, manifests: Sequence[Manifest]) -> list[Manifest]:
        """Each with the ids of those it is to wait for, and after those of them that are here too."""
        known = {name: (await self.roster.find(name, fresh=True)).job_id for name in outside(manifests)}
        return ordered([each.with_after(known) for each in manifests])

    def item(self, manifest: Manifest, nonce: str | None = None) -> dict[str, Any]:
        """What the op that schedules it says of a job; with a nonce, of another one like it."""
        core = manifest.resolved_core()
        text = canonical(core if nonce is None else {**core, "nonce": nonce})
        item: dict[str, Any] = {
            "job_id": text_id(text),
            "ulid": manifest.ulid or new_key(),
            "kind": manifest.job_kind,
            "manifest": embedded(text),
            "seed": self._secret(_SEED_BYTES).hex(),
            "priority": DEFAULT_PRIORITY if manifest.priority is None else manifest.priority,
            "max_attempts": manifest.max_attempts or DEFAULT_ATTEMPTS,
            "backoff_ms": DEFAULT_BACKOFF_MS if manifest.backoff_ms is None else manifest.backoff_ms,
        }
        if manifest.lease_ms is not None:
            item["lease_ms"] = manifest.lease_ms
        if manifest.run_at_ms is not None:
            item["run_at_ms"] = manifest.run_at_ms
        if manifest.after:
            item["after"] = [_awaited(each) for each in manifest.after]
        return item

    async def retry(self, reference: Reference) -> Scheduled:
        """Have a job that has ended done again, as a new one; asked for twice, it is the same new one."""
        job = await self.find(reference)
        if not job.has_ended:
            raise BadValue(f"job {job.job_id} is {job.state}", hint="only a job that has ended is retried")
        return (await self.retry_all([job]))[0]

    async def retry_all(self, jobs: Sequence[Job]) -> list[Scheduled]:
        """The same for several that have ended, in this order.

        What one waited for is not part of the new one; but if that is retried too, here or before, the new
        one waits for it.
        """
        manifests = [_again(job) for job in jobs]
        retries = {job.job_id: each.content_id for job, each in zip(jobs, manifests, strict=True)}
        awaited = [_predecessors(job) for job in jobs]
        retries |= await self._retries({name for names in awaited for name in names} - retries.keys())
        items = []
        for manifest, names in zip(manifests, awaited, strict=True):
            item = self.item(manifest)
            if after := [(retries[name], when) for name, when in names.items() if name in retries]:
                item["after"] = after
            items.append(item)
        began = tracing.began()
        scheduled = await self._schedule(items)
        anew = zip(jobs, scheduled, strict=True)
        told = (tracing.about(job, **{"vox.job.retried_as": each.job_id}) for job, each in anew)
        tracing.tell_of_jobs("job retry", told, began)
        return scheduled

    async def _retries(self, job_ids: Iterable[str]) -> dict[str, str]:
        """The retries of these jobs that are there, and have not come to a bad end themselves."""
        found = await self.roster.find_all(job_ids, fresh=True)
        wrong = {job_id: job for job_id, job in found.items() if job.state in GONE_WRONG}
        retries = {job_id: _again(job).content_id for job_id, job in wrong.items()}
        there = await self.roster.standing(retries.values())
        return {
            old: new for old, new in retries.items() if new in there and there[new].state not in GONE_WRONG
        }

    # --- ending ----------------------------------------------------------------------------------

    async def abort(self, *references: Reference, reason: str = "aborted") -> list[str]:
        """End jobs that have not ended; the ids of those that had not."""
        found = [each if isinstance(each, Job) else await self.find(each) for each in references]
        if not found:
            return []
        script = self.moves.abort([{"job_id": job.job_id} for job in found], reason)
        return await self._moved("job abort", script)

    async def give_back(
        self, reference: Reference, *, delay: timedelta = timedelta(0), reason: str = "given back by hand"
    ) -> Job:
        """Have a job that somebody works on go back to those that wait; whoever has it stops."""
        if not timedelta(0) <= delay <= LONGEST_DELAY:
            raise BadValue(f"{delay} is no time to wait", hint=f"at most {LONGEST_DELAY.days} days")
        job = await self.find(reference)
        if job.state not in HELD:
            raise IllegalTransition(IllegalTransition.code, statement=0)
        item = {
            "job_id": job.job_id,
            "claim_token": job.claim_token,
            "not_before_ms": self.clock.now_ms + round(delay.total_seconds() * 1_000),
            "reason": reason,
        }
        began = tracing.began()
        await self._write(self.moves.give_back([item]))
        tracing.tell_of_jobs("job yield", [tracing.about(job)], began)
        return job

    async def expire(self, jobs: Sequence[Job]) -> list[str]:
        """Take back those of the jobs whose lease has run out; their ids. Anyone may."""
        items = [{"job_id": job.job_id, "claim_token": job.claim_token} for job in jobs]
        taken = await self._moved("job expire", self.moves.expire(items)) if items else []
        self.expired += len(taken)
        return taken

    # --- looking ---------------------------------------------------------------------------------

    async def find(self, reference: Reference) -> Job:
        """The job as it stands at the database."""
        return await self.roster.find(_name(reference), fresh=True)

    async def watch(self, reference: Reference) -> AsyncGenerator[Job, None]:
        """The job now, and again whenever it has moved, until it has ended."""
        name, last = _name(reference), None
        while True:
            seen = self._store.change_count
            with suppress(DatabaseUnavailable):  # it goes on when the database is back
                job = await self.roster.find(name, fresh=last is None)
                name = job.job_id
                if job != last:
                    last = job
                    yield job
                if job.has_ended:
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._store.is_in_touch else _AGAIN_S):
                    await self._store.changed(seen)

    async def wait(self, reference: Reference, *, timeout: float | None = None) -> Job:
        """Wait until the job has ended; `TimeoutError` if it has not in time."""
        async with asyncio.timeout(timeout):
            async with aclosing(self.watch(reference)) as states:
                job = await anext(states)
            while not job.has_ended:
                await self._endings.wait_until_ended(job.job_id)
                with suppress(DatabaseUnavailable):  # it goes on when the database is back
                    job = await self.roster.find(job.job_id)
            return job

    async def _moved(self, name: str, script: Script) -> list[str]:
        began = tracing.began()
        outcome = await self._store.write(script)
        moved: list[str] = orjson.loads(outcome.rows[0]["moved"])
        tracing.tell_of_jobs(name, ((job_id, {}) for job_id in moved), began)
        return moved

    async def _write(self, script: Script) -> None:
        try:
            await self._store.write(script)
        except Refused as refused:
            if refused.reason not in _REFUSALS:
                raise
            message, hint = _REFUSALS[refused.reason]
            raise BadValue(message, hint=hint) from None


def _again(job: Job) -> Manifest:
    """The manifest of a job that is to be done again."""
    options = {
        "after": None,
        "retry_of": job.job_id,
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "backoff": timedelta(milliseconds=job.backoff_ms),
    }
    if job.lease_ms is not None:
        options["lease"] = timedelta(milliseconds=job.lease_ms)
    return Manifest.of_core(job.core).model_copy(update=options)


def _predecessors(job: Job) -> dict[str, str]:
    """The jobs that a job waited for, and for what of them."""
    after = Manifest.of_core(job.core).after or ()
    return {each.job: each.when.value for each in after if each.job is not None}


def _name(reference: Reference) -> str:
    return reference if isinstance(reference, str) else reference.job_id


def _written(each: Reference | Mapping[str, str]) -> str | Mapping[str, str]:
    return each if isinstance(each, str | Mapping) else each.job_id


def _awaited(after: After) -> tuple[str, str]:
    return (after.op, "op") if after.op is not None else (str(after.job), after.when.value)
