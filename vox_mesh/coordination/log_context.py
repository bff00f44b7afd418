"""What log lines are about: the job that is worked on, the lock that is held, the message in hand.

It is kept in the context of the running task, and whatever the work starts inherits it. Nothing of logging
itself is changed: whoever formats lines asks for `log_fields()`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from contextvars import Context, ContextVar, Token, copy_context
from typing import Any

from vox_mesh.model.jobs import Job
from vox_mesh.model.locks import Lock
from vox_mesh.model.messages import Message
from vox_mesh.model.traces import Trace

_Fields = Mapping[str, Any]

_told: ContextVar[_Fields] = ContextVar("vox_mesh_log_fields", default={})  # noqa: B039 - never changed


class Telling:
    """For as long as the block runs, lines tell this too: `with telling(node="builder-1"):`."""

    __slots__ = ("_before", "_fields")

    def __init__(self, fields: _Fields) -> None:
        self._fields = fields
        self._before: Token[_Fields] | None = None

    def __enter__(self) -> None:
        self._before = _told.set({**_told.get(), **self._fields})

    def __exit__(self, *_: object) -> None:
        assert self._before is not None
        with suppress(ValueError):  # a generator that another task closes: it is not said there
            _told.reset(self._before)


def telling(**fields: Any) -> Telling:
    """Have lines tell these fields."""
    return Telling(fields)


def of_job(job: Job) -> Telling:
    """Have lines tell which job they are about."""
    return Telling(_fields_of_job(job))


def job_context(job: Job) -> Context:
    """A context of its own for the work on a job, in which lines tell which one it is."""
    context = copy_context()
    context.run(lambda: _told.set({**_told.get(), **_fields_of_job(job)}))
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
    return Telling(_fields_of_message(message))


def _fields_of_message(message: Message) -> _Fields:
    trace = of_trace(Trace.read(message.traceparent))
    return {"agent": message.receiver_agent, "message_uuid": message.message_uuid, **trace}


def of_trace(trace: Trace | None) -> dict[str, str]:
    """The fields that name a trace."""
    return {} if trace is None else {"trace_id": trace.trace_id, "span_id": trace.span_id}


def done_with(message: Message) -> None:
    """From now on, lines are not about this message any more, also if its generator is left as it is."""
    told = _told.get()
    if told.get("message_uuid") == message.message_uuid:
        over = _fields_of_message(message)
        _told.set({name: value for name, value in told.items() if name not in over})


def apart() -> Context:
    """A context for what outlives the work that happens to begin it: only the node is the same."""
    context, node = Context(), _told.get().get("node")
    if node is not None:
        context.run(_told.set, {"node": node})
    return context


def log_fields() -> dict[str, Any]:
    """What a line that is written here and now is about; its trace is that of the current span, if any."""
    return {**_told.get(), **_current_span()}


def _current_span() -> dict[str, str]:
    if "opentelemetry.trace" not in sys.modules:  # then nobody can have begun one
        return {}
    from opentelemetry.trace import format_span_id, format_trace_id, get_current_span

    span = get_current_span().get_span_context()
    if not span.is_valid:
        return {}
    return of_trace(Trace(format_trace_id(span.trace_id), format_span_id(span.span_id)))
