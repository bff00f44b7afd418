"""Origins: a page in a browser must not reach the tools of this machine under a name of its own."""

from __future__ import annotations

from collections.abc import Set
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from vox_mesh.http.problems import Problem

_LOCALHOST: Final = "localhost"
_LOOPBACK: Final = frozenset({_LOCALHOST, "127.0.0.1", "::1"})


def check_origin(request: web.Request, hosts: Set[str]) -> None:
    """Raise 403 if a page of another site asks, or 421 if another site's name was resolved to this machine.

    `hosts`: the names of the node.
    """
    origin = request.headers.get("Origin")
    if origin is not None and _host_of(origin) not in _LOOPBACK | hosts:
        raise Problem(
            HTTPStatus.FORBIDDEN,
            "bad_origin",
            f"origin must be this machine, got {origin[:128]!r}",
            "call the server from a program, not from a page",
        )
    check_host(request, hosts)


def check_host(request: web.Request, hosts: Set[str]) -> None:
    """Raise 421 if another site's name was resolved to this machine. `hosts`: the names of the node."""
    if _is_loopback(request) and _host_of(f"//{request.headers.get('Host', '')}") not in (_LOOPBACK | hosts):
        raise Problem(
            HTTPStatus.MISDIRECTED_REQUEST,
            "bad_host",
            "host must be localhost or the announced name of the node",
            "use http://127.0.0.1, or the address that `vox-mesh nodes` shows",
        )


def own_address(request: web.Request, hosts: Set[str]) -> str | None:
    """Return the address of this machine that a request should name instead of `localhost`; else `None`.

    `localhost` is two addresses. At the one where the node does not listen another program can, and a browser
    would give it what it keeps for the node. `hosts`: the names of the node.
    """
    host = _host_of(f"//{request.headers.get('Host', '')}") or ""
    if host in hosts or not f".{host}".endswith(f".{_LOCALHOST}"):
        return None
    name = request.transport and request.transport.get_extra_info("sockname")
    is_6 = isinstance(name, tuple) and name[0] == "::1"
    _, _, port = request.headers.get("Host", "").rpartition(":")
    return f"http://{'[::1]' if is_6 else '127.0.0.1'}" + (f":{port}" if port.isdecimal() else "")


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_loopback(request: web.Request) -> bool:
    """Return whether a request comes over TCP to an address of this machine alone."""
    name = request.transport and request.transport.get_extra_info("sockname")
    return isinstance(name, tuple) and (name[0].startswith("127.") or name[0] in ("::1", "::ffff:127.0.0.1"))
