"""Spans, by OpenTelemetry. Loaded only where it is in use: call the functions of `tracing`.

Samplers and span processors are foreign code, and OpenTelemetry does not catch their exceptions. They never
affect jobs and messages: an exception is logged once, and the span is lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from importlib.metadata import version
from itertools import islice
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    ProxyTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TracerProvider,
    get_current_span,
    get_tracer_provider,
    set_span_in_context,
    use_span,
)

from vox_mesh.model.jobs.records import JobState
from vox_mesh.model.messages.records import Message
from vox_mesh.observability.log_context import Trace

MAX_SPANS: Final = 100
"""How many jobs of one call get a span of their own."""

_log = logging.getLogger(__name__)

_NAME: Final = "vox-mesh"
_MAX_REASON: Final = 300
_SERVER_ERROR: Final = 500
_KINDS: Final = {"job schedule": SpanKind.PRODUCER, "job run": SpanKind.CONSUMER}

_Job = tuple[str, Mapping[str, Any]]
_P = ParamSpec("_P")
_T = TypeVar("_T")

_reported: set[tuple[str, str]] = set()


# --- exceptions of foreign code ------------------------------------------------------------------


def _report_once(where: str, fault: Exception) -> None:
    kind = type(fault).__name__
    if (where, kind) not in _reported:
        _reported.add((where, kind))
        _log.warning(
            "trace incomplete, OpenTelemetry failed: call=%s error=%s: %s (logged once)",
            where,
            kind,
            fault,
            exc_info=fault,
        )


def _harmless(call: Callable[_P, _T]) -> Callable[_P, _T | None]:
    """Return a function that returns `None` instead of raising."""

    @wraps(call)
    def harmless(*args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        try:
            return call(*args, **kwargs)
        except Exception as fault:
            _report_once(call.__name__, fault)
            return None

    return harmless


def _harmless_block(
    block: Callable[_P, AbstractContextManager[_T]],
) -> Callable[_P, AbstractContextManager[_T | None]]:
    """Return a context manager that never raises by itself; exceptions of its body pass through."""

    @wraps(block)
    def harmless(*args: _P.args, **kwargs: _P.kwargs) -> _HarmlessBlock[_T]:
        return _HarmlessBlock(block.__name__, block(*args, **kwargs))

    return harmless


class _HarmlessBlock(AbstractContextManager[_T | None]):
    def __init__(self, name: str, block: AbstractContextManager[_T]) -> None:
        self._name = name
        self._block = block
        self._is_entered = False

    def __enter__(self) -> _T | None:
        try:
            entered = self._block.__enter__()
        except Exception as fault:
            _report_once(self._name, fault)
            return None
        self._is_entered = True
        return entered

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_entered:
            try:
                self._block.__exit__(kind, error, trace)
            except Exception as fault:
                _report_once(self._name, fault)


# --- spans ---------------------------------------------------------------------------------------


@_harmless
def find_spans() -> Spans | None:
    """Return a maker of spans for the configured tracer provider; `None` if there is none."""
    provider = get_tracer_provider()
    return None if isinstance(provider, ProxyTracerProvider) else Spans(provider)


class Spans:
    """Make spans of jobs, messages and requests."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer(_NAME, version(_NAME))
        self._sampler = getattr(provider, "sampler", None)

    # --- jobs ------------------------------------------------------------------------------------

    @_harmless
    def record_jobs(self, name: str, jobs: Iterable[_Job], since: int) -> None:
        """Record spans of jobs that began at `since` and end now; see `tracing.record_jobs`."""
        now, caller = time.time_ns(), get_current_span().get_span_context()
        left = iter(jobs)
        first = list(islice(left, MAX_SPANS))
        more = sum(1 for _ in left)
        if more:
            count = {"vox.jobs": len(first) + more}
            batch = self._tracer.start_span(f"{name} (many)", attributes=count, start_time=since)
            batch.end(now)
            caller = batch.get_span_context()
        for job_id, attributes in first:
            self._start_job_span(name, job_id, attributes, caller, since).end(now)

    def _start_job_span(
        self, name: str, job_id: str, attributes: Mapping[str, Any], caller: SpanContext, since: int | None
    ) -> Span:
        trace = Trace.of_job(job_id)
        is_sampled = self._is_sampled(int(trace.trace_id, 16), name)
        is_other = caller.is_valid and caller.trace_id != int(trace.trace_id, 16)
        return self._tracer.start_span(
            name,
            context=_child_context(trace._replace(is_sampled=is_sampled)),
            kind=_KINDS.get(name, SpanKind.INTERNAL),
            attributes={"vox.job.id": job_id, **attributes},
            links=[Link(caller)] if is_other else [],
            start_time=since,
        )

    def _is_sampled(self, trace_id: int, name: str) -> bool:
        """Return whether the trace is sampled, as the provider decides for a root span.

        All spans of a job have a virtual parent, whose sampling flag they would follow otherwise.
        """
        if self._sampler is None:
            return True
        is_sampled: bool = self._sampler.should_sample(Context(), trace_id, name).decision.is_sampled()
        return is_sampled

    @_harmless_block
    @contextmanager
    def running(self, job_id: str, attributes: Mapping[str, Any]) -> Iterator[Span]:
        """Make the span of the work on a job the current one."""
        span = self._start_job_span(
            "job run", job_id, attributes, get_current_span().get_span_context(), None
        )
        with use_span(span, end_on_exit=True, record_exception=False):
            yield span

    @_harmless
    def record_outcome(self, run: Span, state: str, reason: str | None) -> None:
        """Record the outcome of the work; a retry is no error."""
        run.set_attribute("vox.job.state", state)
        if state == JobState.FAILED:
            run.set_status(Status(StatusCode.ERROR, (reason or "")[:_MAX_REASON]))

    # --- messages and requests -------------------------------------------------------------------

    @_harmless_block
    @contextmanager
    def sending(self, traceparent: str | None, to: str) -> Iterator[str | None]:
        """Make the span of a message being sent, below the one it names or the current one."""
        named = Trace.read(traceparent)
        span = self._tracer.start_span(
            "message send",
            context=None if named is None else _child_context(named),
            kind=SpanKind.PRODUCER,
            attributes={"vox.message.receiver": to},
        )
        with use_span(span, end_on_exit=True, record_exception=False):
            yield _traceparent(span) if traceparent is None else None

    @_harmless
    def record_received(self, message: Message) -> None:
        """Record a short span; it does not cover the handling of the message."""
        named = Trace.read(message.traceparent)
        self._tracer.start_span(
            "message receive",
            context=None if named is None else _child_context(named),
            kind=SpanKind.CONSUMER,
            attributes={
                "messaging.message.id": message.message_uuid,
                "vox.message.sender": message.sender_agent,
                "vox.message.receiver": message.receiver_agent,
                "vox.message.attempt": message.delivery_attempts,
            },
        ).end()

    @_harmless_block
    @contextmanager
    def serving(self, traceparent: str, method: str, route: str) -> Iterator[ServedSpan | None]:
        """Make the span of a request; `None` if it names no valid trace."""
        named = Trace.read(traceparent)
        if named is None:
            yield None
            return
        span = self._tracer.start_span(
            f"{method} {route}",
            context=_child_context(named),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "http.route": route},
        )
        with use_span(span, end_on_exit=True, record_exception=False):
            yield ServedSpan(span)


class ServedSpan:
    """The span of a request that is being served."""

    def __init__(self, span: Span) -> None:
        self._span = span

    @_harmless
    def record_status(self, status: int) -> None:
        """Record the status of the response."""
        self._span.set_attribute("http.response.status_code", status)
        if status >= _SERVER_ERROR:
            self._span.set_status(Status(StatusCode.ERROR))


def _child_context(trace: Trace) -> Context:
    """Return the context of a child of a remote span."""
    flags = TraceFlags(TraceFlags.SAMPLED if trace.is_sampled else TraceFlags.DEFAULT)
    parent = SpanContext(int(trace.trace_id, 16), int(trace.span_id, 16), is_remote=True, trace_flags=flags)
    return set_span_in_context(NonRecordingSpan(parent), Context())


def _traceparent(span: Span) -> str | None:
    context = span.get_span_context()
    if not context.is_valid:
        return None
    is_sampled = bool(context.trace_flags & TraceFlags.SAMPLED)
    return str(Trace(f"{context.trace_id:032x}", f"{context.span_id:016x}", is_sampled))
