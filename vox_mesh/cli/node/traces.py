"""Traces: sent to a collector that OpenTelemetry's variables name, if the extra `otel` is installed."""

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
"""How long the last spans may take to be sent."""

_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OTLP: Final = "otlp"
_HTTP: Final = "http/protobuf"
_SERVICE: Final = "service.name"

_provider: TracerProvider | None = None


def set_up_traces(settings: Settings, node_id: str) -> None:
    """Send spans from now on, if that is wanted; if it is and can't be, that is said. It is no error."""
    global _provider
    variable = _wanted()
    if variable is None or tracing.is_on():  # somebody else has set it up, as `opentelemetry-instrument` does
        return
    if (protocol := _first(_PROTOCOLS)[1]) not in ("", _HTTP):
        _log.warning("traces are sent over %s only, not over %s: none are sent", _HTTP, protocol)
        return
    try:
        _provider = _new_provider(settings, node_id)
    except ImportError:
        _log.warning("%s is set, but traces need more: pip install 'vox-mesh[otel]'; none are sent", variable)
    except Exception as error:  # a variable that OpenTelemetry can't read must not keep a node from its work
        _log.warning("traces can't be set up, none are sent: %s", error)


def shut_down() -> None:
    """Send what is left, for so long at the most."""
    global _provider
    if _provider is None:
        return
    # A collector that does not answer would keep us for as long as each of its retries may take.
    ending = threading.Thread(target=_provider.shutdown, name="vox-mesh-traces", daemon=True)
    ending.start()
    ending.join(FLUSH_S)
    _provider = None


def _wanted() -> str | None:
    """The variable that asks for traces."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporter = os.environ.get(_EXPORTER, "").strip().lower()
    if exporter == _OTLP:
        return _EXPORTER
    if exporter == "":
        return _first(_ENDPOINTS)[0]
    if exporter != "none":
        _log.warning("%s=%s is not known here: %s or none", _EXPORTER, exporter, _OTLP)
    return None


def _first(variables: tuple[str, ...]) -> tuple[str | None, str]:
    """The first of the variables that is set, and its value."""
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
    tracing.is_on()  # from the first span on
    return provider
