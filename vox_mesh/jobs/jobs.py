"""Jobs: schedule, find, watch, abort, yield and retry them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, Final

import orjson

from vox_mesh.errors import BadValue, DatabaseUnavailable, IllegalTransition, OutcomeUnknown, Refused
from vox_mesh.jobs.authorship import JobAuthorship
from vox_mesh.jobs.permitted import PermittedJobs, ended_item, expired_item
from vox_mesh.jobs.predecessor_results import PredecessorResults
from vox_mesh.jobs.progress import Notes
from vox_mesh.jobs.queries import JobQueries
from vox_mesh.jobs.questions import JobQuestions
from vox_mesh.jobs.results import ReadArtifact, read_result
from vox_mesh.jobs.spooled import SpooledJobs
from vox_mesh.jobs.steps.attempt_signatures import AttemptSignatures
from vox_mesh.jobs.steps.early_wakes import EarlyWakes
from vox_mesh.jobs.steps.job_checkpoints import JobCheckpoints
from vox_mesh.jobs.steps.job_forks import JobForks
from vox_mesh.jobs.steps.job_steps import JobSteps
from vox_mesh.jobs.transitions import SQL, JobTransitions
from vox_mesh.model.base.canonical import canonical, embedded, text_id
from vox_mesh.model.base.durations import Duration, checked_seconds, seconds_or_none
from vox_mesh.model.jobs.manifest import After, Manifest, external_references, sort_by_dependency
from vox_mesh.model.jobs.manifest_fields import MAX_AFTER
from vox_mesh.model.jobs.records import (
    DEFAULT_ATTEMPTS,
    DEFAULT_BACKOFF_MS,
    DEFAULT_PRIORITY,
    HELD,
    UNSUCCESSFUL,
    HasJobId,
    Job,
)
from vox_mesh.model.jobs.records import Scheduled as Scheduled
from vox_mesh.model.jobs.retry import retry_manifest
from vox_mesh.model.rhythm.tempo import Until
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.nodes import Features, Nodes
from vox_mesh.observability import tracing
from vox_mesh.observability.deprecation import warn_renamed
from vox_mesh.oplog.grants.permit import MESH_PERMIT, Permit
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.oplog.roles import Roles
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.script import Answer, Outcome, Script, Statement, new_key
from vox_mesh.store.slices import in_slices
from vox_mesh.store.store import Store
from vox_mesh.store.watch.end_watch import EndWatch

_log = logging.getLogger(__name__)

MAX_AT_ONCE: Final = 500
"""The maximum number of jobs in one op."""

MAX_EDGES: Final = MAX_AFTER
"""The maximum number of predecessors that the jobs of one op name, together."""

_MAX_DELAY_S: Final = 365 * 86_400
_SEED_BYTES: Final = 16
_MAX_NAMED: Final = 10

_REFUSALS: Final = {
    "ulid_taken": ("the ULID is taken by another job", "omit `ulid`, or choose another"),
    "unknown_predecessor": ("a predecessor does not exist", "schedule it first, or pass `defer`"),
    "predecessor_failed": (
        "a predecessor has failed, was aborted or was refused",
        "retry it and name the new job, or wait for its end with `when: end`",
    ),
}


Reference = str | HasJobId
"""A job, its id, a prefix of its id, or its ULID."""


class Jobs:
    """Schedules and manages jobs. Workers run them."""

    def __init__(
        self,
        store: Store,
        writer: OpLogWriter,
        clock: MeshClock,
        nodes: Nodes,
        random_bytes: Callable[[int], bytes],
        trusted_keys: TrustedKeys,
        roles: Roles,
        monotonic: Callable[[], float],
        read_artifact: ReadArtifact,
        read_phases: Callable[[], Awaitable[Collection[str]]],
        permits: Permits,
    ) -> None:
        self._store = store
        self._read_artifact = read_artifact
        self._read_phases = read_phases
        self._nodes = nodes
        self.random_bytes = random_bytes
        self.clock = clock
        self.trusted_keys = trusted_keys
        self.queries = JobQueries(store, clock)
        self.authorship = JobAuthorship(store, self.queries, trusted_keys, roles, monotonic)
        self.predecessor_results = PredecessorResults(self.queries, self.authorship, read_artifact)
        self.transitions = JobTransitions(store, writer, clock)
        self.permits = permits
        self.permitted = PermittedJobs(writer, self.transitions, permits, self.authorship)
        self.notes = Notes(store, self.queries)
        signatures = AttemptSignatures(store, trusted_keys, lambda: writer.identity.key)
        self.checkpoints = JobCheckpoints(store, signatures)
        self.steps = JobSteps(store, signatures)
        features, ends = Features(store, nodes, monotonic), self.authorship.ends
        self.forks = JobForks(self.steps, self.find, self.schedule_all, features)
        self.wakes = EarlyWakes(store, self.steps, self.find, self.permitted, ends, clock, features)
        self.questions = JobQuestions(
            store, ends, trusted_keys, clock, lambda: writer.identity.node_id, permits
        )
        self.spooled = SpooledJobs(store, self.queries)
        self._endings = EndWatch(store, self.queries.still_open)
        self.expired = 0
        """The number of jobs this process returned to the queue because their leases had expired."""

    # --- scheduling ------------------------------------------------------------------------------

    async def schedule(
        self,
        kind: str,
        payload: Any = None,
        *,
        after: Iterable[Reference | Mapping[str, str]] = (),
        priority: int = DEFAULT_PRIORITY,
        run_at: datetime | None = None,
        at: str | None = None,
        during: str | None = None,
        max_attempts: int = DEFAULT_ATTEMPTS,
        max_interruptions: int | None = None,
        backoff: Duration | None = None,
        lease: Duration | Until | None = None,
        timeout: Duration | None = None,
        score: Mapping[str, Any] | None = None,
        budget: Mapping[str, Any] | None = None,
        tags: Iterable[str] = (),
        ulid: str | None = None,
        new: bool = True,
        defer: bool = False,
    ) -> Scheduled:
        """Schedule a job for a handler, as `schedule_all` does.

        `at="downbeat"`: it starts when the next bar has begun. `during`: the phase of a bar in which it
        starts. `tags`: what a worker or agent must have to get it.
        """
        fields = {
            "priority": priority,
            "run_at": run_at,
            "at": at,
            "during": during,
            "max_attempts": max_attempts,
            "max_interruptions": max_interruptions,
            "backoff": backoff,
            "lease": lease,
            "timeout": timeout,
            "score": score if score is None else dict(score),
            "budget": budget if budget is None else dict(budget),
            "tags": [*tags] or None,
            "ulid": ulid,
            "after": [_to_after(each) for each in after] or None,
            "payload": payload,
        }
        given = {name: value for name, value in fields.items() if value is not None}
        (scheduled,) = await self.schedule_all([Manifest.of(kind=kind, **given)], new=new, defer=defer)
        return scheduled

    async def schedule_all(
        self, manifests: Sequence[Manifest], *, new: bool = True, spool: bool = True, defer: bool = False
    ) -> list[Scheduled]:
        """Schedule jobs atomically. They may name each other in `after`, by their ULIDs.

        The result is in dependency order: predecessors first.
        With `new=False`, a manifest that was scheduled before is the same job. While the database is
        unreachable they are spooled, and scheduled once and in order when it is back; with `spool=False`,
        `DatabaseUnavailable` is raised. With `defer`, `after` may name jobs by full ids that are not
        scheduled yet. Raises `BadValue` if a job is to start in a phase that the bars of the mesh don't have.
        """
        items = await self.items_for(manifests, new=new)
        return await self.schedule_items(items, new=new, spool=spool, defer=defer)

    async def items_for(self, manifests: Sequence[Manifest], *, new: bool = True) -> list[dict[str, Any]]:
        """Return the entries of jobs in the op that schedules them, predecessors first."""
        await self.refuse_unknown_phases(manifests)
        if any(each.after for each in manifests):
            _refuse_too_many(len(manifests), sum(len(each.after or ()) for each in manifests))
            if new:  # the nonce is part of the id, and `after` refers to ids
                manifests = [each.model_copy(update={"nonce": each.nonce or new_key()}) for each in manifests]
            manifests = await self._resolve_after(manifests)
        return await in_slices(
            self.item(each, new_key() if new and each.nonce is None else None) for each in manifests
        )

    async def schedule_items(
        self, items: Sequence[Any], *, new: bool = False, spool: bool = True, defer: bool = False
    ) -> list[Scheduled]:
        """Schedule jobs as `schedule_all` does, given as an op has them: with their ids and seeds."""
        if not items:
            return []
        if not (spool and self.spooled.is_expected):
            await self._nodes.now_ms()  # the local clock may be far off
        self.clock.refuse_if_off()
        _refuse_too_many(len(items), sum(len(item.get("after", ())) for item in items))
        began, by_id = tracing.began(), {item["job_id"]: item for item in items}
        wanted = [*by_id.values()]
        script, is_spooled = await self.permitted.schedule(wanted, self._write, spool=spool, defer=defer)
        self.authorship.remember(by_id.values(), script.key)
        spans = ((job_id, {"vox.job.kind": item["kind"]}) for job_id, item in by_id.items())
        tracing.record_jobs("job schedule", spans, began)
        if new or is_spooled:
            return [
                Scheduled(item["job_id"], item["ulid"], item["kind"], spooled=is_spooled) for item in items
            ]
        try:
            found = await self.queries.standing(by_id)
        except DatabaseUnavailable as error:  # the jobs may be scheduled
            raise OutcomeUnknown(f"the scheduled jobs can't be read: {error}", key=script.key) from error
        if len(found) < len(by_id):
            raise OutcomeUnknown("scheduled jobs are missing: the database was rolled back", key=script.key)
        jobs = [(item, found[item["job_id"]]) for item in items]
        # The seed tells whether this call scheduled the job: a manifest may fix its ULID.
        return [Scheduled(job.job_id, job.ulid, job.kind, job.seed == item["seed"]) for item, job in jobs]

    async def refuse_unknown_phases(self, manifests: Iterable[Manifest]) -> None:
        """Raise `BadValue` if a job is to start in a phase that the bars of the mesh don't have."""
        phases = {each.during for each in manifests if each.during is not None}
        if not phases:
            return
        try:
            known = await self._read_phases()
        except DatabaseUnavailable:
            return  # the jobs are spooled, and their workers know the phases
        for phase in sorted(phases.difference(known)):
            raise BadValue(
                f"during must be a phase of the mesh's bars, got {phase!r}",
                hint=f"the phases are {', '.join(known)}",
            )

    async def check_clock(self) -> None:
        """Read the time of the mesh: the local clock may be far off. Raises if it is too far off to write."""
        await self._nodes.now_ms()
        self.clock.refuse_if_off()

    async def _resolve_after(self, manifests: Sequence[Manifest]) -> list[Manifest]:
        """Replace references in `after` by job ids, and return the manifests in dependency order."""
        known = await self.spooled.job_ids(external_references(manifests))
        resolved = await in_slices(each.with_after(known) for each in manifests)
        return await in_slices(sort_by_dependency(resolved))

    def item(self, manifest: Manifest, nonce: str | None = None) -> dict[str, Any]:
        """Return the entry for a job in the op that schedules it; a nonce makes it a distinct job."""
        core = manifest.resolved_core()
        text = canonical(core if nonce is None else {**core, "nonce": nonce}, max_depth=None)
        item: dict[str, Any] = {
            "job_id": text_id(text),
            "ulid": manifest.ulid or new_key(),
            "kind": manifest.job_kind,
            "manifest": embedded(text),
            "seed": self.random_bytes(_SEED_BYTES).hex(),
            "priority": DEFAULT_PRIORITY if manifest.priority is None else manifest.priority,
            "max_attempts": manifest.attempts,
            "backoff_ms": DEFAULT_BACKOFF_MS if manifest.backoff is None else manifest.backoff_ms,
        }
        if manifest.lease is not None and (lease_ms := manifest.lease_ms) is not None:
            item["lease_ms"] = lease_ms
        if manifest.max_interruptions is not None:
            item["max_interruptions"] = manifest.max_interruptions
        if manifest.run_at is not None:
            item["run_at_ms"] = manifest.run_at_ms
        if (binding := manifest.binding) is not None:
            item["binding"] = binding
        if manifest.after:
            item["after"] = [_to_predecessor(each) for each in manifest.after]
        return item

    async def retry(self, reference: Reference) -> Scheduled:
        """Schedule a terminal job again as a new job. Idempotent: a second call returns the same new job."""
        job = await self.find(reference)
        if not job.has_ended:
            raise BadValue(f"job {job.job_id} can't be retried: it is {job.state}", hint="wait for its end")
        return (await self.retry_all([job]))[0]

    async def retry_all(self, jobs: Sequence[Job]) -> list[Scheduled]:
        """Schedule terminal jobs again as new jobs, in this order.

        A new job waits for a predecessor of the old one only if that one is retried too, now or before.
        """
        manifests = [retry_manifest(job) for job in jobs]
        retries = {job.job_id: each.content_id for job, each in zip(jobs, manifests, strict=True)}
        predecessors = [await self.predecessor_results.conditions_named_by(job) for job in jobs]
        retries |= await self._retries({name for names in predecessors for name in names}, retries)
        items = []
        for manifest, names in zip(manifests, predecessors, strict=True):
            item = self.item(manifest)
            if after := [(retries[name], when) for name, when in names.items() if name in retries]:
                item["after"] = after
            items.append(item)
        began = tracing.began()
        scheduled = await self.schedule_items(items)
        pairs = zip(jobs, scheduled, strict=True)
        spans = (tracing.about(job, **{"vox.job.retried_as": each.job_id}) for job, each in pairs)
        tracing.record_jobs("job retry", spans, began)
        return scheduled

    async def _retries(self, job_ids: Iterable[str], planned: Mapping[str, str]) -> dict[str, str]:
        """Return the last retries of these jobs, by old id: planned ones, and others that have not failed."""
        retries: dict[str, str] = {}
        last = {job_id: job_id for job_id in job_ids}
        while last:
            pages = self.queries.pages(last.values(), fresh=True)
            found = {job.job_id: job async for page in pages for job in page.values()}
            retries |= {old: planned[job_id] for old, job_id in last.items() if job_id in planned}
            later: dict[str, str] = {}
            for old, job_id in last.items():
                job = found.get(job_id)
                if job is None or old in retries:
                    continue
                if job.state in UNSUCCESSFUL:
                    later[old] = retry_manifest(job).content_id
                elif job_id != old:
                    retries[old] = job_id
            last = later
        return retries

    # --- ending ----------------------------------------------------------------------------------

    async def abort(self, *references: Reference, reason: str = "aborted") -> list[str]:
        """Abort jobs and return the ids of the ones that were not terminal yet."""
        found = [each if isinstance(each, Job) else await self.find(each) for each in references]
        if not found:
            return []
        return await self.permitted.end(found, lambda permit: self._abort(found, reason, permit))

    async def abort_for_mesh(self, job_ids: Iterable[str], reason: str) -> list[str]:
        """Abort jobs as `abort` does, for the mesh itself: no agent acts."""
        return await self._abort([await self.find(each) for each in job_ids], reason, MESH_PERMIT)

    async def _abort(self, jobs: Sequence[Job], reason: str, permit: Permit) -> list[str]:
        items = [ended_item(job, permit) for job in jobs]
        script = self.transitions.abort(items, reason, [job.last_op for job in jobs], permit)
        return await self._apply("job abort", script)

    async def yield_job(
        self, reference: Reference, *, delay: Duration = 0.0, reason: str = "given back by hand"
    ) -> Job:
        """Return a running job to the queue and stop its worker.

        Raises `IllegalTransition` if the job is not claimed or running.
        """
        delay_s = checked_seconds("delay", delay, 0, _MAX_DELAY_S, hint="the longest delay is 365d")
        return await self.yield_until(reference, self.clock.now_ms + round(delay_s * 1_000), reason)

    async def yield_until(self, reference: Reference, not_before_ms: int, reason: str) -> Job:
        """Return a job to the queue as `yield_job` does, until a time."""
        job = await self.find(reference)
        if job.state not in HELD:
            raise IllegalTransition(IllegalTransition.code, statement=0)
        item = {"claim_token": job.claim_token, "not_before_ms": not_before_ms, "reason": reason}
        began = tracing.began()

        def write(permit: Permit) -> Awaitable[Outcome]:
            items = [ended_item(job, permit) | item]
            return self._write(self.transitions.yield_jobs(items, causes=[job.last_op], permit=permit))

        await self.permitted.end([job], write)
        tracing.record_jobs("job yield", [tracing.about(job)], began)
        return job

    async def expire(self, jobs: Sequence[Job]) -> list[str]:
        """Return jobs with expired leases to the queue, and return their ids. Any node may call this."""
        items = [expired_item(job) for job in jobs]
        taken = (
            await self._apply("job expire", self.transitions.expire(items, [job.last_op for job in jobs]))
            if items
            else []
        )
        self.expired += len(taken)
        return taken

    async def quarantine(self, ids: Sequence[int]) -> None:
        """End the jobs with these row ids that no node can claim or expire: only hostile rows are so.

        No op does it: the log, from which `job rebuild` restores a row, says nothing about their values.
        """
        values = (*self._store.mesh_id, orjson.dumps(list(ids)).decode())
        count = Answer(SQL["quarantined"], columns=("count",))
        outcome = await self._store.write(Script(Statement(SQL["quarantine"], values), answer=count))
        if outcome.rows.value:
            _log.error("unreadable jobs ended: count=%d ids=%s", outcome.rows.value, ids[:_MAX_NAMED])

    # --- reading ---------------------------------------------------------------------------------

    async def find(self, reference: Reference) -> Job:
        """Return the job, read from the database and not from the replica."""
        return await self.queries.find(_name(reference), fresh=True)

    async def watch(self, reference: Reference) -> AsyncGenerator[Job, None]:
        """Yield the job now and after each change, until it is terminal."""
        name, last = _name(reference), None
        async for turn in self._store.changes():
            with turn.retry_if_unavailable():
                job = await self.queries.find(name, fresh=last is None)
                name = job.job_id
                if job != last:
                    last = job
                    yield job
                if job.has_ended:
                    return

    async def wait(self, reference: Reference, *, timeout: Duration | None = None) -> Job:
        """Wait until the job is terminal. Raises `TimeoutError` after `timeout` seconds."""
        async with asyncio.timeout(seconds_or_none("timeout", timeout)):
            async with aclosing(self.watch(reference)) as states:
                job = await anext(states)
            while not job.has_ended:
                await self._endings.wait_until_ended(job.job_id)
                with suppress(DatabaseUnavailable):  # continues when the database is back
                    job = await self.queries.find(job.job_id)
            return job

    async def result(self, reference: Reference, *, timeout: Duration | None = None) -> Any:
        """Wait until the job is terminal, and return what its handler returned, or what its command printed.

        Raises `JobNotSucceeded` if it did not succeed, and `TimeoutError` after `timeout` seconds.
        """
        return await self.result_of(await self.wait(reference, timeout=timeout))

    async def result_of(self, job: Job) -> Any:
        """Return the result of a job that has ended. Raises `JobNotSucceeded` if it did not succeed."""
        return await read_result(job, self._read_artifact)

    # --- deprecated ------------------------------------------------------------------------------

    @property
    def roster(self) -> JobQueries:
        """Return `queries` under its old name, which is deprecated."""
        warn_renamed("jobs.roster", "jobs.queries")
        return self.queries

    async def give_back(
        self, reference: Reference, *, delay: Duration = 0.0, reason: str = "given back by hand"
    ) -> Job:
        """Call `yield_job` under its old name, which is deprecated."""
        warn_renamed("jobs.give_back", "jobs.yield_job")
        return await self.yield_job(reference, delay=delay, reason=reason)

    # --- writing ---------------------------------------------------------------------------------

    async def _apply(self, name: str, script: Script) -> list[str]:
        """Write a transition and return the ids of the jobs it changed."""
        began = tracing.began()
        outcome = await self._store.write(script)
        moved: list[str] = orjson.loads(outcome.rows[0]["moved"])
        tracing.record_jobs(name, ((job_id, {}) for job_id in moved), began)
        return moved

    async def _write(self, script: Script) -> Outcome:
        try:
            return await self._store.write(script)
        except Refused as refused:
            if refused.reason not in _REFUSALS:
                raise
            message, hint = _REFUSALS[refused.reason]
            raise BadValue(message, hint=hint) from None


def _refuse_too_many(jobs: int, edges: int) -> None:
    for name, count, most in (("jobs", jobs, MAX_AT_ONCE), ("predecessors", edges, MAX_EDGES)):
        if count > most:
            raise BadValue(
                f"{name} in one call must be at most {most}, got {count}", hint="schedule them in parts"
            )


def _name(reference: Reference) -> str:
    return reference if isinstance(reference, str) else reference.job_id


def _to_after(each: Reference | Mapping[str, str]) -> str | Mapping[str, str]:
    return each if isinstance(each, str | Mapping) else each.job_id


def _to_predecessor(after: After) -> tuple[str, str]:
    return (after.op, "op") if after.op is not None else (str(after.job), after.when.value)
