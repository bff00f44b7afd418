"""Traces: a job has one, whichever processes worked on it; without a collector, nothing happens."""

from __future__ import annotations

import json
import socket
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.cli.conftest import Ended, VoxCommand
from tools.fork_server import Program
from tools.forked import Process
from vox_mesh.observability.log_context import Trace

_PATIENCE_S: Final = 60.0
_SOON_S: Final = 25.0
"""Less than OpenTelemetry itself takes to give up on a collector that does not answer."""

_UNLOADED: Final = pytest.mark.skipif(
    find_spec("redis") is not None,
    reason="redis is installed: pybreaker loads it, and it OpenTelemetry",
)

_LIFE: Final = ("schedule", "claim", "run", "complete")

_HANDLERS: Final = """
from opentelemetry import trace
from vox_mesh import HandlerSet

handlers = HandlerSet()


@handlers.handles("example.traced")
async def work(context):
    with trace.get_tracer("mine").start_as_current_span("my work"):
        return 1


@handlers.handles("example.wrong")
async def fail(context):
    raise ValueError("no")
"""

_SCHEDULER: Final = """
import asyncio, json
from opentelemetry import trace
from vox_mesh import Mesh, load_settings
from vox_mesh.cli.node.traces import set_up_traces, shut_down

async def main():
    settings = load_settings()
    async with Mesh.open(settings) as mesh:
        set_up_traces(settings, mesh.identity.node_id)
        with trace.get_tracer("mine").start_as_current_span("the caller") as caller:
            kinds = ("example.traced", "example.wrong")
            jobs = [await mesh.jobs.schedule(kind, max_attempts=1) for kind in kinds]
            sent = await mesh.messages.send("reviewer", "look")
        reported = {"jobs": [each.job_id for each in jobs], "caller": caller.get_span_context().span_id}
        await mesh.messages.ack(*await mesh.messages.inbox("reviewer"))
        print(json.dumps({**reported, "traceparent": sent.traceparent}))
    shut_down()

asyncio.run(main())
"""


class Collector:
    """Takes what is sent over OTLP/HTTP."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        collector = self

        class Taker(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *words: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Taker)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def take(self, path: str, body: bytes) -> None:
        """Note all spans of a request."""
        assert path == "/v1/traces"
        for of_process in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = {each.key: each.value.string_value for each in of_process.resource.attributes}
            for scope in of_process.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        {
                            "name": span.name,
                            "trace": span.trace_id.hex(),
                            "span": span.span_id.hex(),
                            "parent": span.parent_span_id.hex(),
                            "links": [(each.trace_id.hex(), each.span_id.hex()) for each in span.links],
                            "is_error": span.status.code == span.status.STATUS_CODE_ERROR,
                            "began": span.start_time_unix_nano,
                            "resource": resource,
                            "attributes": {each.key: each.value.string_value for each in span.attributes},
                        }
                    )

    def of_trace(self, trace_id: str) -> dict[str, dict[str, Any]]:
        """The spans of one trace, by name."""
        found = defaultdict(list)
        for span in self.spans:
            if span["trace"] == trace_id:
                found[span["name"]].append(span)
        assert all(len(spans) == 1 for spans in found.values()), found
        return {name: spans[0] for name, spans in found.items()}


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector on loopback."""
    collector = Collector()
    thread = Thread(target=collector.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield collector
    finally:
        collector.server.shutdown()
        thread.join()
        collector.server.server_close()


@pytest.fixture
def vox(tmp_path: Path) -> VoxCommand:
    """Commands and programs on the file home, where handlers lie."""
    (tmp_path / "my_handlers.py").write_text(_HANDLERS)
    return VoxCommand.with_home(tmp_path)


def _run(vox: VoxCommand, code: str, *arguments: str) -> Ended:
    wanted = Program(arguments, vox.environment, code=code, folder=str(vox.folder))
    with Process(wanted) as process:
        out, err = process.communicate(_PATIENCE_S)
    return Ended(process.wait(), out, err)


def test_schedule_claim_run_and_complete_are_one_trace_across_processes(
    vox: VoxCommand, collector: Collector
) -> None:
    traced = vox.having(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    scheduled = _run(traced.having(VOX_MESH_NODE_ID="a"), _SCHEDULER)
    assert scheduled.code == 0, scheduled.err
    answer = json.loads(scheduled.out)
    worked = traced.having(VOX_MESH_NODE_ID="b", VOX_LOG_FORMAT="json")(
        *("worker", "run", "--handlers", "my_handlers:handlers", "--until-idle")
    )
    assert worked.code == 0, worked.err
    for job_id, is_wrong in zip(answer["jobs"], (False, True), strict=True):
        spans = collector.of_trace(job_id[:32])
        own = spans.pop("my work", None)
        assert set(spans) == {f"job {each}" for each in _LIFE}
        assert {each["parent"] for each in spans.values()} == {job_id[32:48]}
        assert {each["attributes"]["vox.job.id"] for each in spans.values()} == {job_id}
        assert (None if own is None else own["parent"]) == (None if is_wrong else spans["job run"]["span"])
        assert spans["job run"]["is_error"] is is_wrong
        assert spans["job complete"]["attributes"]["vox.job.state"] == ("failed" if is_wrong else "succeeded")
        by_time = sorted(spans.values(), key=lambda each: each["began"])
        assert [each["name"] for each in by_time] == [f"job {each}" for each in _LIFE]
        ((_, linked),) = spans["job schedule"]["links"]
        assert int(linked, 16) == answer["caller"]
        nodes = {each["name"]: each["resource"]["service.instance.id"] for each in by_time}
        assert nodes == {"job schedule": "a", "job claim": "b", "job run": "b", "job complete": "b"}
        assert {each["resource"]["service.name"] for each in by_time} == {"vox-mesh"}
    carried = Trace.read(answer["traceparent"])
    assert carried is not None
    of_caller = collector.of_trace(carried.trace_id)
    assert set(of_caller) == {"the caller", "message send", "message receive"}
    assert of_caller["message send"]["span"] == carried.span_id
    assert of_caller["message receive"]["parent"] == carried.span_id
    assert int(of_caller["message send"]["parent"], 16) == answer["caller"]


@contextmanager
def _silent() -> Iterator[str]:
    """A collector that takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def _absent() -> Iterator[str]:
    """A collector that is not there."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize("collector_of", [_silent, _absent])
def test_a_collector_that_is_away_keeps_no_one_from_working_and_ending(
    vox: VoxCommand, collector_of: Any
) -> None:
    job_id = vox("job", "schedule", "--kind", "example.traced", "--json").document["job_id"]
    with collector_of() as url:
        traced = vox.having(OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_EXPORTER_OTLP_TIMEOUT="600")
        arguments = ("worker", "run", "--handlers", "my_handlers:handlers", "--until-idle")
        with traced.launch(*arguments) as process:
            _, err = process.communicate(_SOON_S)
    assert process.wait() == 0
    assert "Traceback" not in err
    assert vox("job", "show", job_id, "--json").document["state"] == "succeeded"


# --- where no one takes them ---------------------------------------------------------------------

_WITHOUT: Final = """
import asyncio, os, sys

loaded = [name for name in sys.modules if name.startswith("opentelemetry")]
assert loaded == [], loaded

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())

from vox_mesh import Mesh, load_settings
from vox_mesh.cli.support.logs import set_up_logs
from vox_mesh.cli.node.traces import set_up_traces, shut_down
from vox_mesh.observability import tracing

async def main():
    settings = load_settings()
    set_up_logs("text")
    async with Mesh.open(settings) as mesh:
        set_up_traces(settings, mesh.identity.node_id)

        @mesh.worker.handles("example.echo")
        async def echo(context):
            return 1

        async with mesh.worker.running():
            job = await mesh.jobs.wait(await mesh.jobs.schedule("example.echo"), timeout=30)
        sent = await mesh.messages.send("reviewer", "look")
        (received,) = await mesh.messages.inbox("reviewer")
        print(job.state, sent.traceparent, received.traceparent, tracing.is_on())
    shut_down()

asyncio.run(main())
"""


@_UNLOADED
@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, ""),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
            "OTEL_EXPORTER_OTLP_ENDPOINT needs the extra",
        ),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "OTEL_TRACES_EXPORTER needs the extra"),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, ""),
        ({"OTEL_TRACES_EXPORTER": "smoke"}, "OTEL_TRACES_EXPORTER must be otlp or none, got smoke"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "protocol must be http/protobuf, got grpc",
        ),
    ],
)
def test_without_opentelemetry_all_goes_its_way_and_one_line_says_what_is_missing(
    vox: VoxCommand, variables: dict[str, str], words: str
) -> None:
    ended = _run(vox.having(VOX_MESH_ENABLED="0", **variables), _WITHOUT)
    assert (ended.code, ended.out) == (0, "succeeded None None False\n"), ended.err
    assert words in ended.err
    assert ended.err.count("\n") == (1 if words else 0), ended.err


_NODES: Final = """
import sys
from vox_mesh.cli.app import run

code = run(["nodes"])
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
sys.exit(code)
"""


@_UNLOADED
def test_a_plain_command_does_not_load_opentelemetry(vox: VoxCommand) -> None:
    vox("db", "init")
    ended = _run(vox.having(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1"), _NODES)
    assert ended.code == 0, ended.err


# --- how many ------------------------------------------------------------------------------------

_MANY: Final = """
import asyncio, json, sys
from collections import Counter
from datetime import timedelta
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from vox_mesh import Yield, Manifest, Mesh, load_settings

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)

def reported():
    spans = exporter.get_finished_spans()
    exporter.clear()
    return {
        "names": Counter(each.name for each in spans),
        "traces": sorted({f"{each.context.trace_id:032x}" for each in spans}),
        "counts": [each.attributes["vox.jobs"] for each in spans if "vox.jobs" in each.attributes],
    }

async def main():
    steps = []
    async with Mesh.open(load_settings()) as mesh:
        many = [Manifest.of(kind="example.many", payload=number) for number in range(300)]
        scheduled = await mesh.jobs.schedule_all(many)
        steps.append({**reported(), "jobs": [each.job_id for each in scheduled]})
        await mesh.jobs.abort(*scheduled[:2])
        await mesh.jobs.retry(scheduled[0])
        steps.append(reported())

        @mesh.worker.handles("example.back")
        async def back(context):
            if context.attempt == 1:
                raise Yield(delay=0)

        await mesh.jobs.wait(await ran(mesh), timeout=30)
        steps.append(reported())
    print(json.dumps(steps))

async def ran(mesh):
    async with mesh.worker.running():
        job = await mesh.jobs.schedule("example.back")
        await mesh.jobs.wait(job, timeout=30)
    return job

asyncio.run(main())
"""


def _steps(vox: VoxCommand, **variables: str) -> list[dict[str, Any]]:
    ended = _run(vox.having(VOX_MESH_ENABLED="0", **variables), _MANY)
    assert ended.code == 0, ended.err
    steps: list[dict[str, Any]] = json.loads(ended.out)
    return steps


def test_many_jobs_at_once_are_a_hundred_spans_and_one_with_their_number(vox: VoxCommand) -> None:
    many, few, back = _steps(vox)
    assert many["names"] == {"job schedule": 100, "job schedule (many)": 1}
    assert many["counts"] == [300]
    assert len(many["traces"]) == 101
    assert {job_id[:32] for job_id in many["jobs"][:100]} < set(many["traces"])
    assert few["names"] == {"job abort": 2, "job retry": 1, "job schedule": 1}
    ended = {"job yield": 1, "job complete": 1}
    assert back["names"] == {"job schedule": 1, "job claim": 2, "job run": 2, **ended}
    assert len(back["traces"]) == 1


@pytest.mark.parametrize("sampler", ["parentbased_traceidratio", "traceidratio"])
def test_which_jobs_are_traced_is_decided_as_if_their_traces_began_here(
    vox: VoxCommand, sampler: str
) -> None:
    variables = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": "0.25"}
    many = _steps(vox, **variables)[0]
    bound = round(0.25 * 2**64)
    expected = {job_id[:32] for job_id in many["jobs"][:100] if int(job_id[16:32], 16) < bound}
    assert 0 < len(expected) < 100
    assert set(many["traces"]) & {job_id[:32] for job_id in many["jobs"]} == expected


# --- where they can't be taken -------------------------------------------------------------------

_FAULTY: Final = """
import asyncio, json
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler
from vox_mesh import Mesh, load_settings
from vox_mesh.cli.support.logs import set_up_logs
from vox_mesh.observability import tracing
from vox_mesh.errors import BadValue

faulty = ""

def fail_at(place):
    if place == faulty:
        raise RuntimeError("no traces today")

class Processor(SpanProcessor):
    def on_start(self, span, parent_context=None):
        fail_at("on_start")
        if faulty == "set_attribute":
            span.set_attribute = lambda *_: fail_at("set_attribute")

    def on_end(self, span):
        fail_at("on_end")

class Moody(Sampler):
    def should_sample(self, *args, **kwargs):
        fail_at("should_sample")
        return ALWAYS_ON.should_sample(*args, **kwargs)

    def get_description(self):
        return "moody"

class Provider(TracerProvider):
    def get_tracer(self, *args, **kwargs):
        fail_at("get_tracer")
        return super().get_tracer(*args, **kwargs)

provider = Provider(sampler=Moody())
provider.add_span_processor(Processor())
trace.set_tracer_provider(provider)

async def main():
    global faulty
    set_up_logs("text")
    faulty, reported = "get_tracer", {}
    assert not tracing.is_on()
    faulty = ""
    assert tracing.is_on()
    async with Mesh.open(load_settings()) as mesh:

        @mesh.worker.handles("example.echo")
        async def echo(context):
            return 1

        @mesh.worker.handles("example.wrong")
        async def wrong(context):
            raise ValueError("no")

        for faulty in ("on_start", "on_end", "should_sample", "set_attribute"):
            reported[faulty] = await told_of(mesh)
    print(json.dumps(reported))

async def told_of(mesh):
    reported = []
    async with mesh.worker.running():
        for kind in ("example.echo", "example.wrong"):
            job = await mesh.jobs.schedule(kind, faulty, max_attempts=1)
            ended = await mesh.jobs.wait(job, timeout=30)
            reported.append([ended.state, ended.attempts, ended.reason])
    await mesh.messages.send("reviewer", faulty)
    received = await mesh.messages.inbox("reviewer")
    await mesh.messages.ack(*received)
    reported.append([each.body for each in received])
    try:
        await mesh.messages.send("reviewer", faulty, msg_type="")
    except BadValue:
        reported.append("refused")
    error = asyncio.CancelledError()
    try:
        with tracing.serving("00-" + "1" * 32 + "-" + "2" * 16 + "-01", "GET", "/") as span:
            if span is not None:
                span.record_status(200)
            raise error
    except asyncio.CancelledError as raised:
        reported.append(raised is error)
    return [*reported, trace.get_current_span() is trace.INVALID_SPAN]

asyncio.run(main())
"""


def test_a_tracer_that_fails_is_reported_once_and_changes_nothing_else(vox: VoxCommand) -> None:
    ended = _run(vox.having(VOX_MESH_ENABLED="0"), _FAULTY)
    assert ended.code == 0, ended.err
    succeeded, failed = ["succeeded", 1, None], ["failed", 1, "ValueError: no"]
    assert json.loads(ended.out) == {
        place: [succeeded, failed, [place], "refused", True, True]
        for place in ("on_start", "on_end", "should_sample", "set_attribute")
    }
    lines = ended.err.splitlines()
    calls = (
        *("find_spans", "record_jobs", "running", "record_outcome"),
        *("sending", "record_received", "serving", "record_status"),
    )
    assert sorted(lines) == sorted(
        f"warning: trace incomplete, OpenTelemetry failed: call={call} error="
        "RuntimeError: no traces today (logged once)"
        for call in calls
    )
