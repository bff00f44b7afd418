"""Access: who may use the service, and how often."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from aiohttp import web

from vox_mesh.http.problems import Problem
from vox_mesh.messages.sparing import Sparing
from vox_mesh.model.recent import Recent

_log = logging.getLogger(__name__)

_MAX_PEERS: Final = 1_024
_PEERS_AT_ADDRESS: Final = 4
_BEARER: Final = "bearer "


class Access:
    """Lets in whoever names the token; without one, whoever can reach us, which is this machine alone."""

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()
        self._say = Sparing(_log)

    def check(self, request: web.Request) -> None:
        """Raise 401 unless the request names the token; the comparison takes the same time for all."""
        if self._token is None:
            return
        said = request.headers.get("Authorization", "")
        is_bearer = said[: len(_BEARER)].lower() == _BEARER
        given = said[len(_BEARER) :].encode(errors="surrogateescape") if is_bearer else None
        if given is not None and hmac.compare_digest(given, self._token):
            return
        fault = "it came without a token" if given is None else "its token is another one"
        self._say(
            logging.WARNING,
            "%s was refused: %s; VOX_MESH_TOKEN must be the same on all nodes",
            *(request.remote, fault),
        )
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            "token_missing" if given is None else "token_wrong",
            "no token was given" if given is None else "the token is not the one of this node",
            "set VOX_MESH_TOKEN to the same value on all nodes",
        )


class Rates:
    """So many requests a second for each peer, and a burst of as many again.

    A peer is an address and the name that it gives itself. Since anyone can give itself any name, all of an
    address together have a limit too, of a few peers' worth; what a peer was refused does not count there.
    """

    def __init__(self, per_second: float, monotonic: Callable[[], float]) -> None:
        self._of_peers = _Buckets(per_second, monotonic)
        self._of_addresses = _Buckets(_PEERS_AT_ADDRESS * per_second, monotonic)

    def check(self, address: str | None, name: str) -> None:
        """Raise 429 if this peer asks too often."""
        for buckets, key in ((self._of_peers, f"{address} {name}"), (self._of_addresses, f"{address}")):
            if not buckets.take(key):
                raise Problem(
                    HTTPStatus.TOO_MANY_REQUESTS,
                    "too_many_requests",
                    f"more than {buckets.per_second:g} requests a second",
                    "bring several messages in one request",
                )


class _Buckets:
    def __init__(self, per_second: float, monotonic: Callable[[], float]) -> None:
        self.per_second = per_second
        self._monotonic = monotonic
        self._left = Recent[str, tuple[float, float]](_MAX_PEERS)

    def take(self, key: str) -> bool:
        """Whether there is something left for this one; if so, it is less by one now."""
        now = self._monotonic()
        most = 2 * self.per_second
        left, since = self._left.get(key, (most, now))
        left = min(most, left + (now - since) * self.per_second)
        is_left = left >= 1
        self._left[key] = (left - 1 if is_left else left), now
        return is_left
