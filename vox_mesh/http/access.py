"""Access: who may use the service, and how often."""

from __future__ import annotations

import hmac
import logging
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from aiohttp import web

from vox_mesh.http.problems import Problem

_log = logging.getLogger(__name__)

_MAX_PEERS: Final = 1_024
_BEARER: Final = "Bearer "


class Access:
    """Lets in whoever names the token; without one, whoever can reach us, which is this machine alone."""

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()

    @property
    def is_open(self) -> bool:
        """Whether no token is needed."""
        return self._token is None

    def check(self, request: web.Request) -> None:
        """Raise 401 unless the request names the token; the comparison takes the same time for all."""
        if self._token is None:
            return
        said = request.headers.get("Authorization", "")
        given = said[len(_BEARER) :].encode(errors="surrogateescape") if said.startswith(_BEARER) else None
        if given is not None and hmac.compare_digest(given, self._token):
            return
        _log.warning(
            "%s was refused: %s; VOX_MESH_TOKEN must be the same on all nodes",
            *(request.remote, "it came without a token" if given is None else "its token is another one"),
        )
        code = "token_missing" if given is None else "token_wrong"
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            code,
            "no token was given" if given is None else "the token is not the one of this node",
            "set VOX_MESH_TOKEN to the same value on all nodes",
        )


class Rates:
    """So many requests a second for each peer, and a burst of as many again."""

    def __init__(self, per_second: float, monotonic: Callable[[], float]) -> None:
        self._per_second = per_second
        self._monotonic = monotonic
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, peer: str) -> None:
        """Raise 429 if this peer asks too often."""
        now = self._monotonic()
        left, since = self._left.pop(peer, (2 * self._per_second, now))
        left = min(2 * self._per_second, left + (now - since) * self._per_second)
        self._left[peer] = (max(0.0, left - 1), now)
        if len(self._left) > _MAX_PEERS:
            self._left.popitem(last=False)
        if left < 1:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too_many_requests",
                f"more than {self._per_second:g} requests a second",
                "bring several messages in one request",
            )
