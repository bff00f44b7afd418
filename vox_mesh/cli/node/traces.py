"""Traces: exported to the collector that OpenTelemetry's variables name; needs the extra `otel`."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Final

from vox_mesh.observability import tracing
from vox_mesh.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_log = logging.getLogger(__name__)

FLUSH_S: Final = 2.0
"""How long the export of the last spans may take."""

_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OTLP: Final = "otlp"
_HTTP: Final = "http/protobuf"
_SERVICE: Final = "service.name"

_provider: TracerProvider | None = None


def set_up_traces(settings: Settings, node_id: str) -> None:
    """Start to export spans if the environment asks for it; log a warning if that is impossible."""
    global _provider
    variable = _requesting_variable()
    if variable is None or tracing.is_on():  # already set up, such as by `opentelemetry-instrument`
        return
    if (protocol := _first(_PROTOCOLS)[1]) not in ("", _HTTP):
        _log.warning("traces disabled: protocol must be %s, got %s", _HTTP, protocol)
        return
    try:
        _provider = _new_provider(settings, node_id)
    except ImportError:
        _log.warning("traces disabled: %s needs the extra, pip install 'vox-mesh[otel]'", variable)
    except Exception as error:  # a variable that OpenTelemetry rejects must not stop a node
        _log.warning("traces disabled: %s", error)


def shut_down() -> None:
    """Export the remaining spans, for at most `FLUSH_S`."""
    global _provider
    if _provider is None:
        return
    # A collector that does not answer would block this for all of the exporter's retries.
    ending = threading.Thread(target=_provider.shutdown, name="vox-mesh-traces", daemon=True)
    ending.start()
    ending.join(FLUSH_S)
    _provider = None


def _requesting_variable() -> str | None:
    """Return the variable that asks for traces, if any."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporter = os.environ.get(_EXPORTER, "").strip().lower()
    if exporter == _OTLP:
        return _EXPORTER
    if exporter == "":
        return _first(_ENDPOINTS)[0]
    if exporter != "none":
        _log.warning("traces disabled: %s must be %s or none, got %s", _EXPORTER, _OTLP, exporter)
    return None


def _first(variables: tuple[str, ...]) -> tuple[str | None, str]:
    """Return the first variable that is set, and its value."""
    for each in variables:
        if value := os.environ.get(each, "").strip():
            return each, value
    return None, ""


def _new_provider(settings: Settings, node_id: str) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import set_tracer_provider

    attributes = {
        "service.instance.id": node_id,
        "vox.scope": settings.scope_id,
        "vox.repository": settings.repository_id,
    }
    own_name = os.environ.get("OTEL_SERVICE_NAME") or (
        f"{_SERVICE}=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    )
    if not own_name:
        attributes[_SERVICE] = "vox-mesh"
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    set_tracer_provider(provider)
    tracing.is_on()  # enable it before the first span
    return provider
