"""Addresses: where a node listens, and what it announces."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from typing import Final
from urllib.parse import SplitResult, urlsplit

from vox_mesh.errors import BadSettings
from vox_mesh.model.base.addresses import is_loopback

_log = logging.getLogger(__name__)

_LOOPBACK: Final = "127.0.0.1"
_LOOPBACK_6: Final = "::1"
_HTTP_PORT: Final = 80


class ListenAddress:
    """Where a node listens, and what it announces. Without a port it does not listen."""

    def __init__(self, host: str, port: int | None, announced: str | None, variable: str) -> None:
        self.host = host
        self.port = port
        self._announced = announced
        self._variable = variable

    @classmethod
    def from_settings(cls, control_addr: str | None, bind: str | None, *, has_token: bool) -> ListenAddress:
        """Return the address given by `bind`, or the announced address, or any local port.

        Without a token that other machines know, the service is not reachable from them. Raises `BadSettings`
        if it is announced to them nevertheless.
        """
        announced = None if control_addr is None else urlsplit(control_addr.rstrip("/"))
        if bind is not None:
            parts, variable = urlsplit(f"//{bind}"), "VOX_MESH_BIND"
        else:
            parts, variable = announced or urlsplit(f"//{_LOOPBACK}:0"), "VOX_MESH_CONTROL_ADDR"
        host, port = parts.hostname or _LOOPBACK, parts.port
        if not has_token:
            if announced is not None and not is_loopback(announced.hostname or ""):
                raise BadSettings(
                    f"VOX_MESH_CONTROL_ADDR: {announced.hostname} is an address of other machines, "
                    "which must be used with VOX_MESH_TOKEN",
                    hint="set it to the same value on all nodes; `vox-mesh token random` makes one",
                )
            if not is_loopback(host):
                _log.warning(
                    "HTTP service reachable from this machine only, not from %s: VOX_MESH_TOKEN is not set",
                    host,
                )
                return cls(_LOOPBACK, port or 0, None, variable)
        if port is None and parts.scheme == "http":
            port = _HTTP_PORT
        return cls(host, port, None if announced is None else announced.geturl(), variable)

    @property
    def hosts(self) -> frozenset[str]:
        """The names and addresses by which clients call it, in lower case."""
        announced = None if self._announced is None else urlsplit(self._announced).hostname
        return frozenset(each.lower() for each in (self.host, announced) if each is not None)

    def announced_url(self, port: int) -> str:
        """Return the announced address: a local one, unless another was configured."""
        if self._announced is not None:
            parts = urlsplit(self._announced)
            if not _is_any(parts.hostname or ""):
                return self._announced if parts.port != 0 else _with_port(parts, port)
        host = self.host
        if _is_any(host):
            host = _LOOPBACK_6 if ":" in host else _LOOPBACK
            _log.warning("node unreachable from other machines: VOX_MESH_CONTROL_ADDR has no host name")
        return f"http://{_in_url(host)}:{port}"

    def browser_url(self, port: int) -> str:
        """Return the address for a browser on this machine: an announced one with TLS, or the local one."""
        announced = self.announced_url(port)
        if announced.startswith("https:"):
            return announced
        host = self.host
        if _is_any(host):
            host = _LOOPBACK_6 if ":" in host else _LOOPBACK
        return f"http://{_in_url(host)}:{port}"

    async def listen(self, backlog: int) -> socket.socket:
        """Return a listening socket, or raise `BadSettings`."""
        if self.port is None:
            raise BadSettings(
                f"{self._variable} must have a port or be http: this service needs a proxy for TLS",
                hint="set VOX_MESH_BIND, such as 127.0.0.1:7400",
            )
        loop = asyncio.get_running_loop()
        try:
            addresses = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            listening = socket.socket(addresses[0][0], socket.SOCK_STREAM)
        except OSError as error:
            raise self._unusable(error) from None
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(addresses[0][4])
            listening.listen(backlog)  # listen at once: until then another process could bind the same port
            listening.setblocking(False)
        except OSError as error:
            listening.close()
            raise self._unusable(error) from None
        return listening

    def _unusable(self, error: OSError) -> BadSettings:
        return BadSettings(
            f"{self._variable}: can't listen on {_in_url(self.host)}:{self.port}: {error.strerror or error}",
            hint="choose another port, or set VOX_MESH_BIND to an address of this machine",
        )


def _is_any(host: str) -> bool:
    """Return whether a host stands for all local addresses, so that it can't be announced."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _with_port(parts: SplitResult, port: int) -> str:
    return parts._replace(netloc=f"{_in_url(parts.hostname or '')}:{port}").geturl()


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
