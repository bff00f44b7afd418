"""`GET /v1/events`: a stream of changes in the mesh.

Entries of the log have an id; a client that reconnects with the last one misses nothing. Everything else is
sent as state: first a `reset` with all of it, then each part that has changed, and each beat when it begins.
`topics` selects what is sent, by default everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing, suppress
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, Final

import orjson
from aiohttp import web

from vox_mesh.http.access import Access, Scope
from vox_mesh.http.connections import lost, touched
from vox_mesh.http.overview_feed import OverviewFeed
from vox_mesh.http.problems import Problem
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.oplog import ENTRY_TOPICS, stamped_record, topic_of
from vox_mesh.views.overview import Overview

PATH: Final = "/v1/events"
LAST_ID: Final = "Last-Event-ID"
BEATS: Final = "beats"

_MOST: Final = 64
_WAITING: Final = 16
_QUIET_S: Final = 15.0
_TAKE_S: Final = 10.0
_MAX_DIGITS: Final = 18

_log = logging.getLogger(__name__)

_PARTS: Final[dict[str, Callable[[Overview], Any]]] = {
    "nodes": lambda scene: [
        (node.node_id, node.incarnation, node.state, node.role, node.load, node.activity, node.faults)
        for node in scene.nodes
    ],
    "locks": lambda scene: [(lock.lock_key, lock.fence_token, len(lock.waiters)) for lock in scene.locks],
    "messages": lambda scene: (scene.mail, [each.message_uuid for each in scene.messages]),
    "conflicts": lambda scene: [each.conflict_id for each in scene.conflicts],
    "report": lambda scene: (report := scene.rhythm.report) and (report.window_id, report.revision),
}
"""The parts sent as state, and the values that must differ to send one again: passing time is no change."""

_TOPICS: Final = frozenset({*ENTRY_TOPICS, *_PARTS, BEATS})


class EventStream:
    """Serves the event stream to all listeners."""

    def __init__(self, mesh: MeshServices, access: Access) -> None:
        self._mesh = mesh
        self._access = access
        self._scenes = OverviewFeed(mesh)
        self._places = 0
        self._streams: set[asyncio.Task[Any]] = set()
        self._is_over = False

    def add_to(self, app: web.Application) -> None:
        """Register the routes."""
        app.router.add_get(PATH, self._listen)

    def end(self) -> None:
        """End all streams, and reject new ones."""
        self._is_over = True
        for stream in self._streams:
            stream.cancel()

    async def _listen(self, request: web.Request) -> web.StreamResponse:
        self._access.check(request, Scope.READ)
        asked, topics = _last_id(request), _topics(request)
        if self._is_over or self._places >= _MOST:
            detail = "this node leaves" if self._is_over else f"more than {_MOST} listen at the same time"
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "overloaded", detail)
        self._places += 1
        try:
            return await self._serve(request, asked, topics)
        finally:
            self._places -= 1

    async def _serve(
        self, request: web.Request, asked: int | None, topics: Collection[str]
    ) -> web.StreamResponse:
        last_id = await self._mesh.oplog.last_id()
        # An id beyond the end of the log is from another database, or from before a restore.
        is_ahead = asked is not None and asked > last_id
        after_id = last_id if asked is None or is_ahead else asked
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        sending = self._send(request, response, after_id, last_id if is_ahead else None, topics)
        stream = asyncio.create_task(sending, name="vox-mesh-stream")
        gone = asyncio.create_task(lost(request), name="vox-mesh-listener-gone")
        self._streams.add(stream)
        try:
            await asyncio.wait([stream, gone], return_when=asyncio.FIRST_COMPLETED)
            stream.cancel()
            await asyncio.wait([stream])
            if not stream.cancelled() and (fault := stream.exception()) is not None:
                _tell(fault)
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
    ) -> None:
        """Send events to one listener; disconnect it if it does not read them in time."""
        await response.prepare(request)
        coming: asyncio.Queue[bytes] = asyncio.Queue(_WAITING)
        begun = asyncio.Event()
        async with asyncio.TaskGroup() as parts:
            parts.create_task(_pour(self._entries(after_id, topics), coming), name="vox-mesh-events-of-log")
            parts.create_task(_pour(self._states(new_id, topics, begun), coming), name="vox-mesh-events")
            if BEATS in topics:
                parts.create_task(_pour(self._beats(begun), coming), name="vox-mesh-events-of-beats")
            while True:
                event = b": still here\n\n"
                with suppress(TimeoutError):
                    async with asyncio.timeout(_QUIET_S):
                        event = await coming.get()
                async with asyncio.timeout(_TAKE_S):
                    await response.write(event)
                touched(request)

    async def _entries(self, after_id: int, topics: Collection[str]) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._mesh.oplog.follow(after_id)) as entries:
            async for entry in entries:
                if (topic := topic_of(entry)) in topics:
                    yield _event(topic, stamped_record(self._mesh, entry), entry.id)

    async def _states(
        self, new_id: int | None, topics: Collection[str], begun: asyncio.Event
    ) -> AsyncGenerator[bytes, None]:
        wanted = {name: part for name, part in _PARTS.items() if name in topics}
        told: dict[str, Any] | None = None
        async with aclosing(self._scenes.watch()) as scenes:
            async for scene in scenes:
                now = {name: part(scene) for name, part in wanted.items()}
                if told is None:
                    whole = {name: _part(scene, name) for name in wanted}
                    if BEATS in topics:
                        whole[BEATS] = self._mesh.rhythm.frame()
                    yield _event("reset", whole, new_id)
                    begun.set()
                else:
                    for name in wanted:
                        if now[name] != told[name]:
                            yield _event(name, _part(scene, name))
                told = now

    async def _beats(self, begun: asyncio.Event) -> AsyncGenerator[bytes, None]:
        await begun.wait()
        async with aclosing(self._mesh.rhythm.beats()) as beats:
            async for frame in beats:
                yield _event(BEATS, frame)


def _last_id(request: web.Request) -> int | None:
    """Return the id to resume after; `None` for new events only."""
    said = request.headers.get(LAST_ID) or request.query.get("after")
    if said is None:
        return None
    if not (said.isascii() and said.isdigit() and len(said) <= _MAX_DIGITS):
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, "bad_event_id", f"{LAST_ID} is the id of an entry of the log"
        )
    return int(said)


def _topics(request: web.Request) -> Collection[str]:
    """Return the selected topics, by default all."""
    said = request.query.get("topics")
    if said is None:
        return _TOPICS
    named = frozenset(said.split(","))
    if unknown := named - _TOPICS:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "bad_query",
            f"in the query: topics: there is no {min(unknown)[:64]!r}",
            f"there is {', '.join(sorted(_TOPICS))}",
        )
    return named


def _tell(fault: BaseException) -> None:
    """Log the failure of a stream, unless its listener left or did not read in time."""
    ours: BaseException | None = fault
    if isinstance(fault, BaseExceptionGroup):
        _, ours = fault.split((ConnectionError, TimeoutError))
    if ours is not None:
        _log.error("event stream failed", exc_info=ours)


async def _pour(source: AsyncGenerator[bytes, None], coming: asyncio.Queue[bytes]) -> None:
    async with aclosing(source):
        async for event in source:
            await coming.put(event)


def _part(scene: Overview, name: str) -> Any:
    if name == "messages":
        return {**asdict(scene.mail), "messages": scene.messages}
    return scene.rhythm.report if name == "report" else getattr(scene, name)


def _event(name: str, data: Any, id_: int | None = None) -> bytes:
    """Return an event in wire format. JSON has no line breaks, so its data is one line."""
    head = f"event: {name}\n" if id_ is None else f"id: {id_}\nevent: {name}\n"
    return b"".join((head.encode(), b"data: ", orjson.dumps(data), b"\n\n"))
