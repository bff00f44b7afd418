"""Labels and traces of requests: what metrics and log lines say about a request."""

from __future__ import annotations

from typing import Final, NamedTuple

from aiohttp import web

from vox_mesh.http.problems import Handler
from vox_mesh.model.base.histogram import OTHER
from vox_mesh.observability import tracing
from vox_mesh.observability.log_context import Trace, log_scope, trace_fields

_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class Label(NamedTuple):
    """A method, and the declared path of a route."""

    method: str
    route: str

    @classmethod
    def of(cls, request: web.Request) -> Label:
        """Return the label of a request."""
        resource = request.match_info.route.resource
        return cls(
            request.method if request.method in _METHODS else OTHER,
            OTHER if resource is None else resource.canonical,
        )


@web.middleware
async def continue_trace(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Continue the trace of a request, if it names one. Must be outside of `as_problems`."""
    label = Label.of(request)
    trace = Trace.read(request.headers.get("traceparent"))
    with log_scope(request=" ".join(label), **trace_fields(trace)):
        if trace is None:
            return await handler(request)
        with tracing.serving(str(trace), *label) as span:
            response = await handler(request)
            if span is not None:
                span.record_status(response.status)
            return response
