"""`GET /v1/events`: a stream of changes in the mesh.

Entries of the log have an id; a client that reconnects with the last one misses nothing. Everything else is
sent as state: first a `reset` with all of it, then each part that has changed, and each beat when it begins.
`topics` selects what is sent, by default everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing, suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import orjson
from aiohttp import web

from vox_mesh.http.access import Access, Credential, Scope
from vox_mesh.http.admission import Admission, Load
from vox_mesh.http.connections import mark_active, wait_until_lost
from vox_mesh.http.events.feeds import LogFeed, StateFeed
from vox_mesh.http.events.state import STATE_TOPICS, StateChanges
from vox_mesh.http.events.wire import Event, event_bytes
from vox_mesh.http.principals.needs import READS
from vox_mesh.http.principals.refusals import operation_of
from vox_mesh.http.problems import Problem
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.slices import in_slices
from vox_mesh.views.oplog import ENTRY_TOPICS

PATH: Final = "/v1/events"
LAST_ID: Final = "Last-Event-ID"
BEATS: Final = "beats"

_QUEUE_SIZE: Final = 16
_KEEPALIVE_S: Final = 15.0
_WRITE_TIMEOUT_S: Final = 10.0
_MAX_DIGITS: Final = 18

_log = logging.getLogger(__name__)
_check_reading: Final = partial(READS.check, inputs={})

_TOPICS: Final = frozenset({*ENTRY_TOPICS, *STATE_TOPICS, BEATS})


class EventStream:
    """Serves the event stream to all listeners."""

    def __init__(self, mesh: MeshServices, access: Access, admission: Admission | None = None) -> None:
        self._mesh = mesh
        self._access = access
        self._admission = admission or Admission()
        self._states = StateFeed(mesh)
        self._entries = LogFeed(mesh)
        self._streams: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    @property
    def stream_count(self) -> int:
        """The number of open streams."""
        return len(self._streams)

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
        try:
            self._access.check_grant(credential, _check_reading)
        except Problem:
            with self._access.noting_refusal(credential, operation_of(request)):
                await self._access.check_grant_again(credential, _check_reading)
        last_seen_id, topics = _last_id(request), _topics(request)
        if self._is_closed:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "overloaded", "node is shutting down")
        async with self._admission.place(Load.EVENTS, credential):
            return await self._serve(request, last_seen_id, topics, credential)

    async def _may_listen(self, credential: Credential) -> bool:
        """Return whether a session goes on, or an agent has the grant by which it listens, up to 1 s late."""
        if not self._access.is_still_valid(credential):
            return False
        if credential.agent is not None:
            await self._mesh.principals.known.refresh()
            try:
                self._access.check_grant(credential, _check_reading)
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
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue(_QUEUE_SIZE)
        has_reset = asyncio.Event()
        by_name = {"vox-mesh-events": self._state_events(new_id, topics, has_reset, is_redacted=is_redacted)}
        if not ENTRY_TOPICS.isdisjoint(topics):
            by_name["vox-mesh-events-of-log"] = self._entry_events(after_id, topics, is_redacted=is_redacted)
        if BEATS in topics:
            by_name["vox-mesh-events-of-beats"] = self._beat_events(has_reset)
        async with asyncio.TaskGroup() as parts:
            sources = [
                parts.create_task(_forward(events, queue, is_redacted=is_redacted), name=name)
                for name, events in by_name.items()
            ]
            event = await _next_of(queue)
            while await self._may_listen(credential):
                async with asyncio.timeout(_WRITE_TIMEOUT_S):
                    await response.write(event)
                mark_active(request)
                event = await _next_of(queue)
            for source in sources:
                source.cancel()

    async def _entry_events(
        self, after_id: int, topics: Collection[str], *, is_redacted: bool
    ) -> AsyncGenerator[Event, None]:
        async with aclosing(self._entries.follow(after_id)) as entries:
            async for entry in entries:
                if entry.topic in topics:
                    yield entry.topic, await entry.json(is_redacted=is_redacted), entry.id

    async def _state_events(
        self, new_id: int | None, topics: Collection[str], has_reset: asyncio.Event, *, is_redacted: bool
    ) -> AsyncGenerator[Event, None]:
        changes = StateChanges(topics, is_redacted=is_redacted)
        async with aclosing(self._states.watch(STATE_TOPICS.intersection(topics))) as snapshots:
            async for snapshot in snapshots:
                for event in changes.update(snapshot):
                    yield event
                if not has_reset.is_set():
                    state = changes.state(snapshot)
                    if BEATS in topics:
                        state[BEATS] = self._mesh.rhythm.frame()
                    yield "reset", orjson.Fragment(orjson.dumps(state)), new_id
                    has_reset.set()

    async def _beat_events(self, has_reset: asyncio.Event) -> AsyncGenerator[Event, None]:
        await has_reset.wait()
        async with aclosing(self._mesh.rhythm.beats()) as beats:
            async for frame in beats:
                yield BEATS, frame, None


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


async def _forward(
    source: AsyncGenerator[Event, None], queue: asyncio.Queue[bytes], *, is_redacted: bool
) -> None:
    async with aclosing(source):
        async for event in source:
            await queue.put(b"".join(await in_slices(event_bytes(event, is_redacted=is_redacted))))
