"""Traces of jobs and messages, for OpenTelemetry; without a configured provider, nothing happens here.

This module never loads OpenTelemetry. Until the application has set it up, each of these calls costs a
dictionary lookup. None of them raises exceptions of OpenTelemetry.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from vox_mesh.model.jobs.records import Job
    from vox_mesh.model.messages.records import Message
    from vox_mesh.observability.spans import Spans

_API: Final = "opentelemetry.trace"
_NOTHING: Final[AbstractContextManager[None]] = nullcontext()
_UNTRACED: Final = 0

_RECHECK_DELAY_S: Final = 1.0
"""How long it may take until a new tracer provider is noticed."""

_spans: Spans | None = None
_next_check_at = 0.0

JobAndMore = tuple[str, Mapping[str, Any]]
"""A job's id, and the attributes of its span."""


def _active_spans() -> Spans | None:
    """Return the maker of spans, if there is one. A provider is set once and for all."""
    if _spans is not None or _API not in sys.modules or time.monotonic() < _next_check_at:
        return _spans
    return _find_spans()


def _find_spans() -> Spans | None:
    global _spans, _next_check_at
    _next_check_at = time.monotonic() + _RECHECK_DELAY_S  # checking takes longer than everything else here
    try:
        from vox_mesh.observability import spans
    except Exception:  # another thread is loading it, or it is installed only in part
        return None
    _spans = spans.find_spans()
    return _spans


def is_on() -> bool:
    """Return whether spans are recorded now."""
    return _API in sys.modules and (_spans or _find_spans()) is not None


# --- jobs ----------------------------------------------------------------------------------------


def began() -> int:
    """Return the start time for `record_jobs`."""
    return _UNTRACED if _active_spans() is None else time.time_ns()


def record_jobs(name: str, jobs: Iterable[JobAndMore], since: int) -> None:
    """Record a span in the trace of each job, up to a hundred, from `since` (see `began`) until now.

    If there are more, one more span in the caller's own trace has their number.
    """
    if since != _UNTRACED and (spans := _active_spans()) is not None:
        spans.record_jobs(name, jobs, since)


def about(job: Job, **more: Any) -> JobAndMore:
    """Return a job's id and the attributes of its span."""
    return job.job_id, {"vox.job.kind": job.kind, "vox.job.attempt": job.attempts, **more}


def running(job: Job) -> AbstractContextManager[Any]:
    """Return a block for the work on a job: the spans of the work are below its span."""
    spans = _active_spans()
    return _NOTHING if spans is None else spans.running(*about(job))


def record_outcome(run: Any, state: str, reason: str | None) -> None:
    """Record the outcome of the work that is `running`."""
    if run is not None and (spans := _active_spans()) is not None:
        spans.record_outcome(run, state, reason)


# --- messages and requests -----------------------------------------------------------------------


def sending(traceparent: str | None, to: str) -> AbstractContextManager[str | None]:
    """Return a block for sending a message; it yields the trace to carry if none was given."""
    spans = _active_spans()
    return _NOTHING if spans is None else spans.sending(traceparent, to)


def record_received(message: Message) -> None:
    """Record that a message is handed out."""
    if (spans := _active_spans()) is not None:
        spans.record_received(message)


def serving(traceparent: str, method: str, route: str) -> AbstractContextManager[Any]:
    """Return a block for serving a request that names a trace; set the response status on its span."""
    spans = _active_spans()
    return _NOTHING if spans is None else spans.serving(traceparent, method, route)
