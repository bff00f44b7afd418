"""An attempt: one run of a job's handler or command, and its result."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import copy_context
from functools import partial
from typing import Any, Final

from vox_mesh.errors import AWAY, MeshError
from vox_mesh.jobs.exec.command import Command, run_command
from vox_mesh.jobs.exec.policy import ExecPolicy
from vox_mesh.jobs.proof.artifacts import Artifacts
from vox_mesh.jobs.results import RESULT, STDOUT
from vox_mesh.jobs.worker.attempt_result import AttemptResult
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.jobs.worker.handlers import Function, Handler
from vox_mesh.jobs.worker.limit_services import Work
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.durations import Duration, seconds_of
from vox_mesh.model.jobs.proof import CommandAttestation, environment_hash
from vox_mesh.model.jobs.question import NEEDS_INPUT, Question
from vox_mesh.model.jobs.records import Job, JobState, interrupted_too_often
from vox_mesh.model.jobs.steps.step_summary import StepSummary
from vox_mesh.model.jobs.steps.suspension import Suspended, suspension_in
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.observability import tracing
from vox_mesh.store.background import is_cancelled
from vox_mesh.store.engines.thread import SerialThread

_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"
_DECODER: Final = codecs.getincrementaldecoder("utf-8")


class Yield(Exception):
    """Raised by a handler to yield its job: it is retried after `delay`, or after its backoff."""

    def __init__(self, reason: str = "yielded by its handler", delay: Duration | None = None) -> None:
        super().__init__(reason)
        self.delay_ms = None if delay is None else round(seconds_of("delay", delay) * 1_000)


class NeedsInput(Exception):
    """Raised by a handler to ask a question: its job is retried with the answer in `context.answer`."""

    def __init__(self, question: Question | str) -> None:
        self.question = (Question(question) if isinstance(question, str) else question).checked()
        super().__init__(self.question.text)


class GiveUp(Exception):
    """Raised by a handler to fail its job without another attempt."""

    @property
    def reason(self) -> str:
        """Return the reason with which the job fails."""
        return _describe(self)


async def run_attempt(
    context: JobContext,
    work: Work,
    clock: MeshClock,
    timeout_s: float | None,
    is_stopped: Callable[[], bool],
) -> AttemptResult:
    """Run the work and return its result, also if it fails.

    A cancellation by the worker (`is_stopped`) is raised; any other is the work's own and fails the attempt.
    """
    with tracing.running(context.job) as run:
        result = await _run(context, work, timeout_s, is_stopped)
        steps = context.used_steps
        result = result._replace(
            finished_ms=clock.now_ms,
            artifacts=context.kept,
            attested=context.attested,
            inferences=context.inferences,
            usage=context.meter.used,
            tokens=context.meter.tokens,
            steps=None if steps is None else StepSummary.of(steps.log.rows),
        )
        tracing.record_outcome(run, result.state, result.reason)
    return result


async def _run(
    context: JobContext, work: Work, timeout_s: float | None, is_stopped: Callable[[], bool]
) -> AttemptResult:
    """Return the result of the work; what it raises becomes a result, too."""
    job, failed = context.job, partial(AttemptResult, context.job, JobState.FAILED)
    limit = asyncio.timeout(timeout_s) if timeout_s else None
    try:
        async with limit or nullcontext():
            return await _run_work(work)
    except TimeoutError as error:
        is_over = limit is not None and limit.expired()
        return failed(f"it took longer than {timeout_s:g} s" if is_over else _describe(error))
    except asyncio.CancelledError as error:
        if is_cancelled() and is_stopped():
            raise
        _take_back_cancellation()
        return failed(_describe(error))  # the work cancelled itself
    except (Suspended, BaseExceptionGroup) as error:
        suspended = suspension_in(error)
        return failed(_describe(error)) if suspended is None else await _suspended(context, suspended)
    except Yield as error:
        delay_ms = job.backoff_ms if error.delay_ms is None else error.delay_ms
        return AttemptResult(job, JobState.PENDING, str(error), delay_ms=delay_ms)
    except NeedsInput as error:
        return AttemptResult(job, JobState.PENDING, NEEDS_INPUT, delay_ms=0, question=error.question)
    except GiveUp as error:
        return failed(error.reason, may_retry=False)
    except BaseException as error:  # no exception of the work may end the worker
        return _failed(job, error)
    finally:
        context.cancel()


async def _suspended(context: JobContext, suspended: Suspended) -> AttemptResult:
    """Return the result of an attempt whose job goes on when what its steps wait for has come."""
    if (error := await context.steps.log.rest()) is not None:
        return _failed(context.job, error)
    wake = context.steps.wake_of(suspended)
    now_ms, until_ms = context.now_ms, suspended.until_ms if wake is None else None
    return AttemptResult(
        context.job,
        JobState.PENDING,
        suspended.reason,
        delay_ms=0 if until_ms is None else max(0, until_ms - now_ms),
        question=suspended.question,
        awaited_jobs=suspended.job_ids if wake is None else (),
        wake=wake,
        step_rows=context.steps.recorded_waits(wake, has_children=bool(suspended.job_ids)),
    )


def _failed(job: Job, error: BaseException) -> AttemptResult:
    """Return the result of an attempt that an error has ended."""
    if isinstance(error, AWAY):
        return _interrupted(job, error)
    reason = error.line if isinstance(error, MeshError) else _describe(error)
    return AttemptResult(job, JobState.FAILED, reason)


def _interrupted(job: Job, error: MeshError) -> AttemptResult:
    """Return the result of an attempt that the database has interrupted: the work has not failed."""
    if job.may_be_interrupted:
        return AttemptResult(job, JobState.PENDING, error.line, is_interrupted=True)
    reason = interrupted_too_often(job.max_interruptions, error.line)
    return AttemptResult(job, JobState.FAILED, reason, may_retry=False)


async def _run_work(work: Work) -> AttemptResult:
    """Run the work, and deliver a cancellation that it requested itself and that is still pending.

    Otherwise the cancellation would be raised while the result of the attempt is written.
    """
    try:
        return await work()
    finally:
        if is_cancelled():
            await asyncio.sleep(0)


def _take_back_cancellation() -> None:
    """Remove the cancellation requests of the current task."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


# --- work ----------------------------------------------------------------------------------------


async def run_handler(context: JobContext, handler: Handler) -> AttemptResult:
    """Run a job's handler; a result other than `None` becomes an artifact."""
    if (steps := context.used_steps) is not None and steps.is_cleanup:
        return await _run_compensations(context, handler)
    try:
        result = await _call_handler(context, handler)
        if (steps := context.used_steps) is not None:  # maybe since the handler was called
            steps.log.check_complete()
    except Exception as error:
        if context.limits is None or not context.limits.covers(error):
            raise
        result = context.limits.covering_result
    if result is not None:
        await context.keep(RESULT, canonical(result).encode(), _JSON)
    return AttemptResult(context.job, JobState.SUCCEEDED)


async def _run_compensations(context: JobContext, handler: Handler) -> AttemptResult:
    """Call a handler up to where its job was aborted, and then its compensations."""
    context.steps.begin_cleanup()
    stopped_by: BaseException | None = None
    try:
        await _call_handler(context, handler)
    except (Suspended, Exception, BaseExceptionGroup) as error:
        stopped_by = error
    await context.steps.compensate(stopped_by)
    return AttemptResult(context.job, JobState.SUCCEEDED)


async def _call_handler(context: JobContext, handler: Handler) -> Any:
    if handler.is_async:
        return await context.meter.steps(handler.function(context))
    thread = SerialThread("vox-mesh-handler")  # must not keep the process from exiting
    call = partial(copy_context().run, _call_in_thread, handler.function, context)
    if context.limits is not None:
        context.limits.begin_phrase()  # not in the thread
    context.thread = thread.do(partial(context.meter.timed, call))
    thread.finish()
    return await context.meter.in_thread(asyncio.shield(context.thread))


def _call_in_thread(function: Function, context: JobContext) -> Any:
    """Call a handler in a thread, replacing exceptions that a future can't carry."""
    try:
        return function(context)
    except (StopIteration, asyncio.CancelledError) as error:
        raise RuntimeError(_describe(error)) from error
    except (Exception, Suspended):
        raise
    except BaseException as error:
        raise RuntimeError(_describe(error)) from error


async def run_job_command(context: JobContext, artifacts: Artifacts, policy: ExecPolicy) -> AttemptResult:
    """Run a job's command; its output becomes artifacts, cut at the maximum size."""
    job, core = context.job, context.core
    command = Command(
        argv=(*core["command"], *core["args"]),
        job_id=job.job_id,
        ulid=job.ulid,
        attempt=job.attempts,
        claim_token=job.claim_token,
        env=core.get("env", {}),
        env_from=core.get("env_from", {}),
        cwd=core.get("cwd"),
        timeout_s=core["timeout"],
    )
    environment = environment_hash(job.core)

    def attest(executable: str | None) -> None:
        context.attested = CommandAttestation(environment, executable)

    # A piece of output may end inside a character.
    texts = {name: _DECODER(errors="replace") for name in ("stdout", "stderr")}
    with artifacts.sink(STDOUT, _TEXT) as stdout, artifacts.sink("stderr", _TEXT) as stderr:
        result = await run_command(
            command,
            policy=policy,
            on_output=lambda stream, piece: context.output(stream, texts[stream].decode(piece)),
            stdout=stdout,
            stderr=stderr,
            on_group=None if context.limits is None else context.limits.watch_processes,
            on_executable=attest,
        )
        context.kept += [await stdout.finish(), await stderr.finish()]
    state = JobState.SUCCEEDED if result.is_success else JobState.FAILED
    reason = None if result.is_success else result.line
    return AttemptResult(job, state, reason, exit_code=result.exit_code)
