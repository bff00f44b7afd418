"""Traces of jobs and messages, for OpenTelemetry; where nobody has set that up, nothing happens here.

OpenTelemetry is never loaded by this: whoever sets it up has done so. Until then, each of these calls costs
a look into a dictionary. None of them ever raises what OpenTelemetry does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from vox_mesh.model.jobs.records import Job
from vox_mesh.model.messages.records import Message

if TYPE_CHECKING:
    from vox_mesh.observability.spans import Spans

_API: Final = "opentelemetry.trace"
_NOTHING: Final[AbstractContextManager[None]] = nullcontext()
_UNTRACED: Final = 0

_AGAIN_S: Final = 1.0
"""How long it may take to be noticed that somebody has set it up."""

_spans: Spans | None = None
_look_at = 0.0

JobAndMore = tuple[str, Mapping[str, Any]]
"""A job's id, and what is to be told of it."""


def _listener() -> Spans | None:
    """Who takes spans, if anybody does. A provider is set once, and then for ever."""
    if _spans is not None or _API not in sys.modules or time.monotonic() < _look_at:
        return _spans
    return _find_listener()


def _find_listener() -> Spans | None:
    global _spans, _look_at
    _look_at = time.monotonic() + _AGAIN_S  # to ask takes longer than all else here
    try:
        from vox_mesh.observability import spans
    except Exception:  # another thread is just loading it, or it is only there in part
        return None
    _spans = spans.listening()
    return _spans


def is_on() -> bool:
    """Whether anybody takes spans, as it is now."""
    return _API in sys.modules and (_spans or _find_listener()) is not None


# --- jobs ----------------------------------------------------------------------------------------


def began() -> int:
    """When something begins that may be told of later."""
    return _UNTRACED if _listener() is None else time.time_ns()


def tell_of_jobs(name: str, jobs: Iterable[JobAndMore], since: int) -> None:
    """What was done to jobs, since it `began`: a span in the trace of each, of up to a hundred of them.

    If there are more, one more span, which belongs to the caller's own trace, has their number.
    """
    if since != _UNTRACED and (spans := _listener()) is not None:
        spans.of_jobs(name, jobs, since)


def about(job: Job, **more: Any) -> JobAndMore:
    """A job, as a span tells of it."""
    return job.job_id, {"vox.job.kind": job.kind, "vox.job.attempt": job.attempts, **more}


def running(job: Job) -> AbstractContextManager[Any]:
    """For as long as a job is worked on: spans of the work itself are below this one."""
    spans = _listener()
    return _NOTHING if spans is None else spans.running(*about(job))


def came_to(run: Any, state: str, reason: str | None) -> None:
    """How the work that is `running` ended."""
    if run is not None and (spans := _listener()) is not None:
        spans.came_to(run, state, reason)


# --- messages and requests -----------------------------------------------------------------------


def sending(traceparent: str | None, to: str) -> AbstractContextManager[str | None]:
    """For as long as a message is being sent; gives the trace that it is to carry, if nobody named one."""
    spans = _listener()
    return _NOTHING if spans is None else spans.sending(traceparent, to)


def received(message: Message) -> None:
    """A message is handed out."""
    if (spans := _listener()) is not None:
        spans.received(message)


def serving(traceparent: str, method: str, route: str) -> AbstractContextManager[Any]:
    """For as long as a request is served that names a trace; the answer's status is to be set."""
    spans = _listener()
    return _NOTHING if spans is None else spans.serving(traceparent, method, route)
