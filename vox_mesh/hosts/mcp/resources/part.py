"""The part of an MCP server that lists, reads and watches resources. It imports the SDK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson
from mcp.server.connection import Connection
from mcp.server.context import HandlerResult
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourceUpdated,
    ServerEvent,
)
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    EmptyResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    TextResourceContents,
    UnsubscribeRequestParams,
)

from vox_mesh.errors import BadValue
from vox_mesh.hosts.mcp.caller import OperationFailed, ToolCaller
from vox_mesh.hosts.mcp.resources.addresses import LOCKS, SCHEME, ResourceAddress, ResourceKind
from vox_mesh.hosts.mcp.resources.reading import read_resource
from vox_mesh.hosts.mcp.resources.sessions import MAX_URIS, SessionSubscriptions
from vox_mesh.hosts.mcp.resources.watches import ResourceWatches
from vox_mesh.hosts.mcp.server import CallerOf, RequestContext, ServerSetup
from vox_mesh.hosts.mcp.toolbox import error_line
from vox_mesh.runtime.services import MeshServices

_JSON: Final = "application/json"
_SESSION: Final = "vox-mesh-subscriptions"
_MAX_STREAMS: Final = 256
_MAX_EVENTS: Final = 64
_TEMPLATES: Final = (
    ResourceTemplate(
        uri_template=f"{SCHEME}inbox/{{agent}}",
        name="inbox",
        description="Your messages that are not acknowledged; reading does not receive them.",
        mime_type=_JSON,
    ),
    ResourceTemplate(
        uri_template=f"{SCHEME}job/{{id}}", name="job", description="A job and its state.", mime_type=_JSON
    ),
)
_LOCKS: Final = Resource(
    uri=LOCKS, name="locks", description="All locks, with their holders.", mime_type=_JSON
)


class ResourcePart:
    """Resources of a mesh for the servers of one process, which share its watches."""

    def __init__(self, mesh: MeshServices) -> None:
        self.bus = InMemorySubscriptionBus()
        self.watches = ResourceWatches(mesh, self._publish)
        self._listen = ListenHandler(
            self.bus, max_subscriptions=_MAX_STREAMS, max_buffered_events=_MAX_EVENTS
        )

    async def _publish(self, uri: str) -> None:
        await self.bus.publish(ResourceUpdated(uri=uri))

    async def close(self) -> None:
        """End all subscriptions, with a last message on each stream."""
        self._listen.close()
        await self.watches.close()

    def __call__(self, setup: ServerSetup) -> None:
        """Add the resources to a server."""
        setup.bus = self.bus
        handlers = ResourceHandlers(self, setup.caller_of, self._listen)
        add = setup.server.add_request_handler
        add("resources/list", PaginatedRequestParams, handlers.list_resources)
        add("resources/templates/list", PaginatedRequestParams, handlers.list_templates)
        add("resources/read", ReadResourceRequestParams, handlers.read)
        add("resources/subscribe", SubscribeRequestParams, handlers.subscribe)
        add("resources/unsubscribe", UnsubscribeRequestParams, handlers.unsubscribe)
        add("subscriptions/listen", SubscriptionsListenRequestParams, handlers.listen)


class ResourceHandlers:
    """Answers requests about resources, each for its caller."""

    def __init__(self, part: ResourcePart, caller_of: CallerOf, listen: ListenHandler) -> None:
        self._part = part
        self._caller_of = caller_of
        self._listen = listen

    async def list_resources(self, context: RequestContext, _: PaginatedRequestParams) -> ListResourcesResult:
        """Return the locks, and the inbox of the caller."""
        agent = self._caller_of(context).agent
        if agent is None:
            return ListResourcesResult(resources=[_LOCKS])
        inbox = Resource(
            uri=ResourceAddress(ResourceKind.INBOX, agent).uri,
            name="inbox",
            description=_TEMPLATES[0].description,
            mime_type=_JSON,
        )
        return ListResourcesResult(resources=[inbox, _LOCKS])

    async def list_templates(
        self, _: RequestContext, __: PaginatedRequestParams
    ) -> ListResourceTemplatesResult:
        """Return the forms of addresses."""
        return ListResourceTemplatesResult(resource_templates=[*_TEMPLATES])

    async def read(self, context: RequestContext, params: ReadResourceRequestParams) -> HandlerResult:
        """Return a resource as JSON."""
        content = await _read(params.uri, self._caller_of(context))
        text = orjson.dumps(content).decode()
        return ReadResourceResult(contents=[TextResourceContents(uri=params.uri, mime_type=_JSON, text=text)])

    async def subscribe(self, context: RequestContext, params: SubscribeRequestParams) -> EmptyResult:
        """Notify a session of changes from now on, if its caller may read the resource."""
        await _read(params.uri, self._caller_of(context))
        session = self._session_of(context)
        try:
            await session.add(params.uri)
        except BadValue as error:
            raise _refused(params.uri, error_line("bad_resource", str(error), error.hint)) from None
        return EmptyResult()

    async def unsubscribe(self, context: RequestContext, params: UnsubscribeRequestParams) -> EmptyResult:
        """End a subscription of a session."""
        if (session := _connection_of(context).state.get(_SESSION)) is not None:
            session.remove(params.uri)
        return EmptyResult()

    async def listen(
        self, context: RequestContext, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """Stream changes of the resources that the caller names, if it may read all of them."""
        uris = list(dict.fromkeys(params.notifications.resource_subscriptions or ()))
        if len(uris) > MAX_URIS:
            raise MCPError(INVALID_PARAMS, f"subscriptions of a stream must be at most {MAX_URIS}")
        watched: list[str] = []
        caller = self._caller_of(context)
        try:
            for uri in uris:
                await _read(uri, caller)
                await self._watch(uri, caller.agent)
                watched.append(uri)
            return await self._listen(context, params)
        finally:
            for uri in watched:
                self._part.watches.unwatch(uri, caller.agent)

    async def _watch(self, uri: str, agent: str | None) -> None:
        try:
            await self._part.watches.watch(uri, agent)
        except BadValue as error:
            raise _refused(uri, error_line("bad_resource", str(error), error.hint)) from None

    def _session_of(self, context: RequestContext) -> SessionSubscriptions:
        """Return the subscriptions of a connection, which end with it."""
        connection = _connection_of(context)
        session: SessionSubscriptions | None = connection.state.get(_SESSION)
        if session is None:
            agent = self._caller_of(context).agent
            session = SessionSubscriptions(self._part.watches, connection.send_resource_updated, agent)
            connection.state[_SESSION] = session
            connection.exit_stack.push_async_callback(session.close)
            connection.exit_stack.callback(self._part.bus.subscribe(_note_of(session)))
        return session


def _note_of(session: SessionSubscriptions) -> Callable[[ServerEvent], None]:
    def note(event: ServerEvent) -> None:
        if isinstance(event, ResourceUpdated):
            session.note(event.uri)

    return note


async def _read(uri: str, caller: ToolCaller) -> dict[str, Any]:
    """Return the content of a resource. Raises the error of the protocol if there is none for the caller."""
    try:
        return await read_resource(ResourceAddress.of(uri), caller)
    except OperationFailed as error:
        raise _refused(uri, error_line(error.code, error.detail, error.hint)) from None
    except BadValue as error:
        raise _refused(uri, error_line("bad_resource", str(error), error.hint)) from None


def _refused(uri: str, reason: str) -> MCPError:
    return MCPError(INVALID_PARAMS, reason, {"uri": uri[:512]})


def _connection_of(context: RequestContext) -> Connection:
    return context.session._connection  # noqa: SLF001 - the SDK keeps what lasts for a session there
