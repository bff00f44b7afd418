"""Authentication by session: both secrets, from the page of this node and no other one."""

from __future__ import annotations

import logging
from collections.abc import Set
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from vox_mesh.http.connections import agent_peer
from vox_mesh.http.console.sessions import ConsoleSession, ConsoleSessions
from vox_mesh.http.origins import check_host, own_address
from vox_mesh.http.problems import Problem
from vox_mesh.observability.throttled_logger import ThrottledLogger

_log = logging.getLogger(__name__)

HEADER: Final = "Vox-Console"
"""The header with the secret that the page keeps."""

_COOKIE: Final = "vox_console_"
_SITE: Final = "Sec-Fetch-Site"
_SAME: Final = "same-origin"
_OTHERS: Final = ("Authorization", "Signature", "Signature-Input")
"""Headers of other credentials: a request with one is none of a session."""


class SessionAuthenticator:
    """Finds the session of a request."""

    def __init__(self, sessions: ConsoleSessions, hosts: Set[str] = frozenset()) -> None:
        """`hosts`: the names of the node, besides those of every machine."""
        self.sessions = sessions
        self._hosts = hosts
        self._log_throttled = ThrottledLogger(_log)

    def find(self, request: web.Request) -> ConsoleSession | None:
        """Return the session of a request, or `None` if it presents no secret of one.

        Raises 401 if the session has ended or a secret is missing, and 403 if another page asks.
        """
        if any(name in request.headers for name in _OTHERS) or agent_peer(request) is not None:
            return None
        cookie = request.cookies.get(cookie_name(request))
        secret = request.headers.get(HEADER)
        if cookie is None and secret is None:
            return None
        self.check_page(request)
        session = self.sessions.find(cookie or "", secret or "")
        if session is None:
            lacks = "cookie" if cookie is None else f"header {HEADER}" if secret is None else ""
            reason = f"{lacks} missing" if lacks else "unknown or over"
            self._log_throttled(logging.INFO, "session refused: remote=%s reason=%s", request.remote, reason)
            raise session_ended()
        return session

    def check_host(self, request: web.Request) -> None:
        """Raise 421 if another site's name was resolved to this machine."""
        check_host(request, self._hosts)

    def own_address(self, request: web.Request) -> str | None:
        """Return the address that a browser should use instead of `localhost`; else `None`."""
        return own_address(request, self._hosts)

    def check_page(self, request: web.Request) -> None:
        """Raise 403 or 421 unless a request comes from the page of this node."""
        check_host(request, self._hosts)
        address = self.own_address(request)
        if address is not None:
            self._log_throttled(logging.WARNING, "request to localhost refused: remote=%s", request.remote)
            raise Problem(
                HTTPStatus.MISDIRECTED_REQUEST,
                "bad_host",
                "host must not be localhost: another program may listen at its other address",
                f"open {address}/ui/",
            )
        site, origin = request.headers.get(_SITE), request.headers.get("Origin")
        if site == _SAME and (origin is None or _is_own(origin, request)):
            return
        self._log_throttled(
            logging.WARNING,
            "request of another page refused: remote=%s site=%.32r origin=%.128r",
            *(request.remote, site, origin),
        )
        if site is None:
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "bad_origin",
                f"request must say where it comes from, and has no header {_SITE}",
                "use a current browser, and open the console over https or on the node's machine",
            )
        raise Problem(
            HTTPStatus.FORBIDDEN,
            "bad_origin",
            "request must come from the console of this node",
            "open the console with `vox-mesh console`",
        )


def session_ended() -> Problem:
    """Return the refusal of a request whose session is not known."""
    return Problem(
        HTTPStatus.UNAUTHORIZED, "session_ended", "session has ended", "sign in again: run `vox-mesh console`"
    )


def cookie_name(request: web.Request) -> str:
    """Return the name of the cookie: browsers send the cookies of all ports of a host to each of them."""
    name = request.transport and request.transport.get_extra_info("sockname")
    return f"{_COOKIE}{name[1] if isinstance(name, tuple) else 'local'}"


def _is_own(origin: str, request: web.Request) -> bool:
    """Return whether an origin has the host and the port that a request names. A proxy may add TLS."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    host = request.headers.get("Host", "")
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()
