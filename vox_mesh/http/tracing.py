"""Trace propagation: effects and logs of a request belong to the trace it names."""

from __future__ import annotations

from aiohttp import web

from vox_mesh.http.metrics.labels import Label
from vox_mesh.http.problems import Handler
from vox_mesh.model.base.traces import Trace
from vox_mesh.observability import tracing
from vox_mesh.observability.log_context import log_scope, trace_fields


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
