"""Request scopes: work for a client, cancelled when it disconnects or times out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from vox_mesh.http.connections import wait_until_lost
from vox_mesh.http.problems import Problem

Undo = Callable[[Any], Awaitable[None]]

_MAX_WAITING: Final = 256


class RequestScope:
    """The running work of all requests. None outlives its client, its deadline or the service."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def do(
        self,
        request: web.Request,
        work: Coroutine[Any, Any, Any],
        takes_s: float,
        *,
        waits: bool = False,
        undo: Undo | None = None,
    ) -> Any:
        """Run the work within `takes_s` seconds; `waits` marks work that may take long only because it waits.

        `undo` is called with the answer if the client has disconnected meanwhile.
        """
        if waits and (self._is_closed or len(self._waiting) >= _MAX_WAITING):
            work.close()
            raise _leaving_problem() if self._is_closed else _overloaded_problem()
        task = asyncio.create_task(work, name="vox-mesh-call")
        disconnected = asyncio.create_task(wait_until_lost(request), name="vox-mesh-caller-gone")
        if waits:
            self._waiting.add(task)
        try:
            await asyncio.wait([task, disconnected], timeout=takes_s, return_when=asyncio.FIRST_COMPLETED)
            is_disconnected, is_late = disconnected.done(), not task.done()
            if is_late:
                task.cancel()
                await asyncio.wait([task])
            if task.cancelled():
                raise _leaving_problem() if self._is_closed and not is_late else _timeout_problem(takes_s)
            answer = task.result()
            if is_disconnected and undo is not None:
                await undo(answer)
            return answer
        finally:
            self._waiting.discard(task)
            disconnected.cancel()
            task.cancel()

    def end_waiting(self) -> None:
        """Cancel all waiting work; its clients get an error."""
        self._is_closed = True
        for task in self._waiting:
            task.cancel()


def _timeout_problem(takes_s: float) -> Problem:
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "no_answer",
        f"there was no answer within {takes_s:g} s",
        "whether anything was changed is not known: look, before you ask again",
    )


def _leaving_problem() -> Problem:
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "leaving", "this node leaves", "ask another one, or again")


def _overloaded_problem() -> Problem:
    detail = f"more than {_MAX_WAITING} wait here at the same time"
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "overloaded", detail)
