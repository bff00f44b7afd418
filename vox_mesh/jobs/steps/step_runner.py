"""Running steps: once, with retries, and never again when their result is stored."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from types import FunctionType
from typing import Any, Final, NamedTuple, TypeVar

from vox_mesh.errors import BadValue, JobNotSucceeded, StaleClaim, StepFailed, StepOrderChanged, StepTimedOut
from vox_mesh.jobs.proof.artifacts import Artifacts
from vox_mesh.jobs.steps.step_log import Place, StepLog
from vox_mesh.jobs.steps.step_services import StepServices
from vox_mesh.jobs.steps.step_values import StepValues
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.durations import Duration, seconds_of
from vox_mesh.model.base.json_text import read_stored
from vox_mesh.model.jobs.question import Question
from vox_mesh.model.jobs.records import Job, backoff_ms
from vox_mesh.model.jobs.steps.step_origin import StepOrigin
from vox_mesh.model.jobs.steps.step_row import MAX_INLINE, StepKind, StepRow, StepState
from vox_mesh.model.jobs.steps.suspension import AwaitedMessage, Suspended, Wait, Wake
from vox_mesh.model.messages.records import WIRE_FIELDS, Message
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.store.script import Statement, new_key

_log = logging.getLogger(__name__)

T = TypeVar("T")

_STAY_S: Final = 5.0
"""A longer pause before a retry gives the worker's capacity back."""

_LATER_MS: Final = 10_000
"""When a job tries again what is not possible yet, and what no event announces."""

_MAX_ERROR: Final = 2_000
_JSON: Final = "application/json"

Control = tuple[type[Exception], ...]


class _Compensation(NamedTuple):
    """What is called if the job is aborted."""

    name: str
    call: Callable[[], Any]
    retries: int
    backoff: Duration
    timeout: Duration | None


class StepRunner:
    """Runs the steps of one attempt."""

    def __init__(
        self,
        log: StepLog,
        job: Job,
        clock: MeshClock,
        artifacts: Artifacts,
        services: StepServices,
        origin: StepOrigin | None,
        answer: Mapping[str, Any] | None,
        is_woken: bool,
        chance: Callable[[], float],
        control: Control,
    ) -> None:
        """`origin`: the steps of another job that this one begins with. `answer`: the op that answers the
        last question, if one does. `is_woken`: whether that question is closed without an answer. `control`:
        what ends an attempt.
        """
        self.log: Final = log
        self._job = job
        self._clock = clock
        self._artifacts = artifacts
        self._children, self._waits, self._cleanups, self._early_wakes, *_ = services
        self._ended_early: frozenset[int] | None = None  # the rows, once they were read
        self._origin = origin
        self._compensations: dict[int, _Compensation] = {}
        self._answer = answer
        self._is_woken = is_woken
        self._has_asked = False
        self._chance = chance
        self._control: Control = (*control, StaleClaim)

    # --- calls -----------------------------------------------------------------------------------

    async def call(
        self,
        name: str,
        call: Callable[[], Any],
        values: StepValues,
        retries: int,
        backoff: Duration,
        timeout: Duration | None,
    ) -> Any:
        """Return the stored result of a step, or run it and store its result."""
        place = self.log.next(name, StepKind.CALL)
        failures = 0
        if place.stored is not None:
            document = place.stored.document
            if place.stored.state == StepState.DONE:
                if "result" in document:
                    return values.restore(document["result"])
                return values.decode(await self._result_text(document))
            failures = document["failures"]
            if (retry_ms := document["retry_ms"]) is None:
                raise StepFailed(f"step {name} failed: {document['error']}", step=name)
            if not await self._is_ended_early(place, retry_ms):
                await self._pause(retry_ms)
        backoff_s = seconds_of("backoff", backoff)
        timeout_s = None if timeout is None else seconds_of("timeout", timeout)
        while True:
            try:
                result = await run_step_function(call, timeout_s)
            except self._control:
                raise
            except Exception as error:
                failures += 1
                retry_ms = await self._fail(place, error, failures, retries, backoff_s)
                if retry_ms is None:
                    raise StepFailed(f"step {name} failed: {_describe(error)}", step=name) from error
                await self._pause(retry_ms)
            else:
                return values.decode(await self._store(place, values.encode(result)))

    async def _store(self, place: Place, text: str, effects: Sequence[Statement] = ()) -> str:
        """Store a result and return it. A large one becomes an artifact."""
        if len(text.encode()) <= MAX_INLINE:
            await self.log.append(place, StepState.DONE, f'{{"result":{text}}}', effects=effects)
            return text
        artifact = await self._artifacts.keep(text.encode(), name=f"step-{place.number}", type=_JSON)
        document = {"artifact": artifact.hash, "size": artifact.size}
        await self.log.append(place, StepState.DONE, document, artifact, effects)
        return text

    async def _result_text(self, document: Mapping[str, Any]) -> str:
        if "artifact" in document:
            return (await self._artifacts.body(document["artifact"])).decode()
        return canonical(document["result"], max_depth=None)

    async def _fail(
        self, place: Place, error: Exception, failures: int, retries: int, backoff_s: float
    ) -> int | None:
        """Store a failure. Return when the step is tried again, or `None` if it is not."""
        is_last = failures > retries
        wait_ms = backoff_ms(round(backoff_s * 1_000), failures, self._chance())
        retry_ms = None if is_last else self._clock.now_ms + wait_ms
        _log.warning(
            "step failed: job_id=%s step=%s failures=%d: %s",
            *(self._job.job_id, place.name, failures, _describe(error)),
        )
        document = {
            "error": _describe(error),
            "failures": failures,
            "job_failures": self._job.failures,
            "retry_ms": retry_ms,
        }
        await self.log.append(place, StepState.FAILED, document)
        return retry_ms

    async def _pause(self, until_ms: int) -> None:
        """Wait until a step is tried again; for long, the job is suspended."""
        left_s = (until_ms - self._clock.now_ms) / 1_000
        if left_s > _STAY_S:
            raise Suspended([Wait(until_ms=until_ms)])
        if left_s > 0:
            await asyncio.sleep(left_s)

    # --- compensations ---------------------------------------------------------------------------

    async def on_cancel(
        self,
        name: str,
        call: Callable[[], Any],
        retries: int,
        backoff: Duration,
        timeout: Duration | None,
    ) -> None:
        """Register what is called if the job is aborted. It is durable on return."""
        place = self.log.next(name, StepKind.CANCEL)
        if place.stored is None:
            note = self._cleanups.note(self._job.job_id)
            await self.log.append(place, StepState.DONE, {"result": None}, effects=[note])
        self._compensations[place.number] = _Compensation(name, call, retries, backoff, timeout)

    async def take_over(self, read: Callable[[StepOrigin], Awaitable[list[StepRow]]]) -> None:
        """Store the steps of another job that this one begins with, unless an earlier attempt has."""
        origin = self._origin
        if origin is not None and len(self.log.rows) < origin.rows:
            rows = await read(origin)
            has_some = not origin.cancels and any(row.kind == StepKind.CANCEL for row in rows)
            await self.log.take_over(rows, [self._cleanups.note(self._job.job_id)] if has_some else [])

    @property
    def is_cleanup(self) -> bool:
        """Return whether the job runs the compensations of another one."""
        return self._origin is not None and self._origin.cancels

    def begin_cleanup(self) -> None:
        """Stop the handler where the aborted job was."""
        assert self._origin is not None
        self.log.limit_to(self.log.rows[: self._origin.rows])

    async def compensate(self, stopped_by: BaseException | None) -> None:
        """Run the compensations that the handler has registered again, the last one first."""
        assert self._origin is not None
        stored = {row.place for row in self.log.rows[: self._origin.rows] if row.kind == StepKind.CANCEL}
        if stored != self._compensations.keys():
            raise StepOrderChanged(
                "the handler does not come to all its stored compensations"
            ) from stopped_by
        self.log.lift_limit()
        for _, each in sorted(self._compensations.items(), reverse=True):
            values = StepValues(each.name, None)
            call = partial(_without_result, each.call)
            await self.call(each.name, call, values, each.retries, each.backoff, each.timeout)

    # --- waits -----------------------------------------------------------------------------------

    async def sleep(self, duration: Duration, name: str) -> None:
        """Suspend the job until a time that is fixed when the step is first reached."""
        place = self.log.next(name, StepKind.SLEEP)
        if place.stored is None:
            until_ms = self._clock.now_ms + _ms_of("duration", duration)
            self.log.wait_for(place, {"until_ms": until_ms})
            raise Suspended([Wait(until_ms=until_ms)])
        until_ms = place.stored.document["until_ms"]
        if place.stored.state == StepState.DONE or until_ms <= self._clock.now_ms:
            return
        if not await self._is_ended_early(place, until_ms):
            raise Suspended([Wait(until_ms=until_ms)])
        await self.log.append(place, StepState.DONE, {"until_ms": self._clock.now_ms})

    async def ask(self, question: Question, deadline: Duration | None, name: str) -> Any:
        """Suspend the job until its question is answered, and return the answer."""
        place = self.log.next(name, StepKind.ASK)
        deadline_ms = self._deadline_ms(place, deadline)
        if place.stored is None:
            if self._has_asked:
                raise Suspended([])  # a job has one question at a time: this one is asked after the other
            self._has_asked = True
            self.log.wait_for(place, {"question": question.text, **_until(deadline_ms)})
            raise Suspended([Wait(question=question, deadline_ms=deadline_ms)])
        if place.stored.state == StepState.DONE:
            return place.stored.document["result"]
        if self._answer is not None:
            answer = self._answer["answer"]
            await self.log.append(place, StepState.DONE, {"result": answer})
            return answer
        await self._fail_if_late(place, deadline_ms, "was not answered")
        if self._is_woken and not self._has_asked:  # by the deadline of another step: it is asked again
            self._has_asked = True
            raise Suspended([Wait(question=question, deadline_ms=deadline_ms)])
        raise Suspended([Wait(until_ms=self._clock.now_ms + _LATER_MS)])  # claimed too early

    async def run_job(
        self, kind: str, payload: Any, options: Mapping[str, Any], deadline: Duration | None, name: str
    ) -> Any:
        """Schedule a job once, suspend this one until it has ended, and return its result."""
        place = self.log.next(name, StepKind.JOB)
        if place.stored is not None and place.stored.state == StepState.DONE:
            return read_stored(await self._result_text(place.stored.document))
        deadline_ms = self._deadline_ms(place, deadline)
        if place.stored is not None and place.stored.state == StepState.FAILED:
            raise JobNotSucceeded(place.stored.document["error"])
        if place.stored is None:
            if not await self._children.can_wait():
                raise Suspended([Wait(until_ms=self._clock.now_ms + _LATER_MS)])
            child_id = await self._children.schedule(self._job, place.number, kind, payload, options)
            self.log.wait_for(place, {"job_id": child_id, **_until(deadline_ms)})
            raise Suspended([Wait(job_id=child_id, deadline_ms=deadline_ms)])
        child_id = place.stored.document["job_id"]
        child = await self._children.find(child_id)
        if not child.has_ended:
            await self._fail_if_late(place, deadline_ms, f"has not ended: job {child_id} is {child.state}")
            raise Suspended([Wait(job_id=child_id, deadline_ms=deadline_ms)])
        try:
            result = await self._children.result(child)
        except JobNotSucceeded as error:
            failed = {"error": error.line[:_MAX_ERROR], "job_failures": self._job.failures}
            await self.log.append(place, StepState.FAILED, failed)
            raise
        return read_stored(await self._store(place, canonical(result)))

    async def wait_message(self, awaited: AwaitedMessage, deadline: Duration | None, name: str) -> Message:
        """Suspend the job until a message has come, and return it: no other consumer gets it."""
        place = self.log.next(name, StepKind.MESSAGE)
        if place.stored is not None and place.stored.state == StepState.DONE:
            return _message_of(await self._result_text(place.stored.document))
        deadline_ms = self._deadline_ms(place, deadline)
        claim = f"job:{self._job.job_id}/{place.number}"
        found = await self._waits.claim(awaited, claim, self.log.fence())
        if found.message is not None:
            effects = self._waits.acknowledge(found.message, claim)
            return _message_of(await self._store(place, _message_text(found.message), effects))
        await self._fail_if_late(place, deadline_ms, "did not come")
        if place.stored is None:
            self.log.wait_for(place, {"awaited": awaited._asdict(), **_until(deadline_ms)})
        awaited = awaited._replace(after_id=found.after_id)
        raise Suspended([Wait(message=awaited, deadline_ms=deadline_ms)])

    def wake_of(self, suspended: Suspended) -> Wake | None:
        """Return the op that wakes the suspended job, if one of its own does."""
        rows = suspended.wake_rows
        return Wake(new_key(), rows) if rows else None

    def recorded_waits(self, wake: Wake | None, *, has_children: bool) -> Sequence[Statement]:
        """Return the statements that store what a suspended job waits for, such as its children."""
        job_id = self._job.job_id
        waits = () if wake is None else self._waits.record(job_id, wake)
        notes = [self._cleanups.note(job_id)] if has_children else []
        return [*self.log.waiting_rows(), *waits, *notes]

    def _deadline_ms(self, place: Place, deadline: Duration | None) -> int | None:
        """Return the deadline of a step, which is fixed when it is first reached.

        Raises `StepTimedOut` if it has passed in an earlier attempt.
        """
        if place.stored is None:
            return None if deadline is None else self._clock.now_ms + _ms_of("deadline", deadline)
        document = place.stored.document
        if place.stored.state == StepState.FAILED and "deadline_ms" in document:
            raise StepTimedOut(document["error"], step=place.name)
        deadline_ms: int | None = document.get("deadline_ms")
        return deadline_ms

    async def _fail_if_late(self, place: Place, deadline_ms: int | None, what: str) -> None:
        """Store that a step has failed if its deadline has passed, and raise `StepTimedOut`."""
        if deadline_ms is None:
            return
        if self._clock.now_ms >= deadline_ms:
            error = f"step {place.name} {what} by its deadline"
        elif await self._is_ended_early(place, deadline_ms):
            error = f"step {place.name} {what} before the job was woken early"
        else:
            return
        failed = {"error": error, "job_failures": self._job.failures, "deadline_ms": deadline_ms}
        await self.log.append(place, StepState.FAILED, failed)
        raise StepTimedOut(error, step=place.name)

    async def _is_ended_early(self, place: Place, at_ms: int) -> bool:
        """Return whether an op has ended the stored wait of a step before its time."""
        if place.stored is None or at_ms <= self._clock.now_ms:
            return False
        if self._ended_early is None:
            self._ended_early = await self._early_wakes.ended_rows(self._job.job_id)
        return place.stored.seq in self._ended_early

    # --- recorded values -------------------------------------------------------------------------

    async def value(self, name: str, make: Callable[[], T]) -> T:
        """Return a value that is made once, and stored."""
        place = self.log.next(name, StepKind.VALUE)
        if place.stored is not None:
            stored: T = place.stored.document["result"]
            return stored
        made = make()
        await self.log.append(place, StepState.DONE, {"result": made})
        return made

    async def now(self) -> datetime:
        """Return the time of the mesh when the step was first reached."""
        at_ms = await self.value("now", lambda: self._clock.now_ms)
        return datetime.fromtimestamp(at_ms / 1_000, UTC)

    async def random(self) -> float:
        """Return a random number from 0 to 1, which is drawn once."""
        return await self.value("random", self._chance)

    async def version(self, name: str, version: int) -> int:
        """Return the version of a change at which this job passes it: 1 if it had passed it before."""
        if version < 1:
            raise BadValue(f"a version must be at least 1, got {version}")
        stored_as = f"version:{name}"
        if not self.log.is_next(stored_as, StepKind.VALUE):
            return 1
        return await self.value(stored_as, lambda: version)


async def gather(*steps: Awaitable[Any]) -> list[Any]:
    """Return the results of steps that run at the same time. The job waits for all of them together."""
    results = await asyncio.gather(*steps, return_exceptions=True)
    waits = [each for each in results if isinstance(each, Suspended)]
    for each in results:
        if isinstance(each, BaseException) and not isinstance(each, Suspended):
            raise each
    if waits:
        raise Suspended.merged(waits)
    return list(results)


async def run_step_function(call: Callable[[], Any], timeout_s: float | None) -> Any:
    """Call the function of a step, in a thread unless it is async."""
    if timeout_s is None:
        return await _run_function(call)
    async with asyncio.timeout(timeout_s):
        return await _run_function(call)


async def _run_function(call: Callable[[], Any]) -> Any:
    if _is_async(call.func if isinstance(call, partial) else call):
        return await call()
    # A function that is not async must not block the event loop.
    result = await asyncio.to_thread(copy_context().run, call)
    return await result if inspect.isawaitable(result) else result


def _is_async(function: Callable[..., Any]) -> bool:
    if type(function) is FunctionType and function.__code__.co_flags & inspect.CO_COROUTINE:
        return True  # the usual case, which is quick to see
    return inspect.iscoroutinefunction(function)


def _ms_of(name: str, duration: Duration) -> int:
    return round(seconds_of(name, duration) * 1_000)


def _until(deadline_ms: int | None) -> Mapping[str, int]:
    return {} if deadline_ms is None else {"deadline_ms": deadline_ms}


def _message_text(message: Message) -> str:
    """Return what is stored of a message: all that its sender has signed."""
    return canonical(dict(zip(WIRE_FIELDS, message, strict=False)))


def _message_of(text: str) -> Message:
    return Message(**read_stored(text))


async def _without_result(call: Callable[[], Any]) -> None:
    await run_step_function(call, None)


def _describe(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text[:_MAX_ERROR]
