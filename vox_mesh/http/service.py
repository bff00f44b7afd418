"""The lifecycle of a node's HTTP service."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from aiohttp import web

from vox_mesh.http.address import ListenAddress
from vox_mesh.http.agent_socket import AgentSocket
from vox_mesh.http.connections import Connection, Connections, Patience
from vox_mesh.http.local_socket import LocalSocket
from vox_mesh.http.problems import as_problems
from vox_mesh.http.requests import MAX_BODY_BYTES
from vox_mesh.http.tracing import continue_trace
from vox_mesh.store.background import BackgroundFaults

_log = logging.getLogger(__name__)

_BACKLOG: Final = 128
_MAX_ACCEPTED: Final = 16
"""The connections that are accepted in one iteration of the event loop; asyncio calls this a backlog, too."""


class Service:
    """Serves until it is stopped."""

    def __init__(
        self,
        address: ListenAddress,
        parts: Sequence[Callable[[web.Application], None]],
        patience: Patience | None = None,
        faults: BackgroundFaults | None = None,
        local: LocalSocket | None = None,
        agents: AgentSocket | None = None,
    ) -> None:
        patience = Patience() if patience is None else patience
        self._address = address
        self._local = local
        self._agents = agents
        self._faults = BackgroundFaults() if faults is None else faults
        self.connections = Connections(patience)
        app = web.Application(
            middlewares=[self.connections.record_activity, continue_trace, as_problems],
            client_max_size=MAX_BODY_BYTES,
        )
        for add_to in parts:
            add_to(app)
        # It is waited twice: for requests to end, and for cancelled ones.
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=patience.stop_s / 2)
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._watch_task: asyncio.Task[None] | None = None
        self.browser_url: str | None = None
        """The address for a browser on this machine, once it listens."""

    @property
    def routes(self) -> list[tuple[str, str]]:
        """The method and path of every route; `*` stands for all methods."""
        routes = self._runner.app.router.routes()
        return [(each.method, each.resource.canonical) for each in routes if each.resource is not None]

    async def start(self) -> str:
        """Start to listen; return the announced address. The caller must call `stop`, even if this fails."""
        public = await self._address.listen(_BACKLOG)
        self._sockets.append(public)
        await self._runner.setup()
        assert self._runner.server is not None
        self.connections.begin(self._runner.server)
        loop = asyncio.get_running_loop()
        self._servers.append(
            await loop.create_server(
                self.connections, sock=public, backlog=_MAX_ACCEPTED, start_serving=False
            )
        )
        if self._local is not None:
            await self._listen(self._local, self.connections)
        if self._agents is not None:
            await self._listen(self._agents, partial(self.connections.of_agents, self._agents.agents))
        for server in self._servers:
            await server.start_serving()
        for listening in self._sockets:
            listening.listen(_BACKLOG)
        watch_loop = self._faults.keep_running("http", self.connections.watch)
        self._watch_task = asyncio.create_task(watch_loop, name="vox-mesh-http")
        port = public.getsockname()[1]
        url, self.browser_url = self._address.announced_url(port), self._address.browser_url(port)
        _log.info("listening on %s", url)
        return url

    async def _listen(self, local: LocalSocket, make_connection: Callable[[], Connection]) -> None:
        listening = local.listen(_BACKLOG)
        if listening is None:
            return
        self._sockets.append(listening)
        loop = asyncio.get_running_loop()
        self._servers.append(
            await loop.create_unix_server(
                make_connection, sock=listening, backlog=_MAX_ACCEPTED, start_serving=False
            )
        )

    async def stop(self) -> None:
        """Finish running requests and stop listening."""
        for local in (self._local, self._agents):
            if local is not None:
                local.remove()
        for server in self._servers:
            server.close()
        for listening in self._sockets:
            listening.close()
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.gather(self._watch_task, return_exceptions=True)
        await self._runner.cleanup()
