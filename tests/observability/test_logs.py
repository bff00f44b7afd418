"""Logs: one event per line, about what they are about, and nothing in them that should not be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from aiohttp import web

from tests.cli.conftest import Ended, VoxCommand
from tools.fork_server import Program
from tools.forked import Process
from tools.homes import MEMORY
from vox_mesh import Job, Mesh
from vox_mesh.http.tracing import continue_trace
from vox_mesh.observability.log_context import detached_context, job_scope, log_fields, log_scope

_PATIENCE_S: Final = 60.0
_TRACE: Final = f"00-{'ab' * 16}-{'cd' * 8}-01"
_TOKEN: Final = "a-token-of-the-mesh-that-no-one-may-see"

HANDLERS: Final = """
import logging
import threading

from vox_mesh import HandlerSet

handlers = HandlerSet()
_log = logging.getLogger("my.handlers")


@handlers.handles("example.async")
async def work(context):
    _log.warning("in the loop")


@handlers.handles("example.thread")
def work_in_thread(context):
    _log.warning("in a thread")
    context.run(also(context))


async def also(context):
    _log.warning("in the loop, for a thread")


@handlers.handles("example.fault")
async def fail(context):
    try:
        raise ValueError("first line\\nsecond line")
    except ValueError:
        _log.exception("a fault")
    other = threading.Thread(target=lambda: 1 / 0, name="other")
    other.start()
    other.join()
"""

_NODE: Final = """
import asyncio, logging, sys
from vox_mesh import Mesh, load_settings
from vox_mesh.cli.support.logs import set_up_logs

log = logging.getLogger("my.program")

async def main():
    set_up_logs("json")
    async with Mesh.open(load_settings()) as mesh:
        log.warning("before")
        async with mesh.locks.hold(["file:b", "file:a"], agent="coder") as lock:
            log.warning("under a lock")
            await asyncio.create_task(said("in a task under a lock"))
        log.warning("after the lock")
        sent = await mesh.messages.send("reviewer", "look", traceparent=sys.argv[1])
        async for message in mesh.messages.receive("reviewer"):
            log.warning("a message in hand")
            await mesh.messages.ack(message)
            break
        log.warning("after the message")
        print(mesh.identity.node_id, sent.message_uuid, lock.fence_token)

async def said(words):
    log.warning(words)

asyncio.run(main())
"""

_HOSTILE: Final = """
import asyncio, logging, sys, warnings
from vox_mesh.cli.support.logs import set_up_logs

set_up_logs(sys.argv[1], [sys.argv[2]])
log = logging.getLogger("vox_mesh.test")
for text in (
    'one\\ntwo\\r\\n{"level": "error"}\\u2028three\\x85four',
    "\\x1b[2J\\x07bell \\x00nul \\u202eright to left",
    "half \\udc80 a character, and é",
    "Authorization: Bearer abc.def.ghi and bearer zzzzzzzzzz",
    "https://someone:password@host:8080/path?authToken=xyzxyzxyz&b=1",
    "its value is " + sys.argv[2],
    "x" * 1_000_000,
):
    log.info("%s", text)
log.info("%d of %s", "no number")
logging.getLogger("httpx").warning("of a\\nlibrary")
logging.getLogger("httpx").info("not to be seen")
asyncio.new_event_loop().call_exception_handler({"message": "of asyncio", "exception": ValueError("a\\nb")})
warnings.warn("of Python\\nitself", RuntimeWarning)
"""


def _events(err: str) -> list[dict[str, Any]]:
    """All lines, each of which has to be an event."""
    events = [json.loads(line) for line in err.splitlines()]
    assert all(list(each)[:4] == ["time", "level", "logger", "message"] for each in events), err
    return events


def _event(err: str, message: str) -> dict[str, Any]:
    (found,) = [each for each in _events(err) if each["message"] == message]
    return found


def _more(event: dict[str, Any]) -> dict[str, Any]:
    """What an event tells beyond what every event does."""
    return dict(list(event.items())[4:])


def _run(vox: VoxCommand, code: str, *arguments: str) -> Ended:
    wanted = Program(arguments, vox.environment, code=code, folder=str(vox.folder))
    with Process(wanted) as process:
        out, err = process.communicate(_PATIENCE_S)
    return Ended(process.wait(), out, err)


@pytest.fixture
def vox(tmp_path: Path) -> VoxCommand:
    """Commands and programs on the file home."""
    return VoxCommand.with_home(tmp_path, VOX_MESH_TOKEN=_TOKEN)


# --- what lines are about ------------------------------------------------------------------------


@pytest.mark.parametrize("debug", ["0", "1"])
def test_what_a_handler_says_tells_its_job_wherever_it_says_it(vox: VoxCommand, debug: str) -> None:
    (vox.folder / "my_handlers.py").write_text(HANDLERS)
    kinds = ("example.async", "example.thread", "example.fault")
    ids = {kind: vox("job", "schedule", "--kind", kind, "--json").document["job_id"] for kind in kinds}
    chosen = vox.having(VOX_LOG_FORMAT="json", VOX_DEBUG=debug, VOX_AGENT_ID="coder")
    ended = chosen("worker", "run", "--handlers", "my_handlers:handlers", "--until-idle")
    assert ended.code == 0
    (begun,) = [each for each in _events(ended.err) if "worker started" in each["message"]]
    node = begun["message"].partition("node_id=")[2].partition(" ")[0]
    assert _more(begun) == {"agent": "coder", "node": node}
    said = {
        "in the loop": "example.async",
        "in a thread": "example.thread",
        "in the loop, for a thread": "example.thread",
        "a fault": "example.fault",
    }
    for words, kind in said.items():
        result = _more(_event(ended.err, words))
        result.pop("traceback", None)
        job_id = ids[kind]
        assert (result.pop("error", None) is not None) == (kind == "example.fault")
        trace = {"trace_id": job_id[:32], "span_id": job_id[32:48]}
        assert result == {"agent": "coder", "node": node, "job": job_id, "kind": kind, "attempt": 1, **trace}
    fault, thread = _event(ended.err, "a fault"), _event(ended.err, "thread failed: thread=other")
    assert (fault["error"], thread["error"][:18]) == (
        "ValueError: first line second line",
        "ZeroDivisionError:",
    )
    assert ("traceback" in fault, "traceback" in thread) == (debug == "1", debug == "1")


def test_lines_tell_the_lock_and_the_message_for_as_long_as_they_are_in_hand(vox: VoxCommand) -> None:
    ended = _run(vox, _NODE, _TRACE)
    assert ended.code == 0, ended.err
    node, message_uuid, token = ended.out.split()
    held = {"node": node, "agent": "coder", "lock": "file:b, file:a", "fence_token": int(token)}
    assert _more(_event(ended.err, "under a lock")) == held
    assert _more(_event(ended.err, "in a task under a lock")) == held
    received = {"agent": "reviewer", "message_uuid": message_uuid}
    assert _more(_event(ended.err, "a message in hand")) == {
        **received,
        "trace_id": "ab" * 16,
        "span_id": "cd" * 8,
    }
    for words in ("before", "after the lock", "after the message"):
        assert _more(_event(ended.err, words)) == {}
    (listening,) = [each for each in _events(ended.err) if each["message"].startswith("listening on ")]
    assert _more(listening) == {"node": node}


def test_what_outlives_a_job_does_not_speak_for_it(job: Job) -> None:
    with log_scope(node="a", agent="b"), job_scope(job):
        assert log_fields()["job"] == job.job_id
        assert detached_context().run(log_fields) == {"node": "a"}
    assert log_fields() == {}
    with job_scope(job):
        assert detached_context().run(log_fields) == {}


async def test_lines_are_about_no_message_that_was_acknowledged_in_whatever_order(mesh: Mesh) -> None:
    for agent in "abab":
        await mesh.messages.send(agent, "look", sender="other")
    with log_scope(agent="outer"):
        inboxes = [mesh.messages.receive(agent) for agent in "ab"]
        for _ in range(2):
            messages = [await anext(inbox) for inbox in inboxes]
            assert log_fields()["message_uuid"] == messages[1].message_uuid
            for message in messages:
                await mesh.messages.ack(message)
            assert log_fields() == {"agent": "outer"}
        for inbox in inboxes:
            await inbox.aclose()
        assert log_fields() == {"agent": "outer"}
    assert log_fields() == {}


async def test_lines_are_about_no_message_of_a_loop_that_was_left_but_what_it_began_goes_on(
    mesh: Mesh,
) -> None:
    sent, goes_on = await mesh.messages.send("a", "look", sender="other"), asyncio.Event()

    async def said() -> object:
        await goes_on.wait()
        return log_fields().get("message_uuid")

    inbox = mesh.messages.receive("a")
    async for _ in inbox:
        task = asyncio.create_task(said())
        break
    await asyncio.create_task(aclose(inbox))  # as the loop does when no one else has it any more
    assert log_fields() == {}
    goes_on.set()
    assert await task == sent.message_uuid


async def aclose(generator: AsyncGenerator[Any, None]) -> None:
    """Close a generator."""
    await generator.aclose()


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    """A node in memory."""
    async with Mesh.open(MEMORY.settings(tmp_path, None)) as mesh:
        yield mesh


@pytest.fixture
async def job(tmp_path: Path) -> Job:
    """A job that no one has."""
    async with Mesh.open(MEMORY.settings(tmp_path, None)) as mesh:
        return await mesh.jobs.find(await mesh.jobs.schedule("example.echo"))


@pytest.mark.parametrize(
    ("traceparent", "result"),
    [
        (_TRACE, {"trace_id": "ab" * 16, "span_id": "cd" * 8}),
        (None, {}),
        ("00-" + "0" * 32 + "-" + "cd" * 8 + "-01", {}),
        (_TRACE + '"', {}),
        (_TRACE * 100, {}),
    ],
)
async def test_lines_tell_the_request_that_is_served_and_its_trace(
    traceparent: str | None, result: dict[str, str]
) -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response(log_fields())

    app = web.Application(middlewares=[continue_trace])
    app.router.add_get("/v1/jobs/{job}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        headers = {} if traceparent is None else {"traceparent": traceparent}
        async with httpx.AsyncClient(trust_env=False) as client:
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            answer = await client.get(f"{url}/v1/jobs/secret?token=secret", headers=headers)
            nowhere = await client.get(f"{url}/nowhere", headers=headers)
    finally:
        await runner.cleanup()
    assert answer.json() == {"request": "GET /v1/jobs/{job}", **result}
    assert nowhere.status_code == 404


# --- what they must not do -----------------------------------------------------------------------


def test_nothing_from_outside_breaks_a_line_or_shows_a_secret(vox: VoxCommand) -> None:
    ended = _run(vox, _HOSTILE, "json", _TOKEN)
    assert ended.code == 0
    assert ended.err.isascii()
    messages = [each["message"] for each in _events(ended.err)]
    assert messages[:6] == [
        'one two {"level": "error"} three four',
        r"\x1b[2J\x07bell \x00nul \u202eright to left",
        r"half \udc80 a character, and é",
        "Authorization: *** and ***",
        "https://***@host:8080/path?authToken=***&b=1",
        "its value is ***",
    ]
    assert len(messages[6]) < 20_000
    assert messages[7:] == ["'%d of %s' ('no number',)", "of a library", "of asyncio", messages[-1]]
    assert "RuntimeWarning: of Python itself" in messages[-1]


def test_the_text_says_the_same_in_short(vox: VoxCommand) -> None:
    as_json, as_text = (_run(vox, _HOSTILE, each, _TOKEN).err for each in ("json", "text"))
    lines = [f"{each['level']}: {each['message']}" for each in _events(as_json)]
    assert as_text.splitlines() == lines


def test_a_token_is_in_no_line_no_matter_who_says_it(vox: VoxCommand) -> None:
    (vox.folder / "my_handlers.py").write_text(
        HANDLERS.replace('"in the loop"', f'"it is %s", "{_TOKEN}"', 1)
    )
    vox("job", "schedule", "--kind", "example.async")
    chosen = vox.having(VOX_LOG_FORMAT="json")
    ended = chosen("worker", "run", "--handlers", "my_handlers:handlers", "--until-idle")
    assert _event(ended.err, "it is ***")
    assert _TOKEN not in ended.err


_LIBRARY: Final = """
import asyncio, logging, sys, threading, warnings
before = warnings.showwarning, threading.excepthook, sys.excepthook
from vox_mesh import Mesh, load_settings

async def main():
    async with Mesh.open(load_settings()) as mesh:
        await mesh.jobs.schedule("example.echo")

asyncio.run(main())
names = [name for name in logging.root.manager.loggerDict if name.startswith("vox_mesh")]
loggers = [logging.root, *map(logging.getLogger, names)]
assert [(each.handlers, each.filters, each.propagate) for each in loggers] == [([], [], True)] * len(loggers)
assert {each.level for each in loggers[1:]} == {logging.NOTSET}, loggers
assert logging.root.level == logging.WARNING
assert before == (warnings.showwarning, threading.excepthook, sys.excepthook)
"""


def test_a_program_that_uses_the_mesh_keeps_its_own_logging(vox: VoxCommand) -> None:
    ended = _run(vox, _LIBRARY)
    assert (ended.code, ended.err) == (0, "")
