"""The HTTP service of a node: where it listens, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import socket
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from vox_mesh.errors import BadSettings
from vox_mesh.http.deliver import MAX_BODY_BYTES
from vox_mesh.http.problems import Handler, as_problems
from vox_mesh.model.addresses import is_loopback

_log = logging.getLogger(__name__)

_LOOPBACK: Final = "127.0.0.1"
_SHUTDOWN_S: Final = 2.0
_KEPT_S: Final = 75.0
_PATIENCE_S: Final = 10.0  # for the first request of a connection
_LOOK_S: Final = 2.0
_MAX_CONNECTIONS: Final = 512
_BACKLOG: Final = 128


class Address:
    """Where a node listens, and what it tells others."""

    def __init__(self, host: str, port: int, told: str | None) -> None:
        self.host = host
        self.port = port
        self._told = told

    @classmethod
    def chosen(cls, control_addr: str | None, bind: str | None, *, has_token: bool) -> Address:
        """By the settings: `bind`, or the address that others are told, or any port of this machine.

        Without a token nobody else may reach the service.
        """
        told = None if control_addr is None else control_addr.rstrip("/")
        parts = urlsplit(f"//{bind}") if bind is not None else urlsplit(told or "")
        host, port = parts.hostname or _LOOPBACK, parts.port or 0
        if has_token or is_loopback(host):
            return cls(host, port, told)
        _log.warning(
            "VOX_MESH_TOKEN is not set: the HTTP service listens on %s only, not on %s", _LOOPBACK, host
        )
        return cls(_LOOPBACK, port, None)

    def told(self, port: int) -> str:
        """What others are told: an address of this machine, unless another one was chosen."""
        if self._told is not None and (urlsplit(self._told).port != 0):
            return self._told
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{port}"


class Service:
    """Serves until it is stopped."""

    def __init__(self, address: Address, parts: Sequence[Callable[[web.Application], None]]) -> None:
        self._address = address
        self._app = web.Application(middlewares=[as_problems, self._seen], client_max_size=MAX_BODY_BYTES)
        self._served: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self._runner = web.AppRunner(
            self._app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=_SHUTDOWN_S,
            keepalive_timeout=_KEPT_S,
            auto_decompress=False,
        )
        self._watching: asyncio.Task[None] | None = None
        for add_to in parts:
            add_to(self._app)

    async def start(self) -> str:
        """Listen; the address that others are told."""
        listening = _listening(self._address)
        try:
            await self._runner.setup()
            await web.SockSite(self._runner, listening, backlog=_BACKLOG).start()
        except BaseException:
            listening.close()
            raise
        self._watching = asyncio.create_task(self._watch(), name="vox-mesh-http")
        url = self._address.told(listening.getsockname()[1])
        _log.info("listening on %s", url)
        return url

    async def stop(self) -> None:
        """Finish what is under way, and listen no more."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._runner.cleanup()

    @web.middleware
    async def _seen(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if isinstance(request.transport, asyncio.Transport):
            self._served.add(request.transport)
        return await handler(request)

    async def _watch(self) -> None:
        """Hang up on those who connect and do not ask anything, and on the latest if there are too many."""
        since: weakref.WeakKeyDictionary[asyncio.BaseTransport, float] = weakref.WeakKeyDictionary()
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK_S)
            server = self._runner.server
            transports = [] if server is None else [each.transport for each in server.connections]
            open_ones = [each for each in transports if each is not None]
            for number, transport in enumerate(open_ones):
                began = since.setdefault(transport, loop.time())
                is_idle = transport not in self._served and loop.time() - began > _PATIENCE_S
                if is_idle or number >= _MAX_CONNECTIONS:
                    with suppress(AttributeError):
                        transport.abort()


def _listening(address: Address) -> socket.socket:
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family[0], socket.SOCK_STREAM)
    except OSError as error:
        raise _unusable(address, error) from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(family[4])
    except OSError as error:
        listening.close()
        raise _unusable(address, error) from None
    return listening


def _unusable(address: Address, error: OSError) -> BadSettings:
    return BadSettings(
        f"VOX_MESH_CONTROL_ADDR: can't listen on {address.host}:{address.port}: {error.strerror or error}",
        hint="choose another address, or set VOX_MESH_BIND to one of this machine",
    )
