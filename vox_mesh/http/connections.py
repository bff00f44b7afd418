"""Connections: bounded in number, closed when idle."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from aiohttp import web

from vox_mesh.http.local_socket import peer_user
from vox_mesh.http.problems import Handler, Problem
from vox_mesh.observability.throttled_logger import ThrottledLogger

_log = logging.getLogger(__name__)

_LINE_BYTES: Final = 8_190
_ROOT: Final = 0
_CONTINUE: Final = "100-continue"


@dataclass(frozen=True, slots=True)
class Patience:
    """The timeouts and the connection limit of a service."""

    first_s: float = 10.0
    """For the first request of a connection, and for the rest of an unread body."""

    kept_s: float = 75.0
    """For the next request, or for the client to read a response."""

    stop_s: float = 2.0
    """For running requests, when the service stops."""

    unread_s: float = 30.0
    """For the client to read the whole response, once it is sent."""

    look_s: float = 1.0
    connections: int = 512
    unread_bytes: int = 64 * 2**20
    """The size of all responses that clients have not read yet."""


class AgentPeer(NamedTuple):
    """The user at the other end of the agent socket, and its agent, if it has one."""

    user: int
    agent: str | None


class Connection(web.RequestHandler):
    """One connection; it records the time of its last activity."""

    def __init__(
        self,
        connections: Connections,
        server: web.Server,
        patience: Patience,
        agents: Mapping[int, str] | None = None,
    ) -> None:
        """`agents` are those of the users, on the agent socket."""
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=patience.kept_s,
            lingering_time=patience.first_s,
            max_line_size=_LINE_BYTES,
            max_field_size=_LINE_BYTES,
            access_log=None,  # type: ignore[arg-type]  # none is kept
            auto_decompress=False,
        )
        self._connections = connections
        self.has_asked = False
        self.under_way = 0
        self.is_paused = False
        """Whether its request is refused, and the client is not to hear of it yet."""
        self.since = asyncio.get_running_loop().time()
        self.lost = asyncio.Event()
        self.running: set[asyncio.Task[Any]] = set()
        """The tasks that handle its requests: they are cancelled when the connection is lost."""
        self.is_own_user = False
        """Whether it comes over the local socket from the user of this process, or from root."""
        self.agent_peer: AgentPeer | None = None
        """Who it comes from, over the agent socket: never with more rights than that agent."""
        self._agents = agents

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection; if there are too many, close an idle one."""
        super().connection_made(transport)
        user = peer_user(transport)
        if self._agents is not None:
            assert user is not None
            self.agent_peer = AgentPeer(user, self._agents.get(user))
        elif user is not None:
            self.is_own_user = user in (os.geteuid(), _ROOT)
            if not self.is_own_user:
                self._connections.say(
                    logging.WARNING, "local connection of another user refused: uid=%d", user
                )
                self.hang_up()
                return
        self._connections.make_room(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Handle the end of the connection, by either side."""
        super().connection_lost(exc)
        self.lost.set()
        for task in self.running:
            task.cancel()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer malformed HTTP with a problem document and close the connection."""
        if request.writer.output_size > 0:
            raise ConnectionError("part of the response was already sent")
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            self._connections.say(logging.INFO, "malformed request: remote=%s", request.remote)
            problem = Problem(HTTPStatus(status), "malformed", "request is not valid HTTP")
        else:
            _log.error("request failed", exc_info=exc)
            problem = Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "bug", "internal error: see the node's log")
        response = problem.response
        response.force_close()
        return response

    @property
    def unread_bytes(self) -> int:
        """The size of what the client has not read yet."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    @property
    def is_closing(self) -> bool:
        """Whether the connection is closed or closing."""
        return self.transport is None or self.transport.is_closing()

    def hang_up(self) -> None:
        """Close the connection, even if requests are running."""
        if self.transport is not None:
            self.transport.abort()


async def wait_until_lost(request: web.Request) -> None:
    """Wait until the client has disconnected."""
    connection: Any = request.protocol
    await connection.lost.wait()


@contextmanager
def cancelled_with_client(request: web.Request, task: asyncio.Task[Any]) -> Iterator[asyncio.Event]:
    """Cancel the task that handles a request when the client disconnects; yield the event of that."""
    connection: Any = request.protocol
    connection.running.add(task)
    try:
        yield connection.lost
    finally:
        connection.running.discard(task)


def is_own_user(request: web.Request) -> bool:
    """Return whether a request comes over the local socket from the user of this process."""
    connection: Any = request.protocol
    return bool(connection.is_own_user)


def agent_peer(request: web.Request) -> AgentPeer | None:
    """Return who a request over the agent socket comes from; `None` for other requests."""
    connection: Any = request.protocol
    peer: AgentPeer | None = connection.agent_peer
    return peer


def mark_active(request: web.Request) -> None:
    """Mark the connection as active."""
    connection: Any = request.protocol
    if connection is not None:
        connection.since = asyncio.get_running_loop().time()


@contextmanager
def marked_as_paused(request: web.Request) -> Iterator[None]:
    """Mark the connection as one that can be closed if there are too many."""
    connection: Any = request.protocol
    connection.is_paused = True
    try:
        yield
    finally:
        connection.is_paused = False


class Connections:
    """All connections of a service."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._server: web.Server | None = None
        self.say = ThrottledLogger(_log)

    def begin(self, server: web.Server) -> None:
        """Attach to the server whose connections these are."""
        self._server = server
        handle = server.request_handler

        async def handle_expected(request: web.BaseRequest) -> web.StreamResponse:
            # Before any middleware, aiohttp answers other expectations with a text it may fail to encode.
            if request.headers.get("Expect", _CONTINUE).lower() == _CONTINUE:
                return await handle(request)
            return Problem(
                HTTPStatus.EXPECTATION_FAILED, "expectation_failed", "Expect must be 100-continue"
            ).response

        server.request_handler = handle_expected

    def __call__(self) -> Connection:
        assert self._server is not None
        return Connection(self, self._server, self._patience)

    def of_agents(self, agents: Mapping[int, str]) -> Connection:
        """Return a new connection of the agent socket."""
        assert self._server is not None
        return Connection(self, self._server, self._patience, agents)

    @property
    def open_connections(self) -> list[Connection]:
        """All open connections, in the order they were made."""
        if self._server is None:
            return []
        return [each for each in self._server.connections if isinstance(each, Connection)]

    def make_room(self, newest: Connection) -> None:
        """If there are too many, close one: of a client that is refused often, or else an idle one.

        Idle ones without any request come first.
        """
        connections = [each for each in self.open_connections if not each.is_closing]
        if len(connections) <= self._patience.connections:
            return
        idle = [each for each in connections if each is not newest and (each.is_paused or not each.under_way)]
        victim = min(idle, key=lambda each: (not each.is_paused, each.has_asked, each.since), default=newest)
        self.say(logging.WARNING, "too many connections: limit=%d", self._patience.connections)
        victim.hang_up()

    async def watch(self) -> None:
        """Close idle connections periodically, until cancelled."""
        while True:
            await asyncio.sleep(self._patience.look_s)
            self.run_once()

    def run_once(self) -> None:
        """Close connections that exceeded their timeout, or whose clients leave too much unread."""
        now = asyncio.get_running_loop().time()
        idle = [each for each in self.open_connections if not each.under_way]  # each request has its deadline
        unread_bytes = sum(each.unread_bytes for each in idle)
        for each in sorted(idle, key=lambda each: each.since):
            own_bytes = each.unread_bytes
            is_too_much = own_bytes > 0 and unread_bytes > self._patience.unread_bytes
            if is_too_much or now - each.since > self._timeout_of(each):
                unread_bytes -= own_bytes
                each.hang_up()

    def _timeout_of(self, connection: Connection) -> float:
        timeout_s = self._patience.kept_s if connection.has_asked else self._patience.first_s
        return min(timeout_s, self._patience.unread_s) if connection.unread_bytes else timeout_s

    @web.middleware
    async def record_activity(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Record the activity of a request."""
        connection: Any = request.protocol
        connection.has_asked = True
        mark_active(request)
        connection.under_way += 1
        try:
            return await handler(request)
        finally:
            connection.under_way -= 1
            mark_active(request)  # from now on the client must read the response
