"""What log lines are about: the job that is worked on, the lock that is held, the message in hand.

It is kept in the context of the running task, and whatever the work starts inherits it. It need not end in
the order in which it began, nor in the same task: a loop over messages that is left is closed by others.
Nothing of logging itself is changed: whoever formats lines asks for `log_fields()`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any
from weakref import ref

from vox_mesh.model.base.traces import Trace
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.locks.records import Lock
from vox_mesh.model.messages.records import Message

_Fields = Mapping[str, Any]


class Telling:
    """For as long as the block runs, lines tell this too: `with telling(node="builder-1"):`."""

    __slots__ = ("_fields", "_is_left", "_task")

    def __init__(self, fields: _Fields | None) -> None:
        self._fields = fields
        self._task: ref[asyncio.Task[Any]] | None = None
        self._is_left = False

    @property
    def fields(self) -> _Fields:
        """What is told."""
        return self._fields or {}

    def __enter__(self) -> None:
        task = _current_task()
        self._task = None if task is None else ref(task)
        _told.set((*(each for each in _told.get() if not each.is_over()), self))

    def __exit__(self, *_: object) -> None:
        self._is_left = True
        _told.set(tuple(each for each in _told.get() if each is not self))

    def is_over(self) -> bool:
        """Whether the block has been left, if this is its task: what was started in it goes on telling."""
        task = self._task() if self._is_left and self._task is not None else None
        return task is not None and task is _current_task()


_told: ContextVar[tuple[Telling, ...]] = ContextVar("vox_mesh_log_fields", default=())


def telling(**fields: Any) -> Telling:
    """Have lines tell these fields."""
    return Telling(fields)


class _TellingOfJob(Telling):
    """The same of a job: most are worked on without a word, so that what it is is found when it is told."""

    __slots__ = ("_job",)

    def __init__(self, job: Job) -> None:
        super().__init__(None)
        self._job = job

    @property
    def fields(self) -> _Fields:
        """What is told."""
        if self._fields is None:
            self._fields = _fields_of_job(self._job)
        return self._fields


def of_job(job: Job) -> Telling:
    """Have lines tell which job they are about."""
    return _TellingOfJob(job)


def job_context(job: Job) -> Context:
    """A context of its own for the work on a job, in which lines tell which one it is."""
    context = copy_context()
    context.run(_told.set, (*_told.get(), of_job(job)))
    return context


def _fields_of_job(job: Job) -> _Fields:
    """What there is to tell of a job. Its trace is known also where nobody records traces."""
    fields = {
        "job": job.job_id,
        "kind": job.kind,
        "attempt": job.attempts,
        **of_trace(Trace.of_job(job.job_id)),
    }
    return fields if job.claimer is None else {"node": job.claimer, **fields}


def of_lock(lock: Lock) -> Telling:
    """Have lines tell which lock they are under."""
    return telling(
        node=lock.holder_node,
        agent=lock.holder_agent,
        lock=", ".join(lock.keys),
        fence_token=lock.fence_token,
    )


def of_message(message: Message) -> Telling:
    """Have lines tell which message they are about."""
    trace = of_trace(Trace.read(message.traceparent))
    return telling(agent=message.receiver_agent, message_uuid=message.message_uuid, **trace)


def of_trace(trace: Trace | None) -> dict[str, str]:
    """The fields that name a trace."""
    return {} if trace is None else {"trace_id": trace.trace_id, "span_id": trace.span_id}


def done_with(message: Message) -> None:
    """From now on, lines are not about this message any more, also if its generator is left as it is."""
    told = _told.get()
    _told.set(tuple(each for each in told if each.fields.get("message_uuid") != message.message_uuid))


def apart() -> Context:
    """A context for what outlives the work that happens to begin it: only the node is the same."""
    context, node = Context(), _fields_told().get("node")
    if node is not None:
        context.run(_told.set, (telling(node=node),))
    return context


def log_fields() -> dict[str, Any]:
    """What a line that is written here and now is about; its trace is that of the current span, if any."""
    return {**_fields_told(), **_current_span()}


def _fields_told() -> dict[str, Any]:
    return {name: value for each in _told.get() if not each.is_over() for name, value in each.fields.items()}


def _current_task() -> asyncio.Task[Any] | None:
    with suppress(RuntimeError):  # this thread has no loop
        return asyncio.current_task()
    return None


def _current_span() -> dict[str, str]:
    if "opentelemetry.trace" not in sys.modules:  # then nobody can have begun one
        return {}
    from opentelemetry.trace import format_span_id, format_trace_id, get_current_span

    span = get_current_span().get_span_context()
    if not span.is_valid:
        return {}
    return of_trace(Trace(format_trace_id(span.trace_id), format_span_id(span.span_id)))
