"""The endpoint of MCP: each profile has a path, and its server is made at the first request.

The SDK takes over a second to import, so nodes that no agent calls never load it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from aiohttp import web

from vox_mesh.hosts.mcp.profiles import Profile
from vox_mesh.http.access import Credential, Scope
from vox_mesh.http.admission import Load
from vox_mesh.http.api.performer import AGENT_HEADER, Performer
from vox_mesh.http.mcp.asgi import CLIENT_LEFT, AsgiExchange
from vox_mesh.http.mcp.caller import CredentialCaller
from vox_mesh.http.mcp.sessions import SessionTable
from vox_mesh.http.origins import check_origin
from vox_mesh.http.principals.own_names import check_headers
from vox_mesh.http.principals.refusals import operation_of
from vox_mesh.http.problems import Handler, Problem
from vox_mesh.http.requests import read_whole

if TYPE_CHECKING:
    from vox_mesh.hosts.mcp.resources.part import ResourcePart
    from vox_mesh.http.mcp.serving import ProfileServer

_MAX_STREAM_S: Final = 900.0
"""After this time a stream of events ends, and its client opens another: a credential may be revoked."""

_METHODS: Final = ("GET", "POST", "DELETE")
_JSON_RPC: Final = "application/json"
_SESSION: Final = "Mcp-Session-Id"
_METHOD: Final = "Mcp-Method"
_LISTEN: Final = "subscriptions/listen"
_VERSION: Final = "MCP-Protocol-Version"
_FIRST_STATELESS: Final = "2026"


@dataclass
class _Served:
    """The server of a profile, and the sessions at it."""

    server: ProfileServer
    sessions: SessionTable = field(default_factory=SessionTable)


class McpEndpoint:
    """Serves the tools of agents until it is stopped."""

    def __init__(self, performer: Performer, hosts: Set[str] = frozenset()) -> None:
        """`hosts`: the names of the node, besides those of every machine."""
        self._performer = performer
        self._hosts = hosts
        self._served: dict[Profile, _Served] = {}
        self._resources: ResourcePart | None = None
        self._making = asyncio.Lock()
        self._streams: set[AsgiExchange] = set()
        self._is_ended = False

    def add_to(self, app: web.Application) -> None:
        """Register the routes."""
        for profile in Profile:
            resource, handler = app.router.add_resource(profile.path), self._handler(profile)
            for method in _METHODS:
                resource.add_route(method, handler)
            resource.add_route("*", _refuse_method)

    def end(self) -> None:
        """End all streams of events, and refuse new requests. Running ones are finished."""
        self._is_ended = True
        for exchange in self._streams:
            exchange.disconnect()

    async def stop(self) -> None:
        """Stop the servers and their sessions."""
        self.end()
        for served in self._served.values():
            await served.server.stop()
        self._served.clear()
        if self._resources is not None:
            await self._resources.close()

    def _handler(self, profile: Profile) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            check_origin(request, self._hosts)
            credential = await self._performer.access.identify(request, Scope.READ)
            named = request.headers.getall(AGENT_HEADER, ())
            with self._performer.access.noting_refusal(credential, operation_of(request)):
                check_headers(credential, named, AGENT_HEADER)
            is_stream = request.method == "GET" or request.headers.get(_METHOD) == _LISTEN
            admission = self._performer.admission
            async with admission.place(Load.EVENTS, credential) if is_stream else nullcontext():
                caller = CredentialCaller(self._performer, credential, named[0] if named else None)
                takes_s = _MAX_STREAM_S if is_stream else None
                return await self._exchange(request, profile, credential, caller, takes_s)

        return handle

    async def _exchange(
        self,
        request: web.Request,
        profile: Profile,
        credential: Credential,
        caller: CredentialCaller,
        takes_s: float | None,
    ) -> web.StreamResponse:
        body = await read_whole(request)
        served = await self._server_of(profile)
        owner = f"{credential.name} {caller.agent}"
        exchange = AsgiExchange(request, body, served.server.state_of(caller, owner))
        async with self._room_for(served, request, owner):
            if self._is_ended:
                raise _leaving()
            if takes_s is not None:
                self._streams.add(exchange)
            try:
                response = await exchange.run(served.server.application, takes_s)
            finally:
                self._streams.discard(exchange)
            _note_session(served.sessions, request, response, owner)
        _check_answer(response)
        return response

    @asynccontextmanager
    async def _room_for(self, served: _Served, request: web.Request, owner: str) -> AsyncIterator[None]:
        """End sessions of a credential that opens another one, if it has too many."""
        if _SESSION in request.headers or _is_stateless(request):
            yield
            return
        with served.sessions.opening(owner) as may_open:
            if not may_open:
                raise _too_many_sessions()
            for surplus in served.sessions.make_room(owner):
                await served.server.end_session(*surplus)
            yield

    async def _server_of(self, profile: Profile) -> _Served:
        """Return the running server of a profile. Raises 501 if the SDK is not installed."""
        async with self._making:
            if self._is_ended:
                raise _leaving()
            if profile not in self._served:
                server = await asyncio.to_thread(self._make_server, profile)
                await server.start()
                self._served[profile] = _Served(server)
            return self._served[profile]

    def _make_server(self, profile: Profile) -> ProfileServer:
        try:
            # imported late: both import the SDK
            from vox_mesh.hosts.mcp.resources.part import ResourcePart
            from vox_mesh.http.mcp.serving import ProfileServer
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0].startswith("vox_mesh"):
                raise
            raise Problem(
                HTTPStatus.NOT_IMPLEMENTED,
                "mcp_missing",
                f"MCP is not installed at this node: no module {error.name}",
                "run `pip install 'vox-mesh[mcp]'` there and restart the node",
            ) from None
        if self._resources is None:
            self._resources = ResourcePart(self._performer.mesh)
        return ProfileServer(profile, [self._resources])


async def _refuse_method(request: web.Request) -> web.StreamResponse:
    raise web.HTTPMethodNotAllowed(request.method, _METHODS)


def _check_answer(response: web.StreamResponse) -> None:
    """Raise a refusal of the SDK as a problem, unless it is an error of JSON-RPC."""
    is_answered = response.status < HTTPStatus.BAD_REQUEST or response.status == CLIENT_LEFT
    if not is_answered and response.content_type != _JSON_RPC:
        status = HTTPStatus(response.status)
        text = response.text if isinstance(response, web.Response) else None
        raise Problem(
            status, status.name.lower(), text or status.phrase, "see the transports in the MCP specification"
        )


def _is_stateless(request: web.Request) -> bool:
    return request.headers.get(_VERSION, "") >= _FIRST_STATELESS


def _note_session(
    sessions: SessionTable, request: web.Request, response: web.StreamResponse, owner: str
) -> None:
    """Note what an exchange says about sessions: one was opened, used, ended or is not known."""
    given = request.headers.get(_SESSION)
    if given is None:
        opened = response.headers.get(_SESSION)
        if opened is not None and response.status < HTTPStatus.BAD_REQUEST:
            sessions.add(opened, owner)
    elif response.status == HTTPStatus.NOT_FOUND:
        sessions.forget(given, owner)
    elif response.status < HTTPStatus.BAD_REQUEST:
        if request.method == "DELETE":
            sessions.forget(given, owner)
        else:
            sessions.use(given, owner)


def _too_many_sessions() -> Problem:
    return Problem(
        HTTPStatus.TOO_MANY_REQUESTS,
        "too_many_sessions",
        "credential opens too many sessions at once",
        "wait for the answers, or use one session",
    )


def _leaving() -> Problem:
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE, "leaving", "node is shutting down", "retry at another node"
    )
