"""The ASGI adapter: an ASGI application answers a request of the service.

The body is read before, so it is bounded in size and time. A client that leaves, or does not read, is a
disconnect for the application; so is the end of the service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from aiohttp import web

from vox_mesh.http.connections import mark_active, wait_until_lost

_log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Application = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]

_WRITE_TIMEOUT_S: Final = 10.0
_LEAVE_TIMEOUT_S: Final = 5.0
"""For the application to end after a disconnect."""

CLIENT_LEFT: Final = 499
"""The status of a response that has no reader any more."""

_HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})
"""Headers that the service sets itself."""


class AsgiExchange:
    """One request to an application, and its response."""

    def __init__(self, request: web.Request, body: bytes, state: dict[str, Any]) -> None:
        self._request = request
        self._body: bytes | None = body
        self._state = state
        self._gone = asyncio.Event()
        self._start: Message | None = None
        self._response: web.StreamResponse | None = None
        self._is_stream = False

    def disconnect(self) -> None:
        """Let the application know that nothing it sends is read any more."""
        self._gone.set()

    async def run(self, application: Application, takes_s: float | None = None) -> web.StreamResponse:
        """Have the application answer; end it after `takes_s` seconds as if the client had left."""
        work = asyncio.ensure_future(application(self._scope, self._receive, self._send))
        lost = asyncio.ensure_future(self._wait_gone(takes_s))
        try:
            await asyncio.wait({work, lost}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({work}, timeout=_LEAVE_TIMEOUT_S)
        finally:
            for task in (lost, work):
                task.cancel()
            ended, _ = await asyncio.gather(work, lost, return_exceptions=True)
        return await self._finish(ended)

    async def _finish(self, ended: BaseException | None) -> web.StreamResponse:
        """Return the response; a fault after its start ends the connection, so it can't seem complete."""
        if self._gone.is_set():
            ended = None  # the rest has no reader
        if ended is not None and self._response is not None and self._is_stream:
            _log.error("stream aborted by a bug", exc_info=ended)
            self._abort()
        elif ended is not None:
            raise ended
        if self._response is None:  # the client has left before there was one
            return web.Response(status=CLIENT_LEFT)
        if self._is_stream and not self._gone.is_set():
            await self._write(self._response.write_eof())
        return self._response

    async def _wait_gone(self, takes_s: float | None) -> None:
        """Return when the client has left, the service ends, or the time is over."""
        lost = asyncio.ensure_future(wait_until_lost(self._request))
        gone = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait({lost, gone}, timeout=takes_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            gone.cancel()
        self._gone.set()

    @property
    def _scope(self) -> dict[str, Any]:
        request = self._request
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.scheme,
            "path": request.path,
            "raw_path": request.raw_path.partition("?")[0].encode(),
            "query_string": request.query_string.encode(),
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.raw_headers],
            "client": None,
            "server": None,
            **self._state,
        }

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            if _is_event_stream(message) and not self._gone.is_set():
                await self._begin(b"", is_stream=True)  # its first event may come much later
            return
        if self._gone.is_set():
            return
        body, goes_on = message.get("body", b""), message.get("more_body", False)
        if self._response is None:
            await self._begin(body, is_stream=goes_on)
        elif body:
            await self._write(self._response.write(body))

    async def _begin(self, body: bytes, *, is_stream: bool) -> None:
        assert self._start is not None
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in self._start.get("headers", ())
            if name.decode("latin-1").lower() not in _HOP_BY_HOP
        ]
        self._is_stream = is_stream
        if not is_stream:
            self._response = web.Response(status=self._start["status"], headers=headers, body=body)
            return
        self._response = web.StreamResponse(status=self._start["status"], headers=headers)
        await self._write(self._response.prepare(self._request))
        if body:
            await self._write(self._response.write(body))

    async def _write(self, writing: Awaitable[Any]) -> None:
        """Write within a deadline; a client that is gone, or does not read, is disconnected."""
        try:
            async with asyncio.timeout(_WRITE_TIMEOUT_S):
                await writing
            mark_active(self._request)
        except (ConnectionError, TimeoutError):
            self._gone.set()
            self._abort()

    def _abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()


def _is_event_stream(start: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in start.get("headers", ())
    )
