"""The worker: claims jobs, runs their handlers, renews their leases and completes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import orjson

from vox_mesh.errors import (
    AWAY,
    BadValue,
    DatabaseUnavailable,
    MeshError,
    StaleIncarnation,
    StoreClosed,
)
from vox_mesh.heartbeat.presence import Presence
from vox_mesh.jobs.exec.policy import ExecPolicy
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.proof.artifacts import Artifacts
from vox_mesh.jobs.worker.attempt import Work, attempt, run_handler, run_job_command
from vox_mesh.jobs.worker.capacity import Capacity
from vox_mesh.jobs.worker.choosing import Chooser
from vox_mesh.jobs.worker.claiming import REST_S, Claimed, JobClaimer
from vox_mesh.jobs.worker.completing import Ended, Finisher
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.jobs.worker.handlers import F, Handler, HandlerSet
from vox_mesh.jobs.worker.leases import Leases
from vox_mesh.jobs.worker.limits import WorkerLimits
from vox_mesh.jobs.worker.stats import WorkerStats
from vox_mesh.model.jobs.records import DEFAULT_LEASE_MS, EXEC, Job, JobState
from vox_mesh.observability.log_context import job_context, job_scope
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

DEFAULT_CONCURRENCY: Final = 8
MAX_CONCURRENCY: Final = 1_000

_MAX_CLAIM: Final = 100
_MIN_WINDOW: Final = 16
_MAX_WINDOW: Final = 512  # ready jobs read per look
_RETRY_DELAY_S: Final = 1.0
_STOP_GRACE_S: Final = 5.0
_SETTLE_S: Final = 2.0
_IDLE_PAUSE_FACTOR: Final = 4  # pause after a look that claimed nothing, as a multiple of its duration
_GATHER_FACTOR: Final = 2  # wait for more free capacity after a claim, as a multiple of its duration
_MAX_PAUSE_S: Final = 0.03


class Worker:
    """Runs jobs with bounded concurrency: `async with mesh.worker.running()`."""

    def __init__(
        self,
        store: Store,
        jobs: Jobs,
        chooser: Chooser,
        claimer: JobClaimer,
        leases: Leases,
        finisher: Finisher,
        artifacts: Artifacts,
        presence: Presence,
        beat: Callable[[], Any],
        policy: ExecPolicy | None,
        limits: WorkerLimits,
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._chooser = chooser
        self._claimer = claimer
        self._leases = leases
        self._finisher = finisher
        self._artifacts = artifacts
        self._presence = presence
        self._beat = beat
        self._allowed = policy
        self._policy = policy
        self._limits = limits
        self.handlers = HandlerSet()
        self.stats = WorkerStats()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._lingering: dict[str, asyncio.Future[Any]] = {}  # thread calls that outlast their attempts
        self._capacity = Capacity(self.handlers, presence.activity)
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._may_have_predecessor = True  # held jobs not running here are of the previous incarnation
        leases.lost = self._lose

    # --- handlers --------------------------------------------------------------------------------

    def handles(
        self, pattern: str, *, concurrency: int | None = None, lease: float | None = None
    ) -> Callable[[F], F]:
        """Register a handler for the kinds of a pattern: `@mesh.worker.handles("cortex.extract.*")`."""
        return self.handlers.handles(pattern, concurrency=concurrency, lease=lease)

    @property
    def kinds(self) -> list[str]:
        """Return the kind patterns that this worker handles."""
        return self.handlers.patterns + ([EXEC] if self._policy is not None else [])

    # --- lifecycle -------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Return whether the worker is started."""
        return bool(self._tasks)

    @property
    def in_hand(self) -> int:
        """Return the number of running jobs."""
        return len(self._running)

    @property
    def places(self) -> int:
        """Return the maximum number of concurrent jobs, 0 while the worker is stopped."""
        return self._capacity.total

    @property
    def stale_claims(self) -> int:
        """Return the number of renewals and completions rejected because the claim was over."""
        return self._leases.stale + self._finisher.stale

    @property
    def claims_sent(self) -> int:
        """Return the number of claim requests sent; one may claim several jobs."""
        return self._claimer.sent

    @asynccontextmanager
    async def running(
        self,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        kinds: Iterable[str] = (),
        grace: float = _STOP_GRACE_S,
    ) -> AsyncIterator[None]:
        """Run jobs until the end of the block, then drain: release jobs unfinished after `grace` seconds."""
        await self.start(concurrency=concurrency, kinds=kinds)
        try:
            yield
        finally:
            await self.stop(grace)

    async def start(self, *, concurrency: int = DEFAULT_CONCURRENCY, kinds: Iterable[str] = ()) -> None:
        """Start claiming jobs of `kinds`, or of every kind that has a handler."""
        if self.is_running:
            raise BadValue("the worker runs already")
        if not 1 <= concurrency <= MAX_CONCURRENCY:
            raise BadValue(f"{concurrency} jobs at a time?", hint=f"from 1 to {MAX_CONCURRENCY}")
        wanted = list(kinds)
        self._policy = self._allowed if not wanted or EXEC in wanted else None
        if wanted:
            self.handlers.only(each for each in wanted if each != EXEC or self._policy is None)
        if not self.kinds:
            raise BadValue(
                "the worker has nothing to work with",
                hint="give it handlers, or let it run commands (--exec)",
            )
        self._capacity.total = concurrency
        self._finisher.timeout_s = None
        try:
            await self._artifacts.sweep()
            await self._announce()
            # Read after the announcement: of workers that start together, later ones see earlier ones.
            with suppress(DatabaseUnavailable):
                await self._chooser.look_around()
        except BaseException:
            self._capacity.total = 0
            self._update_activity()
            raise
        listening = self._store.faults.keep_running("worker-ear", self._listen, fatal=(StoreClosed,))
        self._tasks = [
            asyncio.create_task(self._claim_jobs(), name="vox-mesh-worker"),
            asyncio.create_task(listening, name="vox-mesh-worker-ear"),
            asyncio.create_task(self._leases.run(), name="vox-mesh-leases"),
        ]

    async def broken(self) -> None:
        """Wait until a task of the worker ends without `stop()`; raise the task's exception."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    def fault(self, patience_s: float) -> str:
        """Return why the worker claims no jobs, or an empty string if it does."""
        if not self.is_running or any(task.done() for task in self._tasks):
            return "it does not run"
        if self._capacity.free <= 0:
            return ""  # at capacity
        consuming_ms = self._presence.activity.consuming_ms
        if consuming_ms is None:
            return "it has not looked for jobs yet"
        silent_s = (self._jobs.clock.now_ms - consuming_ms) / 1_000
        return f"it has not looked for jobs for {silent_s:.0f} s" if silent_s > patience_s else ""

    async def idle(self) -> None:
        """Wait until no unfinished job of this worker's kinds is left."""
        async for turn in self._store.changes(interval_s=_RETRY_DELAY_S):
            with turn.retry_if_unavailable():
                kinds, _, _, places, _ = await self._jobs.roster.situation()
                is_busy = self._running or self._claimer.is_unsure or places.get(self._presence.node_id)
                if not is_busy and not any(self._handles(kind) for kind in kinds):
                    return

    def look_again(self) -> None:
        """Reconcile claims and leases with the database, for example after it was rolled back."""
        self._claimer.is_unsure = True
        self._leases.verify_soon()
        self._wake.set()

    async def _announce(self) -> None:
        """Announce kinds, capacity and load; if the database is unavailable, the next heartbeat does."""
        self._update_activity()
        try:
            await self._beat()
        except (StaleIncarnation, StoreClosed):
            raise
        except MeshError as error:
            _log.warning("worker announcement failed: %s", error.line)

    def _update_activity(self) -> None:
        """Set the activity that the next heartbeat reports."""
        activity, capacity = self._presence.activity, self._capacity
        activity.kinds = self.kinds if capacity.total else []
        activity.capacity, activity.load = capacity.total, capacity.taken

    async def stop(self, grace: float = _STOP_GRACE_S) -> None:
        """Drain the worker: claim no more, and release jobs that are unfinished after `grace` seconds."""
        if not self.is_running:
            return
        claiming, listening, renewing = self._tasks
        self._capacity.total = 0
        self._wake.set()
        try:
            # Let a claim in flight get its answer.
            await asyncio.wait([claiming], timeout=_SETTLE_S)
            await _cancel_all(claiming, listening)
            if self._running:
                await asyncio.wait(self._running.values(), timeout=grace)
            self._finisher.timeout_s = _SETTLE_S / 2
            for job_id, task in list(self._running.items()):
                self._leases.cancelled.add(job_id)
                task.cancel()
            with suppress(TimeoutError, MeshError):
                async with asyncio.timeout(_SETTLE_S):
                    if self._running:
                        await asyncio.wait(self._running.values())
                    await self._finisher.close()
                    if self._claimer.is_unsure and not self._may_have_predecessor:
                        await self._release_orphans()
        finally:
            await _cancel_all(claiming, listening, renewing, *self._running.values())
            self._tasks = []
        if self._store.is_spooling:
            return  # the announcement would only wait for its timeout
        with suppress(MeshError):  # otherwise the other nodes notice the missing heartbeats
            await self._announce()

    # --- claiming --------------------------------------------------------------------------------

    async def _listen(self) -> None:
        seen = self._store.change_count
        while True:
            seen = await self._store.changed(seen)
            self._wake.set()
            self._leases.verify_soon()

    async def _claim_jobs(self) -> None:
        while self._capacity.total:
            self._wake.clear()
            pause: float | None = _RETRY_DELAY_S
            began = self._leases.now
            try:
                pause = await self._look()
            except (StaleIncarnation, StoreClosed) as error:
                _log.error("worker stopped claiming: %s", error.line)
                raise
            except MeshError as error:
                self._claimer.is_unsure = True
                _log.warning("worker cannot claim: %s", error.line)
            except Exception as error:
                self._claimer.is_unsure = True
                self._store.faults.note("worker", error)
            took = self._leases.now - began
            if pause == 0.0:
                await self._gather_capacity(min(_GATHER_FACTOR * took, _MAX_PAUSE_S))
                continue
            # A busy mesh commits all the time: do not look after every commit.
            pause_until = self._leases.now + min(_IDLE_PAUSE_FACTOR * took, _MAX_PAUSE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            await asyncio.sleep(max(0.0, pause_until - self._leases.now))

    async def _gather_capacity(self, most_s: float) -> None:
        """Wait briefly for more free capacity while other nodes claim too: a small claim costs as much."""
        until = self._leases.now + most_s
        while self._chooser.count > 1 and not self._capacity.has_many_free and self._leases.now < until:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(until - self._leases.now):
                    await self._wake.wait()

    async def _look(self) -> float | None:
        """Claim the jobs that are this node's turn. Return the seconds to pause, `None` until a change."""
        if self._claimer.is_unsure and not self._store.is_spooling:  # the spool may hold completions
            await self._release_orphans()
        free = min(self._capacity.free, _MAX_CLAIM)
        if free <= 0:
            return None
        if not self._jobs.clock.can_author:
            return _RETRY_DELAY_S
        self._presence.consumed()
        kinds = [kind for kind in await self._chooser.look() if self._has_capacity(kind)]
        if not kinds:
            await self._chooser.look_around()  # now rather than when there are jobs to claim
            return None
        blocked = await self._limits.blocked_claims()
        kinds = [kind for kind in kinds if self._chooser.is_open(kind) and not blocked.is_all]
        unthrottled = [kind for kind in kinds if not self._claimer.is_throttled(kind)]
        window = min(max(free, _MIN_WINDOW) * self._chooser.count, _MAX_WINDOW)
        now_ms = self._jobs.clock.now_ms  # one time for both reads, so no job falls between them
        ready = await self._jobs.roster.claimable(unthrottled, window, at_ms=now_ms, but_of=blocked.accounts)
        jobs = [job for job in ready if job.job_id not in self._running and self._claimer.is_new(job)]
        is_deep = len(ready) == window
        take, again_ms = self._chooser.choose(jobs, self._capacity.total, free, is_deep=is_deep)
        if take := self._capacity.within_limits(take):
            current = await self._jobs.roster.still_claimable(take)
            if len(current) < len(take):
                self._chooser.invalidate_membership()
            if self._capacity.total:  # otherwise the worker was stopped meanwhile
                await self._claim(current)
            await self._chooser.look_around()
            return 0.0
        await self._chooser.look_around()
        if len(jobs) < len(ready) or len(unthrottled) < len(kinds):
            return REST_S
        if not is_deep:
            due_ms = await self._jobs.roster.next_due_ms(kinds, at_ms=now_ms)
            moments = (again_ms, due_ms, blocked.retry_at_ms)
            again_ms = min((each for each in moments if each is not None), default=None)
        return None if again_ms is None else max(0.0, (again_ms - self._jobs.clock.now_ms) / 1_000)

    def _handles(self, kind: str) -> bool:
        return self._policy is not None if kind == EXEC else self.handlers.of(kind) is not None

    def _has_capacity(self, kind: str) -> bool:
        handler = self.handlers.of(kind)
        return self._handles(kind) and (handler is None or self._capacity.free_of(handler) > 0)

    async def _claim(self, jobs: Sequence[Job]) -> None:
        groups: dict[int, list[Job]] = {}
        for job in jobs:
            groups.setdefault(self._lease_of(job), []).append(job)
        for lease_ms, group in groups.items():
            for claimed in await self._claimer.claim(group, lease_ms):
                self._begin(claimed)

    def _lease_of(self, job: Job) -> int:
        handler = self.handlers.of(job.kind)
        own = None if handler is None else handler.lease_ms
        usual = own or self._chooser.rules_of(job.kind).lease_ms or DEFAULT_LEASE_MS
        return self._leases.ms_to_boundary(job) or job.lease_ms or usual

    async def _release_orphans(self) -> None:
        """Release jobs that the database shows as claimed by this node but that do not run here.

        Either the previous incarnation held them, or the answer to a claim was lost. A job of the previous
        incarnation counts as failed, since it may have crashed it; its last attempt is left to its lease.
        """
        held = await self._jobs.roster.held_by(self._presence.node_id, fresh=True)
        ends = [self._end_orphan(job) for job in held if job.job_id not in self._running]
        await asyncio.gather(*(self._finisher.finish(each) for each in ends if each is not None))
        self._claimer.is_unsure = self._may_have_predecessor = False

    def _end_orphan(self, job: Job) -> Ended | None:
        if not self._may_have_predecessor:
            return Ended(job, JobState.PENDING, "its worker had no answer", delay_ms=job.backoff_ms)
        has_another = job.failures + 1 < job.max_attempts
        return Ended(job, JobState.FAILED, "its worker was gone") if has_another else None

    # --- running ---------------------------------------------------------------------------------

    def _begin(self, claimed: Claimed) -> None:
        self.stats.claimed += 1
        job = claimed.job
        self.stats.queued.observe(((job.started_ms or 0) - job.not_before_ms) / 1_000)
        self._leases.hold(*claimed)
        handler = self.handlers.of(job.kind)
        context, name = job_context(job), f"vox-mesh-job-{job.job_id[:8]}"
        task = asyncio.create_task(self._work(job, handler), name=name, context=context)
        self._running[job.job_id] = task
        self._capacity.take(handler)
        task.add_done_callback(partial(self._end, job, handler), context=context)

    def _end(self, job: Job, handler: Handler | None, task: asyncio.Task[None]) -> None:
        del self._running[job.job_id]
        self._leases.release(job)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("job task failed: job_id=%s", job.job_id, exc_info=error)
            self._claimer.is_unsure = True
        call = self._lingering.pop(job.job_id, None)
        if call is None:
            self._free_capacity(handler)
        else:  # a thread can't be stopped: it uses capacity until it ends
            call.add_done_callback(partial(self._free_capacity, handler))

    def _free_capacity(self, handler: Handler | None, call: asyncio.Future[Any] | None = None) -> None:
        if call is not None and not call.cancelled():
            call.exception()  # mark it as retrieved
        self._capacity.release(handler)
        self._wake.set()

    async def _work(self, job: Job, handler: Handler | None) -> None:
        """Run one attempt and write its result. A job that is cancelled while still claimed is released."""
        began = self._leases.now
        try:
            ended = await self._attempt(job, handler)
        except asyncio.CancelledError:
            if job.job_id not in self._leases.cancelled:
                raise
            ended = Ended(job, JobState.PENDING, "its worker stopped", delay_ms=0)
        except AWAY as error:  # raised before the attempt; `attempt` handles the handler's own errors
            _log.warning("job not started: job_id=%s: %s", job.job_id, error.line)
            ended = Ended(job, JobState.PENDING, f"not begun: {error.line}", delay_ms=job.backoff_ms)
        except Exception as error:
            _log.exception("job not started: job_id=%s", job.job_id)
            ended = Ended(job, JobState.FAILED, f"a fault of its worker: {error!r}")
        finally:
            self.stats.ran.observe(self._leases.now - began)
        self._leases.mark_ending(job)
        written = await self._finisher.finish(ended)
        if written is None:
            self.stats.refused += 1
        elif written.state is JobState.SUCCEEDED:
            self.stats.succeeded += 1
        elif written.state is JobState.FAILED:
            self.stats.failed += 1
        else:
            self.stats.given_back += 1
        self._presence.progressed()

    async def _attempt(self, job: Job, handler: Handler | None) -> Ended:
        resumed = None
        if job.attempts > 1:
            checkpoint = (await self._jobs.notes.of(job.job_id, fresh=True)).checkpoint
            resumed = None if checkpoint is None else orjson.loads(checkpoint)
        context = JobContext(job, self._store, self._jobs.clock, self._artifacts, resumed)
        work: Work
        is_stopped = partial(self._is_stopped, job)
        if job.kind == EXEC and self._policy is not None:
            work, timeout_s = partial(run_job_command, artifacts=self._artifacts, policy=self._policy), None
        else:
            assert handler is not None
            work, timeout_s = partial(run_handler, handler=handler), context.core.get("timeout")
        try:
            context.limits = limits = await self._limits.of(context)
            if limits is None:
                return await attempt(context, work, self._jobs.clock, timeout_s, is_stopped)
            work = partial(limits.within, work)
            return await limits.enforce(attempt(context, work, self._jobs.clock, timeout_s, is_stopped))
        finally:
            context.cancel()
            if context.thread is not None and not context.thread.done():
                self._lingering[job.job_id] = context.thread
            await context.close()

    def _is_stopped(self, job: Job) -> bool:
        """Return whether the worker stops the attempt, or the process ends all its tasks."""
        is_claimed = job.job_id not in self._leases.cancelled and self._leases.holds(job)
        return not is_claimed or any(task.cancelling() for task in self._tasks[-1:])

    def _lose(self, job: Job) -> None:
        """Stop a job whose claim is lost."""
        task = self._running.get(job.job_id)
        if task is not None:
            with job_scope(job):
                _log.warning("job stopped: job_id=%s, claim lost", job.job_id)
            task.cancel()


async def _cancel_all(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks and wait a bounded time for them; log the ones that ignore it."""
    for task in tasks:
        task.cancel()
    if tasks:
        _, pending = await asyncio.wait(tasks, timeout=_SETTLE_S)
        for task in pending:
            _log.error("task ignored its cancellation: task=%s", task.get_name())
