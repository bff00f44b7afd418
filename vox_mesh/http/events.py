"""`GET /v1/events`: a stream of changes in the mesh.

Entries of the log have an id; a client that reconnects with the last one misses nothing. Everything else is
sent as state: first a `reset` with all of it, then each part that has changed, and each beat when it begins.
`topics` selects what is sent, by default everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from contextlib import aclosing, suppress
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import orjson
from aiohttp import web

from vox_mesh.errors import MeshError, StoreClosed
from vox_mesh.http.access import Access, Credential, Scope
from vox_mesh.http.admission import Admission, Load
from vox_mesh.http.connections import mark_active, wait_until_lost
from vox_mesh.http.principals.needs import READS
from vox_mesh.http.problems import Problem
from vox_mesh.http.redaction import redacted_json
from vox_mesh.model.nodes.agent_state import AgentState
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.slices import in_slices
from vox_mesh.views.agents import AgentView
from vox_mesh.views.oplog import ENTRY_TOPICS, stamped_record, topic_of
from vox_mesh.views.overview import MAX_AGENTS, MAX_ITEMS, Overview, OverviewReader
from vox_mesh.views.rhythm import TaskStatusView

PATH: Final = "/v1/events"
LAST_ID: Final = "Last-Event-ID"
BEATS: Final = "beats"
AGENTS: Final = "agents"
AGENT_SEEN: Final = "agent_seen"
AGENT_GONE: Final = "agent_gone"
STATUS: Final = "status"
STATUS_GONE: Final = "status_gone"

_QUEUE_SIZE: Final = 16
_KEEPALIVE_S: Final = 15.0
_WRITE_TIMEOUT_S: Final = 10.0
_MAX_DIGITS: Final = 18
_MIN_INTERVAL_S: Final = 1.0
_RETRY_DELAY_S: Final = 2.0

_log = logging.getLogger(__name__)

Event = tuple[str, Any, int | None]
"""A name, its data, and the id of an entry of the log."""

Encode = Callable[[str, Any, int | None], Iterator[bytes]]

JsonOfPart = Callable[[Overview, str], orjson.Fragment]
"""Returns a part of an overview as JSON."""

_PARTS: Final[dict[str, Callable[[Overview], Any]]] = {
    "nodes": lambda overview: [
        (node.node_id, node.incarnation, node.state, node.role, node.load, node.activity, node.faults)
        for node in overview.nodes
    ],
    AGENTS: lambda overview: [
        (
            *(agent.agent_id, agent.state, agent.node_id, agent.task_id, agent.task_state, agent.unread),
            *(agent.lock_count, agent.waits_for_count, agent.job_count),
        )
        for agent in overview.agents
    ],
    "locks": lambda overview: [
        (lock.lock_key, lock.fence_token, len(lock.waiters)) for lock in overview.locks
    ],
    "messages": lambda overview: (overview.mail, [each.message_uuid for each in overview.messages]),
    "conflicts": lambda overview: [each.conflict_id for each in overview.conflicts],
    "approvals": lambda overview: [each.approval_id for each in overview.approvals],
    "report": lambda overview: (report := overview.rhythm.report) and (report.window_id, report.revision),
}
"""The parts sent as state, and the values that must differ to send one again: passing time is no change."""

_TOPICS: Final = frozenset({*ENTRY_TOPICS, *_PARTS, BEATS, STATUS})


class EventStream:
    """Serves the event stream to all listeners."""

    def __init__(self, mesh: MeshServices, access: Access, admission: Admission | None = None) -> None:
        self._mesh = mesh
        self._access = access
        self._admission = admission or Admission()
        self._feed = OverviewFeed(mesh)
        self._streams: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    def add_to(self, app: web.Application) -> None:
        """Register the routes."""
        app.router.add_get(PATH, self._listen)

    def end(self) -> None:
        """End all streams, and reject new ones."""
        self._is_closed = True
        for stream in self._streams:
            stream.cancel()

    async def _listen(self, request: web.Request) -> web.StreamResponse:
        credential = await self._access.identify(request, Scope.READ)
        self._check_grant(credential)
        last_seen_id, topics = _last_id(request), _topics(request)
        if self._is_closed:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "overloaded", "node is shutting down")
        async with self._admission.place(Load.EVENTS, credential):
            return await self._serve(request, last_seen_id, topics, credential)

    def _check_grant(self, credential: Credential) -> None:
        self._access.check_grant(credential, partial(READS.check, inputs={}))

    async def _may_listen(self, credential: Credential) -> bool:
        """Return whether an agent still has the grant by which it listens, as known for up to a second."""
        if credential.agent is not None:
            await self._mesh.principals.known.refresh()
            try:
                self._check_grant(credential)
            except Problem:
                return False
        return True

    async def _serve(
        self, request: web.Request, last_seen_id: int | None, topics: Collection[str], credential: Credential
    ) -> web.StreamResponse:
        last_id = await self._mesh.oplog.last_id()
        # An id beyond the end of the log is from another database, or from before a restore.
        is_ahead = last_seen_id is not None and last_seen_id > last_id
        after_id = last_id if last_seen_id is None or is_ahead else last_seen_id
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        sending = self._send(request, response, after_id, last_id if is_ahead else None, topics, credential)
        stream = asyncio.create_task(sending, name="vox-mesh-stream")
        gone = asyncio.create_task(wait_until_lost(request), name="vox-mesh-listener-gone")
        self._streams.add(stream)
        try:
            await asyncio.wait([stream, gone], return_when=asyncio.FIRST_COMPLETED)
            stream.cancel()
            await asyncio.wait([stream])
            if not stream.cancelled() and (fault := stream.exception()) is not None:
                _log_failure(fault)
        finally:
            gone.cancel()
            stream.cancel()
            self._streams.discard(stream)
        return response

    async def _send(
        self,
        request: web.Request,
        response: web.StreamResponse,
        after_id: int,
        new_id: int | None,
        topics: Collection[str],
        credential: Credential,
    ) -> None:
        """Send events to one listener; disconnect it if it does not read them in time, or may no longer."""
        is_redacted = credential.is_redacted or credential.agent is not None
        encode = _redacted_event if is_redacted else _event
        json_of = self._feed.redacted_json_of if is_redacted else self._feed.json_of
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue(_QUEUE_SIZE)
        has_reset = asyncio.Event()
        async with asyncio.TaskGroup() as parts:
            sources = []
            for name, events in (
                ("vox-mesh-events-of-log", self._entries(after_id, topics)),
                ("vox-mesh-events", self._states(new_id, topics, has_reset, json_of)),
                *([("vox-mesh-events-of-beats", self._beats(has_reset))] if BEATS in topics else ()),
            ):
                sources.append(parts.create_task(_forward(events, queue, encode), name=name))
            event = await _next_of(queue)
            while await self._may_listen(credential):
                async with asyncio.timeout(_WRITE_TIMEOUT_S):
                    await response.write(event)
                mark_active(request)
                event = await _next_of(queue)
            for source in sources:
                source.cancel()

    async def _entries(self, after_id: int, topics: Collection[str]) -> AsyncGenerator[Event, None]:
        async with aclosing(self._mesh.oplog.follow(after_id)) as entries:
            async for entry in entries:
                if (topic := topic_of(entry)) in topics:
                    yield topic, stamped_record(self._mesh, entry), entry.id

    async def _states(
        self, new_id: int | None, topics: Collection[str], has_reset: asyncio.Event, json_of: JsonOfPart
    ) -> AsyncGenerator[Event, None]:
        selected = {name: part for name, part in _PARTS.items() if name in topics}
        sent: dict[str, Any] | None = None
        agents, statuses = AgentChanges(), StatusChanges()
        async with aclosing(self._feed.watch()) as overviews:
            async for overview in overviews:
                now = {name: part(overview) for name, part in selected.items()}
                changes = agents.update(overview) if AGENTS in topics else []
                if STATUS in topics:
                    changes += statuses.update(overview)
                if sent is None:
                    names = (*selected, STATUS) if STATUS in topics else selected
                    state: dict[str, Any] = {name: json_of(overview, name) for name in names}
                    if BEATS in topics:
                        state[BEATS] = self._mesh.rhythm.frame()
                    yield "reset", orjson.Fragment(orjson.dumps(state)), new_id
                    has_reset.set()
                else:
                    for name in selected:
                        if now[name] != sent[name]:
                            yield name, json_of(overview, name), None
                    for event in changes:
                        yield event
                sent = now

    async def _beats(self, has_reset: asyncio.Event) -> AsyncGenerator[Event, None]:
        await has_reset.wait()
        async with aclosing(self._mesh.rhythm.beats()) as beats:
            async for frame in beats:
                yield BEATS, frame, None


class AgentChanges:
    """Tell which agents came and went between overviews."""

    def __init__(self) -> None:
        self._present: dict[str, AgentView] = {}

    def update(self, overview: Overview) -> list[Event]:
        """Return an event for each agent that is seen now and was not before, or is gone and was not before.

        An agent beyond the maximum of an overview is not known to be gone.
        """
        before = self._present
        self._present = {each.agent_id: each for each in overview.agents if each.state != AgentState.GONE}
        is_cut = len(overview.agents) >= MAX_AGENTS
        gone = {each.agent_id: each for each in overview.agents if each.state == AgentState.GONE}
        events: list[Event] = [
            (AGENT_SEEN, view, None) for name, view in self._present.items() if name not in before
        ]
        for name, view in before.items():
            if name in gone or (name not in self._present and not is_cut):
                events.append((AGENT_GONE, gone.get(name, view), None))
        return events


class StatusChanges:
    """Tell which tasks have another status than in the overview before."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], TaskStatusView] = {}

    def update(self, overview: Overview) -> list[Event]:
        """Return an event for each status that changed, and for each task that is not claimed any more.

        A claim that is repeated in the next beat is no change. A task beyond the maximum of an overview is
        not known to be gone.
        """
        before = self._known
        self._known = {(each.agent_id, each.task_id): each for each in overview.status}
        events: list[Event] = [
            (STATUS, view, None)
            for task, view in self._known.items()
            if task not in before or _claimed(view) != _claimed(before[task])
        ]
        if len(overview.status) < MAX_ITEMS:
            events += [(STATUS_GONE, view, None) for task, view in before.items() if task not in self._known]
        return events


def _claimed(view: TaskStatusView) -> tuple[Any, ...]:
    """Return what a status says, without its beat."""
    waits = (view.wait_for, view.waits_on, view.beats_left)
    return view.state, view.phase, view.score, view.since_ms, *waits, view.progress, view.notes, view.node_id


def _last_id(request: web.Request) -> int | None:
    """Return the id to resume after; `None` for new events only."""
    text = request.headers.get(LAST_ID) or request.query.get("after")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, "bad_event_id", f"{LAST_ID} must be the id of a log entry"
        )
    return int(text)


def _topics(request: web.Request) -> Collection[str]:
    """Return the selected topics, by default all."""
    text = request.query.get("topics")
    if text is None:
        return _TOPICS
    named = frozenset(text.split(","))
    if unknown := named - _TOPICS:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "bad_query",
            f"in the query: topics: unknown topic {min(unknown)[:64]!r}",
            f"use {', '.join(sorted(_TOPICS))}",
        )
    return named


def _log_failure(fault: BaseException) -> None:
    """Log the failure of a stream, unless its listener left or did not read in time."""
    group = fault if isinstance(fault, BaseExceptionGroup) else BaseExceptionGroup("", [fault])
    _, failure = group.split((ConnectionError, TimeoutError))
    if failure is not None:
        _log.error("event stream failed", exc_info=failure)


async def _next_of(queue: asyncio.Queue[bytes]) -> bytes:
    """Return the next event, or a comment if there is none for a while."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_KEEPALIVE_S):
            return await queue.get()
    return b": still here\n\n"


async def _forward(source: AsyncGenerator[Event, None], queue: asyncio.Queue[bytes], encode: Encode) -> None:
    async with aclosing(source):
        async for event in source:
            await queue.put(b"".join(await in_slices(encode(*event))))


def _part_of(overview: Overview, name: str) -> Any:
    if name == "messages":
        return {**asdict(overview.mail), "messages": overview.messages}
    return overview.rhythm.report if name == "report" else getattr(overview, name)


def _redacted_event(name: str, data: Any, id_: int | None) -> Iterator[bytes]:
    """Yield an event as a read-only credential sees it. What is encoded already is redacted already."""
    is_encoded = isinstance(data, orjson.Fragment)
    yield _head(name, id_)
    yield from (orjson.dumps(data),) if is_encoded else redacted_json(data)
    yield b"\n\n"


def _event(name: str, data: Any, id_: int | None) -> Iterator[bytes]:
    """Yield an event in wire format. JSON has no line breaks, so its data is one line."""
    yield _head(name, id_)
    yield orjson.dumps(data)
    yield b"\n\n"


def _head(name: str, id_: int | None) -> bytes:
    head = f"event: {name}\n" if id_ is None else f"id: {id_}\nevent: {name}\n"
    return f"{head}data: ".encode()


# --- the overview, read once for all listeners ---------------------------------------------------


class OverviewFeed:
    """Reads the overview after every change, at most once a second, while there are listeners."""

    def __init__(self, mesh: MeshServices) -> None:
        self._store = mesh.store
        self._reader = OverviewReader(mesh)
        self._listeners = 0
        self._read_task: asyncio.Task[None] | None = None
        self._latest: Overview | None = None
        self._encoded: dict[tuple[str, bool], tuple[Overview, orjson.Fragment]] = {}
        self._changed = asyncio.Event()

    def json_of(self, overview: Overview, name: str, *, is_redacted: bool = False) -> orjson.Fragment:
        """Return a part of an overview as JSON, encoded once for all listeners."""
        encoded_for, json = self._encoded.get((name, is_redacted), (None, None))
        if json is None or encoded_for is not overview:
            part = _part_of(overview, name)
            json = orjson.Fragment(b"".join(redacted_json(part)) if is_redacted else orjson.dumps(part))
            self._encoded[name, is_redacted] = overview, json
        return json

    def redacted_json_of(self, overview: Overview, name: str) -> orjson.Fragment:
        """Return the same as a read-only credential sees it."""
        return self.json_of(overview, name, is_redacted=True)

    async def watch(self) -> AsyncGenerator[Overview, None]:
        """Yield the current overview, and again after changes; a slow consumer skips to the latest."""
        self._listeners += 1
        if self._read_task is None or self._read_task.done():
            read_loop = self._store.faults.keep_running("scenes", self._read, fatal=(StoreClosed,))
            self._read_task = asyncio.create_task(read_loop, name="vox-mesh-scenes")
        seen: Overview | None = None
        try:
            while True:
                changed = self._changed
                if self._latest is not None and self._latest is not seen:
                    seen = self._latest
                    yield seen
                else:
                    await changed.wait()
        finally:
            self._listeners -= 1
            if not self._listeners:
                self._read_task.cancel()
                self._read_task = self._latest = None
                self._encoded.clear()

    async def _read(self) -> None:
        async for turn in self._store.changes(debounce_s=_MIN_INTERVAL_S):  # a busy mesh commits all the time
            try:
                self._latest = await self._reader.read()
            except MeshError as error:
                _log.info("events paused: %s", error.line)
                turn.wait_at_most(_RETRY_DELAY_S)
            except Exception as error:
                self._store.faults.note("scenes", error)
                turn.wait_at_most(_RETRY_DELAY_S)
            self._changed.set()
            self._changed = asyncio.Event()
