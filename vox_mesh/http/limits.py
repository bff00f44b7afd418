"""Limits of requests: rates and quotas of each credential, and pauses for clients that are refused often."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from aiohttp import web

from vox_mesh.errors import DatabaseUnavailable
from vox_mesh.http.connections import marked_as_paused
from vox_mesh.http.problems import Handler, Problem
from vox_mesh.model.base.recent import Recent

_MAX_PEERS: Final = 1_024
_PEERS_AT_ADDRESS: Final = 4
_COUNT_CACHE_S: Final = 1.0
_COUNT_TIMEOUT_S: Final = 1.0
_AWAY_S: Final = 10.0
"""How long nothing is counted after the database did not answer: what comes meanwhile is spooled."""

_FREE_FAILURES: Final = 20
_FAILURES_PER_SECOND: Final = 1.0
_PAUSE_S: Final = 1.0
_SPREAD: Final = 64
"""Pauses are spread over twice their length in this many steps, so that not all end at once."""

_MAX_PAUSED: Final = 384
_FAILED: Final = (
    *("token_missing", "token_wrong", "signature_wrong", "signature_malformed", "code_wrong"),
    "session_ended",
)
_REFUSED: Final = ("too_many_requests", "overloaded")
_RELAY: Final = "/v1/a2a/"
"""Nodes that are refused retry by a schedule of their own."""

CountOpen = Callable[[int], Awaitable[int]]
"""Counts open items, up to a limit."""


class RateLimiter:
    """Limits the requests per second of each peer, with a burst of the same size.

    A peer is an address and a self-chosen name. As names are not authenticated, each address also has a total
    limit of a few peers; a peer's rejected requests do not count towards it.
    """

    def __init__(self, per_second: float, monotonic: Callable[[], float]) -> None:
        self._of_peers = _Buckets(per_second, monotonic)
        self._of_addresses = _Buckets(_PEERS_AT_ADDRESS * per_second, monotonic)

    def check(self, address: str | None, name: str) -> None:
        """Raise 429 if this peer exceeds its rate."""
        for buckets, key in ((self._of_peers, f"{address} {name}"), (self._of_addresses, f"{address}")):
            if not buckets.take(key):
                raise Problem(
                    HTTPStatus.TOO_MANY_REQUESTS,
                    "too_many_requests",
                    f"requests must be at most {buckets.per_second:g} a second",
                    "deliver several messages in one request",
                )


class Quotas:
    """Limits the items that each credential writes a second, its reads, and the open items of the mesh."""

    def __init__(self, per_second: float, open_limit: int, monotonic: Callable[[], float]) -> None:
        self._buckets = _Buckets(per_second, monotonic)
        self._open_limit = open_limit
        self._monotonic = monotonic
        self._open: dict[str, tuple[float, int]] = {}

    def take(self, credential: str, items: int, *, is_read: bool) -> None:
        """Count items of a credential. Raises 429 if it exceeds its rate."""
        if not self._buckets.take(f"{credential} {'reads' if is_read else 'writes'}", items):
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too_many_requests",
                f"items of a {credential} must be at most {self._buckets.per_second:g} a second",
                "retry later, or raise VOX_MESH_RATE_LIMIT",
            )

    async def open_items(self, noun: str, items: int, count: CountOpen) -> None:
        """Count new items of a noun. Raises 429 if the mesh has too many open ones; up to 1 s late.

        While the database is unreachable, it is known late by more.
        """
        now = self._monotonic()
        until, known = self._open.get(noun, (now, 0))
        if now >= until:
            try:
                async with asyncio.timeout(_COUNT_TIMEOUT_S):
                    known = await count(self._open_limit)
                until = now + _COUNT_CACHE_S
            except (DatabaseUnavailable, TimeoutError):  # the items are spooled: the spool has its own limit
                until = now + _AWAY_S
        if known + items > self._open_limit:
            self._open[noun] = until, known
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too_many_open",
                f"open {noun} must be at most {self._open_limit}, and there are {known}",
                f"wait until {noun} have ended, or raise VOX_MESH_OPEN_LIMIT",
            )
        self._open[noun] = until, known + items


class RefusalBrake:
    """Delays the refusals of an address that keeps failing to authenticate, or asks for more than it may.

    A client that repeats a refused request at once would keep the node busy with refusals. Requests that are
    not refused are never delayed.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._failures = _Buckets(_FAILURES_PER_SECOND, monotonic, burst=_FREE_FAILURES)
        self._sleep = sleep
        self._paused = 0
        self._pauses = 0

    def add_to(self, app: web.Application) -> None:
        """Register the middleware; it must be inside of `as_problems`."""
        app.middlewares.append(self.slow_down)

    @web.middleware
    async def slow_down(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Delay a refusal; if too many wait already, refuse at once and say nothing about the token."""
        try:
            return await handler(request)
        except Problem as problem:
            if not _counts(request, problem) or self._failures.take(f"{request.remote} {problem.code}"):
                raise
            if self._paused >= _MAX_PAUSED:
                raise Problem(
                    HTTPStatus.TOO_MANY_REQUESTS, "too_many_requests", "too many requests are refused"
                ) from None
            self._pauses += 1
            self._paused += 1
            try:
                with marked_as_paused(request):
                    await self._sleep(_PAUSE_S * (1 + 2 * (self._pauses % _SPREAD) / _SPREAD))
            finally:
                self._paused -= 1
            raise


def _counts(request: web.Request, problem: Problem) -> bool:
    return problem.code in _FAILED or (problem.code in _REFUSED and not request.path.startswith(_RELAY))


class _Buckets:
    """A bucket of tokens for each key, refilled all the time; it holds `burst`, by default two seconds'."""

    def __init__(
        self, per_second: float, monotonic: Callable[[], float], *, burst: float | None = None
    ) -> None:
        self.per_second = per_second
        self._burst = 2 * per_second if burst is None else burst
        self._monotonic = monotonic
        self._left = Recent[str, tuple[float, float]](_MAX_PEERS)

    def take(self, key: str, count: int = 1) -> bool:
        """Take tokens from the bucket; return whether there were enough.

        A full bucket gives more than it holds, and is then in debt: a large request is late, not impossible.
        """
        now = self._monotonic()
        left, since = self._left.get(key, (self._burst, now))
        left = min(self._burst, left + (now - since) * self.per_second)
        is_enough = left >= min(count, self._burst)
        self._left[key] = (left - count if is_enough else left), now
        return is_enough
