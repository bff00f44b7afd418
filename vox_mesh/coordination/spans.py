"""Spans, as OpenTelemetry has them. Loaded only where it is in use: go through `tracing`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from itertools import islice
from typing import Any, Final

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

from vox_mesh.model.jobs import JobState
from vox_mesh.model.messages import Message
from vox_mesh.model.traces import Trace

MAX_SPANS: Final = 100
"""So many jobs of one call have a span of their own."""

_NAME: Final = "vox-mesh"
_MAX_REASON: Final = 300
_SERVER_ERROR: Final = 500
_KINDS: Final = {"job schedule": SpanKind.PRODUCER, "job run": SpanKind.CONSUMER}

_Job = tuple[str, Mapping[str, Any]]


def listening_provider() -> TracerProvider | None:
    """The provider that somebody has set up."""
    provider = get_tracer_provider()
    return None if isinstance(provider, ProxyTracerProvider) else provider


class Spans:
    """Makes spans of jobs, messages and requests."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer(_NAME, version(_NAME))
        self._sampler = getattr(provider, "sampler", None)

    # --- jobs ------------------------------------------------------------------------------------

    def of_jobs(self, name: str, jobs: Iterable[_Job], since: int) -> None:
        """Spans that began then and end now; see `tracing.tell_of_jobs`."""
        now, caller = time.time_ns(), get_current_span().get_span_context()
        left = iter(jobs)
        first = list(islice(left, MAX_SPANS))
        more = sum(1 for _ in left)
        if more:
            told = {"vox.jobs": len(first) + more}
            batch = self._tracer.start_span(f"{name} (many)", attributes=told, start_time=since)
            batch.end(now)
            caller = batch.get_span_context()
        for job_id, attributes in first:
            self._of_job(name, job_id, attributes, caller, since).end(now)

    def _of_job(
        self, name: str, job_id: str, attributes: Mapping[str, Any], caller: SpanContext, since: int | None
    ) -> Span:
        trace = Trace.of_job(job_id)
        is_sampled = self._samples(int(trace.trace_id, 16), name)
        is_other = caller.is_valid and caller.trace_id != int(trace.trace_id, 16)
        return self._tracer.start_span(
            name,
            context=_below(trace._replace(is_sampled=is_sampled)),
            kind=_KINDS.get(name, SpanKind.INTERNAL),
            attributes={"vox.job.id": job_id, **attributes},
            links=[Link(caller)] if is_other else [],
            start_time=since,
        )

    def _samples(self, trace_id: int, name: str) -> bool:
        """Whether the trace is taken: as the provider decides for one that begins there.

        All spans of a job have a parent that nobody has ever seen, and would else follow what that says.
        """
        if self._sampler is None:
            return True
        is_sampled: bool = self._sampler.should_sample(Context(), trace_id, name).decision.is_sampled()
        return is_sampled

    @contextmanager
    def running(self, job_id: str, attributes: Mapping[str, Any]) -> Iterator[Span]:
        """The span of the work on a job, which is the current one meanwhile."""
        span = self._of_job("job run", job_id, attributes, get_current_span().get_span_context(), None)
        with use_span(span, end_on_exit=True, record_exception=False):
            yield span

    def came_to(self, run: Span, state: str, reason: str | None) -> None:
        """How the work ended; what goes back to those that wait is no error."""
        run.set_attribute("vox.job.state", state)
        if state == JobState.FAILED:
            run.set_status(Status(StatusCode.ERROR, (reason or "")[:_MAX_REASON]))

    # --- messages and requests -------------------------------------------------------------------

    @contextmanager
    def sending(self, traceparent: str | None, to: str) -> Iterator[str | None]:
        """The span of a message being sent, below the one it names or else the current one."""
        named = Trace.read(traceparent)
        span = self._tracer.start_span(
            "message send",
            context=None if named is None else _below(named),
            kind=SpanKind.PRODUCER,
            attributes={"vox.message.receiver": to},
        )
        with use_span(span, end_on_exit=True, record_exception=False):
            yield _written(span) if traceparent is None else None

    def received(self, message: Message) -> None:
        """A short span: how long it is worked on is up to whoever has it now."""
        named = Trace.read(message.traceparent)
        self._tracer.start_span(
            "message receive",
            context=None if named is None else _below(named),
            kind=SpanKind.CONSUMER,
            attributes={
                "messaging.message.id": message.message_uuid,
                "vox.message.sender": message.sender_agent,
                "vox.message.receiver": message.receiver_agent,
                "vox.message.attempt": message.delivery_attempts,
            },
        ).end()

    @contextmanager
    def serving(self, traceparent: str, method: str, route: str) -> Iterator[ServedSpan | None]:
        """The span of a request; none, if it names no trace after all."""
        named = Trace.read(traceparent)
        if named is None:
            yield None
            return
        span = self._tracer.start_span(
            f"{method} {route}",
            context=_below(named),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "http.route": route},
        )
        with use_span(span, end_on_exit=True, record_exception=False):
            yield ServedSpan(span)


class ServedSpan:
    """The span of a request that is being served."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def answered(self, status: int) -> None:
        """It was answered so."""
        self._span.set_attribute("http.response.status_code", status)
        if status >= _SERVER_ERROR:
            self._span.set_status(Status(StatusCode.ERROR))


def _below(trace: Trace) -> Context:
    """The context of what follows in a trace of somebody else."""
    flags = TraceFlags(TraceFlags.SAMPLED if trace.is_sampled else TraceFlags.DEFAULT)
    parent = SpanContext(int(trace.trace_id, 16), int(trace.span_id, 16), is_remote=True, trace_flags=flags)
    return set_span_in_context(NonRecordingSpan(parent), Context())


def _written(span: Span) -> str | None:
    context = span.get_span_context()
    if not context.is_valid:
        return None
    is_sampled = bool(context.trace_flags & TraceFlags.SAMPLED)
    return str(Trace(f"{context.trace_id:032x}", f"{context.span_id:016x}", is_sampled))
