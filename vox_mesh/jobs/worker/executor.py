"""Executor: takes each claimed and started job through one attempt: prepare, run, complete."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from vox_mesh.errors import AWAY, BadValue, MeshError, NotAuthentic
from vox_mesh.heartbeat.presence import Presence
from vox_mesh.jobs.authorship import JobAuthorship
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.progress import Notebook
from vox_mesh.jobs.proof.artifacts import Artifacts
from vox_mesh.jobs.steps.step_log import StepLog
from vox_mesh.jobs.steps.step_runner import StepRunner
from vox_mesh.jobs.steps.step_services import StepServices
from vox_mesh.jobs.worker.attempt import GiveUp, NeedsInput, Yield, run_attempt, run_handler, run_job_command
from vox_mesh.jobs.worker.attempt_limits import AttemptLimits
from vox_mesh.jobs.worker.attempt_result import AttemptResult
from vox_mesh.jobs.worker.capacity import Capacity
from vox_mesh.jobs.worker.claimer import Claimed, ClaimReconciler
from vox_mesh.jobs.worker.context import JobContext, claim_fence
from vox_mesh.jobs.worker.finisher import Finisher
from vox_mesh.jobs.worker.handlers import Handler
from vox_mesh.jobs.worker.leases import Leases
from vox_mesh.jobs.worker.limit_services import Work
from vox_mesh.jobs.worker.limits import WorkerLimits
from vox_mesh.model.base.histogram import LONG_S, Histogram
from vox_mesh.model.jobs.records import EXEC, Job, JobState, interrupted_too_often
from vox_mesh.model.jobs.steps.step_origin import StepOrigin
from vox_mesh.model.jobs.steps.step_row import StepRow
from vox_mesh.model.rhythm.tokens import NO_TOKENS, TokenUsage
from vox_mesh.observability.log_context import job_context, job_scope
from vox_mesh.rhythm.token_ledger import AttemptCharge
from vox_mesh.store.engines.thread import to_the_end
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)


_CONTROL: Final = (Yield, NeedsInput, GiveUp)
"""What a handler raises to end its attempt; a step lets it pass."""


@dataclass(slots=True)
class WorkerStats:
    """The counters of a worker since its process started."""

    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    yielded: int = 0
    refused: int = 0
    queued: Histogram = field(default_factory=lambda: Histogram(LONG_S))
    """Seconds from when a job was ready until it started."""
    ran: Histogram = field(default_factory=lambda: Histogram(LONG_S))
    """Seconds per attempt, whatever its result."""
    steps: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The rows of durable steps that were stored, by kind and state."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at a job, from its claim to its written result."""

    job: Job
    handler: Handler | None
    """The handler of the job's kind; commands have none."""
    task: asyncio.Task[None] = field(init=False)
    context: JobContext | None = None
    is_released: bool = False
    """Whether the worker stops the attempt and returns the job to the queue."""
    is_ending: bool = False
    """Whether its result is being written."""

    @property
    def thread(self) -> asyncio.Future[Any] | None:
        """Return the call of a handler in a thread, which can't be stopped."""
        return None if self.context is None else self.context.thread

    @property
    def limits(self) -> AttemptLimits | None:
        """Return the limits of the attempt, or `None` if it has none."""
        return None if self.context is None else self.context.limits

    @property
    def tokens(self) -> TokenUsage:
        """Return the tokens of language models that the attempt has reported."""
        return NO_TOKENS if self.context is None else self.context.meter.tokens

    def cancel(self) -> None:
        """Stop the attempt; its handler sees `context.is_cancelled` from now on."""
        if self.context is not None:
            self.context.cancel()
        self.task.cancel()


class Executor:
    """Runs the attempts of one worker, each in a task of its own."""

    def __init__(
        self,
        store: Store,
        jobs: Jobs,
        artifacts: Artifacts,
        presence: Presence,
        capacity: Capacity,
        limits: WorkerLimits,
        leases: Leases,
        finisher: Finisher,
        reconciler: ClaimReconciler,
        steps: StepServices,
        chance: Callable[[], float],
        on_free: Callable[[], None],
        is_process_ending: Callable[[], bool],
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._artifacts = artifacts
        self._presence = presence
        self._capacity = capacity
        self._limits = limits
        self._leases = leases
        self._finisher = finisher
        self._reconciler = reconciler
        self._steps = steps
        self._chance = chance
        self._on_free = on_free
        self._is_process_ending = is_process_ending
        self._running: dict[str, Attempt] = {}
        self.ending_count = 0
        """The number of attempts that end as soon as their results are written."""
        self.stats = WorkerStats()

    @property
    def running(self) -> Collection[str]:
        """Return the ids of the running jobs."""
        return self._running.keys()

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks of the running attempts."""
        return [each.task for each in self._running.values()]

    # --- one attempt -----------------------------------------------------------------------------

    def start(self, claimed: Claimed) -> None:
        """Start an attempt at a claimed job."""
        job = claimed.job
        attempt = Attempt(job, self._capacity.handlers.of(job.kind))
        self.stats.claimed += 1
        self.stats.queued.observe(((job.started_ms or 0) - job.not_before_ms) / 1_000)
        self._leases.hold(*claimed, on_lost=partial(self._lose, attempt))
        self._running[job.job_id] = attempt
        self._capacity.take(attempt.handler)
        context, name = job_context(job), f"vox-mesh-job-{job.job_id[:8]}"
        attempt.task = asyncio.create_task(self.execute(attempt), name=name, context=context)
        attempt.task.add_done_callback(partial(self._end, attempt), context=context)

    async def execute(self, attempt: Attempt) -> None:
        """Run an attempt and complete its job with the result."""
        result = await self._run(attempt)
        attempt.is_ending = True
        self.ending_count += 1
        written = await self._complete(result)
        if written is None:
            await self._charge_unwritten(attempt)
        if result.end is not None and attempt.limits is not None:
            if written is None:
                await attempt.limits.record_refused(result.end)
            elif written.state is not result.state:
                attempt.limits.claim_failure(written.reason or "")
        if written is not None and written.question is not None:
            await self._jobs.questions.announce(written.job.job_id)
        self._count(attempt, written)

    async def _run(self, attempt: Attempt) -> AttemptResult:
        """Return the result of an attempt, also if it could not start or was stopped by this worker."""
        job, began = attempt.job, self._leases.now
        try:
            return await self._run_with_context(attempt)
        except asyncio.CancelledError:
            if not attempt.is_released:
                charging = asyncio.create_task(self._charge_unwritten(attempt), name="vox-mesh-charge")
                await to_the_end(charging)
                raise
            return self._stopped(attempt)._replace(tokens=attempt.tokens)
        except Exception as error:  # raised before the work; `run_attempt` handles the errors of the work
            return result_of_failed_start(job, error, self._jobs.authorship)
        finally:
            self.stats.ran.observe(self._leases.now - began)

    async def _charge_unwritten(self, attempt: Attempt) -> None:
        """Charge the tokens of an attempt whose result is not written, because its claim was lost."""
        if not attempt.tokens:
            return
        charge = AttemptCharge.of(attempt.job, self._limits.agent, attempt.tokens, self._jobs.clock.now_ms)
        try:
            await self._store.write(self._limits.budgets.tokens.charge_script(charge, is_held=False))
        except MeshError as error:
            _log.error("job tokens not charged: job_id=%s: %s", attempt.job.job_id, error.line)

    def _stopped(self, attempt: Attempt) -> AttemptResult:
        """Return the result of an attempt that this worker has stopped because it stops itself."""
        job, reason = attempt.job, "its worker stopped"
        if job.max_interruptions or attempt.context is None:  # in good order: it does not count
            return AttemptResult(job, JobState.PENDING, reason, delay_ms=0)
        reason, now_ms = interrupted_too_often(0, reason), self._jobs.clock.now_ms
        return AttemptResult(job, JobState.FAILED, reason, finished_ms=now_ms, may_retry=False)

    async def _run_with_context(self, attempt: Attempt) -> AttemptResult:
        attempt.context = context = await self._prepare(attempt.job)
        try:
            return await self._run_within_limits(attempt, context)
        finally:
            context.cancel()
            await context.close()

    async def _prepare(self, job: Job) -> JobContext:
        """Return the context of an attempt, with its limits and the checkpoint of an earlier attempt."""
        core = await self._jobs.predecessor_results.bind(job)
        checkpoints = self._jobs.checkpoints
        notebook = Notebook(self._store, job, checkpoints)
        resumed = await checkpoints.resumed(job) if job.attempts > 1 else None
        meter = self._limits.new_meter()
        limits = await self._limits.of(job, core, notebook, meter)
        store, clock = self._store, self._jobs.clock
        answer = await self._jobs.questions.answer_to(job) if job.attempts > 1 else None
        results = self._jobs.predecessor_results
        steps = await self._steps_of(job, StepOrigin.in_core(core), answer)
        given = None if answer is None else answer["answer"]
        return JobContext(
            *(job, core, store, clock, self._artifacts, notebook, meter, limits, resumed, results, steps),
            self._jobs,
            given,
        )

    async def _steps_of(
        self, job: Job, origin: StepOrigin | None, answer: Mapping[str, Any] | None
    ) -> StepRunner | Callable[[], StepRunner]:
        """Return what runs the steps of an attempt, or makes that at the first step if none can be stored."""
        if job.attempts == 1 and origin is None:
            return partial(self._new_steps, job)
        rows, is_woken = [], False
        if job.attempts > 1:
            rows = await self._jobs.steps.verified(job.job_id)
            is_woken = answer is None and await self._jobs.questions.is_closed(job)
        steps = self._new_steps(job, rows, origin, answer, is_woken=is_woken)
        await steps.take_over(self._jobs.forks.taken_over)
        return steps

    def _new_steps(
        self,
        job: Job,
        rows: Sequence[StepRow] = (),
        origin: StepOrigin | None = None,
        answer: Mapping[str, Any] | None = None,
        *,
        is_woken: bool = False,
    ) -> StepRunner:
        store, clock = self._store, self._jobs.clock
        fence = partial(claim_fence, store, job)
        log = StepLog(
            *(store, self._jobs.steps, self._steps.writer, job, clock, self._artifacts, fence),
            self.stats.steps,
            rows,
        )
        given = self._steps, origin, answer, is_woken
        return StepRunner(log, job, clock, self._artifacts, *given, self._chance, _CONTROL)

    def _run_within_limits(self, attempt: Attempt, context: JobContext) -> Awaitable[AttemptResult]:
        policy, handler, limits = self._capacity.policy, attempt.handler, context.limits
        work: Work
        if attempt.job.kind == EXEC and policy is not None:
            work, timeout_s = partial(run_job_command, context, self._artifacts, policy), None
        else:
            assert handler is not None
            work, timeout_s = partial(run_handler, context, handler), context.core.get("timeout")
        if limits is not None:
            work = partial(limits.within, work)
        run = run_attempt(context, work, self._jobs.clock, timeout_s, partial(self._is_stopped, attempt))
        return run if limits is None else limits.enforce(run)

    def _complete(self, result: AttemptResult) -> Awaitable[AttemptResult | None]:
        """Write the result of an attempt. Return it as written, or `None` if the claim was lost."""
        self._leases.mark_ending(result.job)
        return self._finisher.finish(result)

    def _count(self, attempt: Attempt, written: AttemptResult | None) -> None:
        if written is not None and written.step_rows and attempt.context is not None and written.is_requeued:
            attempt.context.steps.log.count_waits()
        if written is None:
            self.stats.refused += 1
        elif written.state is JobState.SUCCEEDED:
            self.stats.succeeded += 1
        elif written.state is JobState.FAILED:
            self.stats.failed += 1
        else:
            self.stats.yielded += 1
        self._presence.progressed()

    # --- ends ------------------------------------------------------------------------------------

    def _end(self, attempt: Attempt, task: asyncio.Task[None]) -> None:
        job, thread = attempt.job, attempt.thread
        del self._running[job.job_id]
        self.ending_count -= attempt.is_ending
        self._leases.release(job)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("job task failed: job_id=%s", job.job_id, exc_info=error)
            self._reconciler.request()
        if thread is None or thread.done():
            self._free_capacity(attempt.handler)
        else:  # a thread can't be stopped: it uses capacity until it ends
            thread.add_done_callback(lambda _: self._free_capacity(attempt.handler))

    def _free_capacity(self, handler: Handler | None) -> None:
        self._capacity.release(handler)
        self._on_free()

    def _lose(self, attempt: Attempt) -> None:
        """Stop an attempt whose claim is lost."""
        if self._running.get(attempt.job.job_id) is attempt:
            with job_scope(attempt.job):
                _log.warning("job stopped: job_id=%s, claim lost", attempt.job.job_id)
            attempt.cancel()

    def _is_stopped(self, attempt: Attempt) -> bool:
        """Return whether the worker stops the attempt, or the process ends all its tasks."""
        return attempt.is_released or not self._leases.holds(attempt.job) or self._is_process_ending()

    # --- all attempts ----------------------------------------------------------------------------

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the attempts that run now have ended, or for `timeout_s` seconds."""
        if tasks := self.tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def check_limits(self) -> None:
        """Enter the phases that have begun, and stop the attempts that have exceeded a limit."""
        await self._limits.watch.check_all()

    def release_all(self) -> None:
        """Stop all attempts and return their jobs to the queue."""
        for attempt in list(self._running.values()):
            attempt.is_released = True
            attempt.cancel()


def result_of_failed_start(job: Job, error: Exception, authorship: JobAuthorship) -> AttemptResult:
    """Return the result of an attempt that could not start: the job is retried if that may help."""
    if isinstance(error, AWAY):
        _log.warning("job not started: job_id=%s: %s", job.job_id, error.line)
        return AttemptResult(job, JobState.PENDING, f"not begun: {error.line}", delay_ms=job.backoff_ms)
    if isinstance(error, BadValue):  # its manifest or checkpoint: another attempt would not read it either
        _log.error("job not started: job_id=%s: unreadable: %s", job.job_id, error.line)
        return AttemptResult(job, JobState.FAILED, f"unreadable: {error.line}", may_retry=False)
    if isinstance(error, NotAuthentic):  # a predecessor was changed since the job was claimed
        authorship.doubt(job, error.line)
        return AttemptResult(job, JobState.PENDING, f"not begun: {error.line}", delay_ms=job.backoff_ms)
    if isinstance(error, MeshError):  # the output of a predecessor can't be read
        _log.warning("job not started: job_id=%s: %s", job.job_id, error.line)
        return AttemptResult(job, JobState.FAILED, error.line)
    _log.error("job not started: job_id=%s", job.job_id, exc_info=error)
    return AttemptResult(job, JobState.FAILED, f"a fault of its worker: {error!r}")
