"""The worker: claims the jobs that are its turn, works on them, and keeps their leases."""

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
from vox_mesh.jobs.worker.attempt import Work, attempt, executed, handled
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

_MOST_AT_ONCE: Final = 100
_FEW: Final = 16
_WINDOW: Final = 512  # so many jobs are looked at, at the most
_AWAY_S: Final = 1.0
_STOP_S: Final = 5.0
_SETTLE_S: Final = 2.0
_CALM: Final = 4  # times as long as a look in vain took passes before the next
_GATHER: Final = 2  # times as long as a claim took, more places may become free before the next
_LONGEST_CALM_S: Final = 0.03


class Worker:
    """Works on jobs, up to so many at a time: `async with mesh.worker.running()`."""

    def __init__(
        self,
        store: Store,
        jobs: Jobs,
        chooser: Chooser,
        claiming: JobClaimer,
        leases: Leases,
        finisher: Finisher,
        artifacts: Artifacts,
        presence: Presence,
        beat: Callable[[], Any],
        policy: ExecPolicy | None,
        bounds: WorkerLimits,
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._chooser = chooser
        self._claiming = claiming
        self._leases = leases
        self._finisher = finisher
        self._artifacts = artifacts
        self._presence = presence
        self._beat = beat
        self._allowed = policy
        self._policy = policy
        self._bounds = bounds
        self.handlers = HandlerSet()
        self.stats = WorkerStats()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._lingering: dict[str, asyncio.Future[Any]] = {}  # calls in threads that outlast their attempts
        self._places = Capacity(self.handlers, presence.activity)
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_heir = True  # what we do not have in hand would be of an earlier process of this node
        leases.lost = self._lose

    # --- handlers --------------------------------------------------------------------------------

    def handles(
        self, pattern: str, *, concurrency: int | None = None, lease: float | None = None
    ) -> Callable[[F], F]:
        """Have a function work on the kinds of a pattern: `@mesh.worker.handles("cortex.extract.*")`."""
        return self.handlers.handles(pattern, concurrency=concurrency, lease=lease)

    @property
    def kinds(self) -> list[str]:
        """The kinds that this worker works on."""
        return self.handlers.patterns + ([EXEC] if self._policy is not None else [])

    # --- life ------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether it takes jobs."""
        return bool(self._tasks)

    @property
    def in_hand(self) -> int:
        """How many jobs it works on."""
        return len(self._running)

    @property
    def places(self) -> int:
        """How many jobs it works on at the most; none while it does not run."""
        return self._places.capacity

    @property
    def stale_claims(self) -> int:
        """How often it was told that a claim of its own is over, when it renewed it or told the job's end."""
        return self._leases.stale + self._finisher.stale

    @property
    def claims_sent(self) -> int:
        """How many claims it has sent, for one job or for many."""
        return self._claiming.sent

    @asynccontextmanager
    async def running(
        self,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        kinds: Iterable[str] = (),
        grace: float = _STOP_S,
    ) -> AsyncIterator[None]:
        """Take jobs until the end of the block; then finish, or give back, what is in hand."""
        await self.start(concurrency=concurrency, kinds=kinds)
        try:
            yield
        finally:
            await self.stop(grace)

    async def start(self, *, concurrency: int = DEFAULT_CONCURRENCY, kinds: Iterable[str] = ()) -> None:
        """Begin to take jobs, up to so many at a time; of these kinds, or of all that have a handler."""
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
        self._places.capacity = concurrency
        self._finisher.timeout_s = None
        try:
            await self._artifacts.sweep()
            await self._say()
            # Only now: of those who begin at the same time, the later ones know the earlier ones.
            with suppress(DatabaseUnavailable):
                await self._chooser.look_around()
        except BaseException:
            self._places.capacity = 0
            self._tell()
            raise
        listening = self._store.faults.keep_running("worker-ear", self._listen, fatal=(StoreClosed,))
        self._tasks = [
            asyncio.create_task(self._take_jobs(), name="vox-mesh-worker"),
            asyncio.create_task(listening, name="vox-mesh-worker-ear"),
            asyncio.create_task(self._leases.run(), name="vox-mesh-leases"),
        ]

    async def broken(self) -> None:
        """Wait until it can't go on, though nobody has stopped it; a fault of ours is raised."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    def fault(self, patience_s: float) -> str:
        """Why no jobs are taken, though they are meant to be; empty if they are."""
        if not self.is_running or any(task.done() for task in self._tasks):
            return "it does not run"
        if self._places.free <= 0:
            return ""  # it has its hands full
        consuming_ms = self._presence.activity.consuming_ms
        if consuming_ms is None:
            return "it has not looked for jobs yet"
        silent_s = (self._jobs.clock.now_ms - consuming_ms) / 1_000
        return f"it has not looked for jobs for {silent_s:.0f} s" if silent_s > patience_s else ""

    async def idle(self) -> None:
        """Wait until no job of our kinds is left to be done, now or later."""
        while True:
            seen = self._store.change_count
            with suppress(DatabaseUnavailable):
                kinds, _, _, places, _ = await self._jobs.roster.situation()
                is_busy = self._running or self._claiming.is_unsure or places.get(self._presence.node_id)
                if not is_busy and not any(self._handles(kind) for kind in kinds):
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout(_AWAY_S):
                    await self._store.changed(seen)

    def look_again(self) -> None:
        """The database went back: see which jobs are still ours, and which it has as ours that are not."""
        self._claiming.is_unsure = True
        self._leases.look_soon()
        self._wake.set()

    async def _say(self) -> None:
        """Have the others know what we work on; if that can't be said now, the next tick does."""
        self._tell()
        try:
            await self._beat()
        except (StaleIncarnation, StoreClosed):
            raise
        except MeshError as error:
            _log.warning("nobody could be told what is worked on here: %s", error.line)

    def _tell(self) -> None:
        """What the next tick says of our work."""
        says, places = self._presence.activity, self._places
        says.kinds = self.kinds if places.capacity else []
        says.capacity, says.load = places.capacity, places.taken

    async def stop(self, grace: float = _STOP_S) -> None:
        """Take no more; what is not finished within the grace goes back to those that wait."""
        if not self.is_running:
            return
        taking, listening, keeping = self._tasks
        self._places.capacity = 0
        self._wake.set()
        try:
            # A claim that is under way should have its answer.
            await asyncio.wait([taking], timeout=_SETTLE_S)
            await _ended(taking, listening)
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
                    if self._claiming.is_unsure and not self._is_heir:
                        await self._give_back_orphans()
        finally:
            await _ended(taking, listening, keeping, *self._running.values())
            self._tasks = []
        if self._store.is_spooling:
            return  # nobody would hear it, and that takes a while
        with suppress(MeshError):  # then others know, or find out
            await self._say()

    # --- taking ----------------------------------------------------------------------------------

    async def _listen(self) -> None:
        seen = self._store.change_count
        while True:
            seen = await self._store.changed(seen)
            self._wake.set()
            self._leases.look_soon()

    async def _take_jobs(self) -> None:
        while self._places.capacity:
            self._wake.clear()
            pause: float | None = _AWAY_S
            began = self._leases.now
            try:
                pause = await self._look()
            except (StaleIncarnation, StoreClosed) as error:
                _log.error("no jobs can be taken any more: %s", error.line)
                raise
            except MeshError as error:
                self._claiming.is_unsure = True
                _log.warning("no jobs can be taken: %s", error.line)
            except Exception as error:
                self._claiming.is_unsure = True
                self._store.faults.note("worker", error)
            took = self._leases.now - began
            if pause == 0.0:
                await self._gather_places(min(_GATHER * took, _LONGEST_CALM_S))
                continue
            # A busy mesh commits all the time, and to look each time would be most of our work.
            calm_until = self._leases.now + min(_CALM * took, _LONGEST_CALM_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            await asyncio.sleep(max(0.0, calm_until - self._leases.now))

    async def _gather_places(self, most_s: float) -> None:
        """After a claim among others, wait a little for more places to be free: small claims cost as much."""
        until = self._leases.now + most_s
        while self._chooser.count > 1 and not self._places.has_many_free and self._leases.now < until:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(until - self._leases.now):
                    await self._wake.wait()

    async def _look(self) -> float | None:
        """Take what is our turn; in how many seconds to look again, if nothing happens before."""
        if self._claiming.is_unsure and not self._store.is_spooling:  # what waits there are ends of jobs, too
            await self._give_back_orphans()
        places = min(self._places.free, _MOST_AT_ONCE)
        if places <= 0:
            return None
        if not self._jobs.clock.can_author:  # then nothing new is begun here
            return _AWAY_S
        self._presence.record_consuming()
        kinds = [kind for kind in await self._chooser.look() if self._has_place(kind)]
        if not kinds:
            await self._chooser.look_around()  # so that it need not be done when there is something to do
            return None
        shut = await self._bounds.shut()
        kinds = [kind for kind in kinds if self._chooser.is_open(kind) and not shut.is_all]
        awake = [kind for kind in kinds if not self._claiming.rests(kind)]
        window = min(max(places, _FEW) * self._chooser.count, _WINDOW)
        now_ms = self._jobs.clock.now_ms  # one for both: what comes due in between must not be missed
        ready = await self._jobs.roster.claimable(awake, window, at_ms=now_ms, but_of=shut.accounts)
        jobs = [job for job in ready if job.job_id not in self._running and self._claiming.is_new(job)]
        is_deep = len(ready) == window
        take, again_ms = self._chooser.choose(jobs, self._places.capacity, places, is_deep=is_deep)
        if take := self._places.within_limits(take):
            found = await self._jobs.roster.still_claimable(take)
            if len(found) < len(take):
                self._chooser.surprise()
            if self._places.capacity:  # else the worker was stopped meanwhile
                await self._claim(found)
            await self._chooser.look_around()
            return 0.0
        await self._chooser.look_around()
        if len(jobs) < len(ready) or len(awake) < len(kinds):
            return REST_S
        if not is_deep:
            due_ms = await self._jobs.roster.next_due_ms(kinds, at_ms=now_ms)
            moments = (again_ms, due_ms, shut.again_ms)
            again_ms = min((each for each in moments if each is not None), default=None)
        return None if again_ms is None else max(0.0, (again_ms - self._jobs.clock.now_ms) / 1_000)

    def _handles(self, kind: str) -> bool:
        return self._policy is not None if kind == EXEC else self.handlers.of(kind) is not None

    def _has_place(self, kind: str) -> bool:
        handler = self.handlers.of(kind)
        return self._handles(kind) and (handler is None or self._places.free_of(handler) > 0)

    async def _claim(self, jobs: Sequence[Job]) -> None:
        groups: dict[int, list[Job]] = {}
        for job in jobs:
            groups.setdefault(self._lease_of(job), []).append(job)
        for lease_ms, group in groups.items():
            for claimed in await self._claiming.claim(group, lease_ms):
                self._begin(claimed)

    def _lease_of(self, job: Job) -> int:
        handler = self.handlers.of(job.kind)
        own = None if handler is None else handler.lease_ms
        usual = own or self._chooser.rules_of(job.kind).lease_ms or DEFAULT_LEASE_MS
        return self._leases.ms_to_boundary(job) or job.lease_ms or usual

    async def _give_back_orphans(self) -> None:
        """What is ours by the roster, and not in our hands: a former self had it, or we never had the answer.

        What a former self had counts as failed: it may be what ended it. If it was the last attempt, it is
        left to its lease.
        """
        held = await self._jobs.roster.held_by(self._presence.node_id, fresh=True)
        ends = [self._orphaned(job) for job in held if job.job_id not in self._running]
        await asyncio.gather(*(self._finisher.finish(each) for each in ends if each is not None))
        self._claiming.is_unsure = self._is_heir = False

    def _orphaned(self, job: Job) -> Ended | None:
        if not self._is_heir:
            return Ended(job, JobState.PENDING, "its worker had no answer", delay_ms=job.backoff_ms)
        has_another = job.failures + 1 < job.max_attempts
        return Ended(job, JobState.FAILED, "its worker was gone") if has_another else None

    # --- working ---------------------------------------------------------------------------------

    def _begin(self, claimed: Claimed) -> None:
        self.stats.claimed += 1
        job = claimed.job
        self.stats.queued.observe(((job.started_ms or 0) - job.not_before_ms) / 1_000)
        self._leases.hold(*claimed)
        handler = self.handlers.of(job.kind)
        context, name = job_context(job), f"vox-mesh-job-{job.job_id[:8]}"
        task = asyncio.create_task(self._work(job, handler), name=name, context=context)
        self._running[job.job_id] = task
        self._places.take(handler)
        task.add_done_callback(partial(self._end, job, handler), context=context)

    def _end(self, job: Job, handler: Handler | None, task: asyncio.Task[None]) -> None:
        del self._running[job.job_id]
        self._leases.let_go(job)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("job %s ended in a fault of ours", job.job_id, exc_info=error)
            self._claiming.is_unsure = True
        call = self._lingering.pop(job.job_id, None)
        if call is None:
            self._leave(handler)
        else:  # a thread can't be stopped: its place is taken for as long as it goes on
            call.add_done_callback(partial(self._leave, handler))

    def _leave(self, handler: Handler | None, call: asyncio.Future[Any] | None = None) -> None:
        if call is not None and not call.cancelled():
            call.exception()  # nobody is left to be told
        self._places.leave(handler)
        self._wake.set()

    async def _work(self, job: Job, handler: Handler | None) -> None:
        """One attempt, and what became of it. Cancelled with the job still ours, it is given back."""
        began = self._leases.now
        try:
            ended = await self._attempt(job, handler)
        except asyncio.CancelledError:
            if job.job_id not in self._leases.cancelled:
                raise
            ended = Ended(job, JobState.PENDING, "its worker stopped", delay_ms=0)
        except AWAY as error:  # what a handler raises is the end of its attempt, and does not come here
            _log.warning("job %s could not be begun: %s", job.job_id, error.line)
            ended = Ended(job, JobState.PENDING, f"not begun: {error.line}", delay_ms=job.backoff_ms)
        except Exception as error:
            _log.exception("job %s could not be begun", job.job_id)
            ended = Ended(job, JobState.FAILED, f"a fault of its worker: {error!r}")
        finally:
            self.stats.ran.observe(self._leases.now - began)
        self._leases.ending(job)
        told = await self._finisher.finish(ended)
        if told is None:
            self.stats.refused += 1
        elif told.state is JobState.SUCCEEDED:
            self.stats.succeeded += 1
        elif told.state is JobState.FAILED:
            self.stats.failed += 1
        else:
            self.stats.given_back += 1
        self._presence.record_progress()

    async def _attempt(self, job: Job, handler: Handler | None) -> Ended:
        resumed = None
        if job.attempts > 1:
            kept = (await self._jobs.notes.of(job.job_id, fresh=True)).checkpoint
            resumed = None if kept is None else orjson.loads(kept)
        context = JobContext(job, self._store, self._jobs.clock, self._artifacts, resumed)
        work: Work
        is_stopped = partial(self._is_stopped, job)
        if job.kind == EXEC and self._policy is not None:
            work, timeout_s = partial(executed, artifacts=self._artifacts, policy=self._policy), None
        else:
            assert handler is not None
            work, timeout_s = partial(handled, handler=handler), context.core.get("timeout")
        try:
            context.bound = bound = await self._bounds.of(context)
            if bound is None:
                return await attempt(context, work, self._jobs.clock, timeout_s, is_stopped)
            work = partial(bound.within, work)
            return await bound.keep(attempt(context, work, self._jobs.clock, timeout_s, is_stopped))
        finally:
            context.cancel()
            if context.thread is not None and not context.thread.done():
                self._lingering[job.job_id] = context.thread
            await context.close()

    def _is_stopped(self, job: Job) -> bool:
        """Return whether the worker wants the attempt to end, or all tasks of this process are ending."""
        is_ours = job.job_id not in self._leases.cancelled and self._leases.holds(job)
        return not is_ours or any(task.cancelling() for task in self._tasks[-1:])

    def _lose(self, job: Job) -> None:
        """A job is not ours any more: stop working on it at once."""
        task = self._running.get(job.job_id)
        if task is not None:
            with job_scope(job):
                _log.warning("job %s is not ours any more: its work is stopped", job.job_id)
            task.cancel()


async def _ended(*tasks: asyncio.Task[None]) -> None:
    """End tasks; one that does not want to be ended is left to itself."""
    for task in tasks:
        task.cancel()
    if tasks:
        _, going_on = await asyncio.wait(tasks, timeout=_SETTLE_S)
        for task in going_on:
            _log.error("%s goes on though it was cancelled", task.get_name())
