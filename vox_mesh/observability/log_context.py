"""The fields of log lines: the job in progress, the lock that is held, the message being handled.

They are kept in the context of the running task, and every task started by the work inherits them. Scopes
need not end in the order in which they began, nor in the same task: the generator of a message loop that is
left early is closed by another task. Logging itself is not changed: formatters call `log_fields()`.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from weakref import ref

if TYPE_CHECKING:
    from vox_mesh.model.jobs.records import Job
    from vox_mesh.model.locks.records import Lock
    from vox_mesh.model.messages.records import Message

_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED: Final = 1


class Trace(NamedTuple):
    """A position in a trace; both ids are lowercase hex."""

    trace_id: str
    span_id: str
    is_sampled: bool = True

    @classmethod
    def of_job(cls, job_id: str) -> Self:
        """Return the trace of a job, derived from its id so that all processes agree."""
        return cls(job_id[:32], job_id[32:48])

    @classmethod
    def read(cls, traceparent: str | None) -> Self | None:
        """Return the trace that a `traceparent` names; `None` if it is invalid."""
        match = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent)
        if match is None or not int(match[1], 16) or not int(match[2], 16):
            return None
        return cls(match[1], match[2], bool(int(match[3], 16) & _SAMPLED))

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"


_Fields = Mapping[str, Any]


class LogScope:
    """Add fields to the log lines within the block: `with log_scope(node="builder-1"):`."""

    __slots__ = ("_fields", "_is_left", "_task")

    def __init__(self, fields: _Fields | None) -> None:
        self._fields = fields
        self._task: ref[asyncio.Task[Any]] | None = None
        self._is_left = False

    @property
    def fields(self) -> _Fields:
        """Return the fields."""
        return self._fields or {}

    def __enter__(self) -> None:
        task = _current_task()
        self._task = None if task is None else ref(task)
        _scopes.set((*(each for each in _scopes.get() if not each.is_over()), self))

    def __exit__(self, *_: object) -> None:
        self._is_left = True
        _scopes.set(tuple(each for each in _scopes.get() if each is not self))

    def is_over(self) -> bool:
        """Return whether the block was left, if this is its task.

        Tasks that were started in the block keep its fields.
        """
        task = self._task() if self._is_left and self._task is not None else None
        return task is not None and task is _current_task()


_scopes: ContextVar[tuple[LogScope, ...]] = ContextVar("vox_mesh_log_fields", default=())


def log_scope(**fields: Any) -> LogScope:
    """Return a scope that adds these fields to log lines."""
    return LogScope(fields)


class _JobScope(LogScope):
    """Add the fields of a job. They are computed lazily, since most jobs log nothing."""

    __slots__ = ("_job",)

    def __init__(self, job: Job) -> None:
        super().__init__(None)
        self._job = job

    @property
    def fields(self) -> _Fields:
        """Return the fields."""
        if self._fields is None:
            self._fields = _fields_of_job(self._job)
        return self._fields


def job_scope(job: Job) -> LogScope:
    """Return a scope that adds the fields of a job to log lines."""
    return _JobScope(job)


def job_context(job: Job) -> Context:
    """Return a new context for the work on a job, with the fields of that job."""
    context = copy_context()
    context.run(_scopes.set, (*_scopes.get(), job_scope(job)))
    return context


def _fields_of_job(job: Job) -> _Fields:
    """Return the fields of a job. Its trace is known even where traces are not recorded."""
    fields = {
        "job": job.job_id,
        "kind": job.kind,
        "attempt": job.attempts,
        **trace_fields(Trace.of_job(job.job_id)),
    }
    return fields if job.claimer is None else {"node": job.claimer, **fields}


def lock_scope(lock: Lock) -> LogScope:
    """Return a scope that adds the fields of a lock to log lines."""
    return log_scope(
        node=lock.holder_node,
        agent=lock.holder_agent,
        lock=", ".join(lock.keys),
        fence_token=lock.fence_token,
    )


def message_scope(message: Message) -> LogScope:
    """Return a scope that adds the fields of a message to log lines."""
    trace = trace_fields(Trace.read(message.traceparent))
    return log_scope(agent=message.receiver_agent, message_uuid=message.message_uuid, **trace)


def trace_fields(trace: Trace | None) -> dict[str, str]:
    """Return the fields of a trace."""
    return {} if trace is None else {"trace_id": trace.trace_id, "span_id": trace.span_id}


def forget_message(message: Message) -> None:
    """Remove the fields of a message from log lines, even if its generator is not closed."""
    scopes = _scopes.get()
    _scopes.set(tuple(each for each in scopes if each.fields.get("message_uuid") != message.message_uuid))


def detached_context() -> Context:
    """Return a context for a task that outlives the work which starts it: only the node is kept."""
    context, node = Context(), _scope_fields().get("node")
    if node is not None:
        context.run(_scopes.set, (log_scope(node=node),))
    return context


def log_fields() -> dict[str, Any]:
    """Return the fields of a log line written now; the trace is that of the current span, if any."""
    return {**_scope_fields(), **_current_span()}


def _scope_fields() -> dict[str, Any]:
    return {
        name: value for each in _scopes.get() if not each.is_over() for name, value in each.fields.items()
    }


def _current_task() -> asyncio.Task[Any] | None:
    with suppress(RuntimeError):  # this thread has no loop
        return asyncio.current_task()
    return None


def _current_span() -> dict[str, str]:
    if "opentelemetry.trace" not in sys.modules:  # no span can have begun
        return {}
    from opentelemetry.trace import format_span_id, format_trace_id, get_current_span

    span = get_current_span().get_span_context()
    if not span.is_valid:
        return {}
    return trace_fields(Trace(format_trace_id(span.trace_id), format_span_id(span.span_id)))
