"""Access control: authentication and rate limits."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from enum import StrEnum
from http import HTTPStatus
from typing import Final, NoReturn
from urllib.parse import urlsplit

from aiohttp import web

from vox_mesh.http.problems import Problem
from vox_mesh.http.relay.keys import RelayKeys
from vox_mesh.model.base.addresses import is_loopback
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.rhythm.window_keys import MARK, WindowKeyFault
from vox_mesh.observability.throttled_logger import ThrottledLogger

_log = logging.getLogger(__name__)

_MAX_PEERS: Final = 1_024
_PEERS_AT_ADDRESS: Final = 4
_BEARER: Final = "bearer "


class Scope(StrEnum):
    """The permission a token must have."""

    READ = "read"
    WRITE = "write"
    RELAY = "relay"
    """To deliver messages; relay keys have it too."""


class Access:
    """Authenticates requests by token; without a token, only local requests are allowed."""

    def __init__(
        self, token: str | None, read_token: str | None = None, relay_keys: RelayKeys | None = None
    ) -> None:
        self._token = None if token is None else token.encode()
        self._read_token = None if read_token is None else read_token.encode()
        self._relay_keys = relay_keys
        self._log_throttled = ThrottledLogger(_log)

    def check(self, request: web.Request, scope: Scope = Scope.WRITE) -> None:
        """Raise 401 or 403 unless the request has this permission. Tokens are compared in constant time."""
        if self._token is None:
            _refuse_from_pages(request)
            return
        header = request.headers.get("Authorization", "")
        is_bearer = header[: len(_BEARER)].lower() == _BEARER
        given = header[len(_BEARER) :].encode(errors="surrogateescape") if is_bearer else b""
        has_token = hmac.compare_digest(given, self._token)
        has_read_token = self._read_token is not None and hmac.compare_digest(given, self._read_token)
        if has_token or (has_read_token and scope is Scope.READ):
            return
        if has_read_token:
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "read_only",
                "token is read-only",
                "use the token in VOX_MESH_TOKEN",
            )
        if self._relay_keys is not None and given.startswith(MARK.encode()):
            fault = self._relay_keys.fault(given.decode(errors="replace"))
            if fault is None and scope is Scope.RELAY:
                return
            if fault is None or fault in _KEY_PROBLEMS:
                raise _rejected_key_problem(fault)
        self._reject_token(request, is_bearer=is_bearer)

    def _reject_token(self, request: web.Request, *, is_bearer: bool) -> NoReturn:
        code, detail = ("token_wrong", "wrong token") if is_bearer else ("token_missing", "no token given")
        self._log_throttled(logging.WARNING, "request rejected: remote=%s reason=%s", request.remote, detail)
        raise Problem(
            HTTPStatus.UNAUTHORIZED, code, detail, "set VOX_MESH_TOKEN to the same value on all nodes"
        )


_KEY_PROBLEMS: Final = {
    WindowKeyFault.STALE: (
        "token_stale",
        "key expired: its bar is over",
        "use a key of the current bar; check that the clock is not behind",
    ),
    WindowKeyFault.EARLY: (
        "token_early",
        "key not valid yet: its bar has not begun",
        "use a key of the current bar; check that the clock is not ahead",
    ),
    WindowKeyFault.PROJECT: ("token_of_other_project", "key belongs to another scope or repository", ""),
}


def _rejected_key_problem(fault: WindowKeyFault | None) -> Problem:
    """Return the problem of a relay key that is authentic but not valid for this request."""
    if fault is None:
        return Problem(
            HTTPStatus.FORBIDDEN,
            "relay_only",
            "relay key can deliver messages only",
            "use the token in VOX_MESH_TOKEN",
        )
    return Problem(HTTPStatus.UNAUTHORIZED, *_KEY_PROBLEMS[fault])


def _refuse_from_pages(request: web.Request) -> None:
    """Raise 403 for requests that a web page makes a local browser send: they need no token either."""
    try:
        host = urlsplit(f"//{request.host}").hostname or ""
    except ValueError:
        host = ""
    if "Origin" in request.headers or not is_loopback(host):
        raise Problem(
            HTTPStatus.FORBIDDEN,
            "not_local",
            "without a token only local requests to a loopback address are allowed",
            "set VOX_MESH_TOKEN, or send the request to 127.0.0.1",
        )


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


class _Buckets:
    def __init__(self, per_second: float, monotonic: Callable[[], float]) -> None:
        self.per_second = per_second
        self._monotonic = monotonic
        self._left = Recent[str, tuple[float, float]](_MAX_PEERS)

    def take(self, key: str) -> bool:
        """Take one token from the bucket; return whether there was one."""
        now = self._monotonic()
        most = 2 * self.per_second
        left, since = self._left.get(key, (most, now))
        left = min(most, left + (now - since) * self.per_second)
        is_left = left >= 1
        self._left[key] = (left - 1 if is_left else left), now
        return is_left
