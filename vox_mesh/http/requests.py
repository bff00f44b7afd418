"""Requests: bodies of bounded size and time, and work that ends with its client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from vox_mesh.errors import BadValue, NotJson
from vox_mesh.http.connections import cancelled_with_client
from vox_mesh.http.problems import Problem
from vox_mesh.model.base.json_text import MAX_DEPTH, read_json

MAX_BODY_BYTES: Final = 2 * 2**20
READ_S: Final = 5.0

Undo = Callable[[Any], Awaitable[None]]

_MAX_INLINE_BYTES: Final = 64 * 2**10
_LEVELS_AROUND: Final = 4
"""The levels of a body around the values in it, which are checked by themselves."""


async def body_of(request: web.Request, read_s: float = READ_S) -> bytes:
    """Return the body, or raise the problem with it."""
    if request.content_type != "application/json":
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "content_type", "content type must be application/json"
        )
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "content_encoding", "body must not be encoded")
    return await read_whole(request, read_s)


async def read_whole(request: web.Request, read_s: float = READ_S) -> bytes:
    """Return the bytes of the body, of any type; raise the problem if it is too large, slow or incomplete."""
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise _too_large()
    try:
        if request.content.is_eof():  # it has come with the headers, as small ones do
            return await request.read()
        async with asyncio.timeout(read_s):
            return await request.read()
    except TimeoutError:
        detail = f"body not received within {read_s:g} s"
        raise Problem(HTTPStatus.REQUEST_TIMEOUT, "too_slow", detail) from None
    except web.HTTPRequestEntityTooLarge:
        raise _too_large() from None
    except (OSError, HttpProcessingError, web.RequestPayloadError):
        raise Problem(HTTPStatus.BAD_REQUEST, "incomplete", "body incomplete or malformed") from None


async def read_body(body: bytes) -> Any:
    """Return the JSON value of a body, or raise the problem with it. A long one is read in a thread."""
    depth = MAX_DEPTH + _LEVELS_AROUND
    try:
        if len(body) <= _MAX_INLINE_BYTES:
            return read_json(body, depth)
        return await asyncio.to_thread(read_json, body, depth)
    except NotJson as error:
        raise Problem(HTTPStatus.BAD_REQUEST, error.code, f"body must be JSON: {error}") from None
    except BadValue as error:
        raise Problem(HTTPStatus.BAD_REQUEST, "bad_json", f"in the body: {error}", error.hint) from None


def _too_large() -> Problem:
    return Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "too_large",
        f"body must have at most {MAX_BODY_BYTES} bytes",
        "split the request",
    )


class RequestScope:
    """The running work of all requests. None outlives its client, its deadline or the service."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[Any]] = set()
        self._ended: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def do(
        self,
        request: web.Request | None,
        work: Coroutine[Any, Any, Any],
        takes_s: float,
        *,
        waits: bool = False,
        undo: Undo | None = None,
    ) -> Any:
        """Run the work within `takes_s` seconds; `waits` marks work that may take long only because it waits.

        `undo` is called with the answer if the client has disconnected meanwhile. Without a request, the task
        is cancelled by the caller when its client leaves.
        """
        if waits and self._is_closed:
            work.close()
            raise _leaving_problem()
        task = asyncio.current_task()
        assert task is not None
        if waits:
            self._waiting.add(task)
        try:
            with nullcontext() if request is None else cancelled_with_client(request, task) as disconnected:
                answer = await self._within(work, takes_s)
            if disconnected is not None and disconnected.is_set() and undo is not None:
                await undo(answer)
            return answer
        except asyncio.CancelledError:
            if task not in self._ended:
                raise
            task.uncancel()
            raise _leaving_problem() from None
        finally:
            self._waiting.discard(task)
            self._ended.discard(task)

    async def _within(self, work: Coroutine[Any, Any, Any], takes_s: float) -> Any:
        try:
            async with asyncio.timeout(takes_s) as limit:
                return await work
        except TimeoutError:
            if limit.expired():
                raise _timeout_problem(takes_s) from None
            raise

    def end_waiting(self) -> None:
        """Cancel all waiting work; its clients get an error."""
        self._is_closed = True
        self._ended |= self._waiting
        for task in self._waiting:
            task.cancel()


def _timeout_problem(takes_s: float) -> Problem:
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "no_answer",
        f"request timed out after {takes_s:g} s: outcome unknown",
        "check the current state before retrying",
    )


def _leaving_problem() -> Problem:
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE, "leaving", "node is shutting down", "retry at another node"
    )
