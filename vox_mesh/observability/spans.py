"""Spans, as OpenTelemetry has them. Loaded only where it is in use: go through `tracing`.

A sampler or a processor of spans may be anybody's, and OpenTelemetry lets through what it raises. Whatever
that is, jobs and messages go their way: it is logged once, and the span is lost.
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

from vox_mesh.model.base.traces import Trace
from vox_mesh.model.jobs.records import JobState
from vox_mesh.model.messages.records import Message

MAX_SPANS: Final = 100
"""So many jobs of one call have a span of their own."""

_log = logging.getLogger(__name__)

_NAME: Final = "vox-mesh"
_MAX_REASON: Final = 300
_SERVER_ERROR: Final = 500
_KINDS: Final = {"job schedule": SpanKind.PRODUCER, "job run": SpanKind.CONSUMER}

_Job = tuple[str, Mapping[str, Any]]
_P = ParamSpec("_P")
_T = TypeVar("_T")

_told: set[tuple[str, str]] = set()


# --- faults of others ----------------------------------------------------------------------------


def _tell(where: str, fault: Exception) -> None:
    kind = type(fault).__name__
    if (where, kind) not in _told:
        _told.add((where, kind))
        _log.warning(
            "a trace has gaps (%s), because OpenTelemetry failed: %s: %s; this is said once",
            *(where, kind, fault),
            exc_info=fault,
        )


def _harmless(call: Callable[_P, _T]) -> Callable[_P, _T | None]:
    """A call that gives nothing where it would raise."""

    @wraps(call)
    def harmless(*args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        try:
            return call(*args, **kwargs)
        except Exception as fault:
            _tell(call.__name__, fault)
            return None

    return harmless


def _harmless_block(
    block: Callable[_P, AbstractContextManager[_T]],
) -> Callable[_P, AbstractContextManager[_T | None]]:
    """A block that can be entered and left, whatever is wrong; what its body raises is raised."""

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
            _tell(self._name, fault)
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
                _tell(self._name, fault)


# --- spans ---------------------------------------------------------------------------------------


@_harmless
def listening() -> Spans | None:
    """Who makes spans for the provider that somebody has set up, if anybody has."""
    provider = get_tracer_provider()
    return None if isinstance(provider, ProxyTracerProvider) else Spans(provider)


class Spans:
    """Makes spans of jobs, messages and requests."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer(_NAME, version(_NAME))
        self._sampler = getattr(provider, "sampler", None)

    # --- jobs ------------------------------------------------------------------------------------

    @_harmless
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

    @_harmless_block
    @contextmanager
    def running(self, job_id: str, attributes: Mapping[str, Any]) -> Iterator[Span]:
        """The span of the work on a job, which is the current one meanwhile."""
        span = self._of_job("job run", job_id, attributes, get_current_span().get_span_context(), None)
        with use_span(span, end_on_exit=True, record_exception=False):
            yield span

    @_harmless
    def came_to(self, run: Span, state: str, reason: str | None) -> None:
        """How the work ended; what goes back to those that wait is no error."""
        run.set_attribute("vox.job.state", state)
        if state == JobState.FAILED:
            run.set_status(Status(StatusCode.ERROR, (reason or "")[:_MAX_REASON]))

    # --- messages and requests -------------------------------------------------------------------

    @_harmless_block
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

    @_harmless
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

    @_harmless_block
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

    @_harmless
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
