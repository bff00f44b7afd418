"""The server of a profile over streamable HTTP, by the SDK."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from vox_mesh.hosts.mcp.caller import ToolCaller
from vox_mesh.hosts.mcp.profiles import Profile
from vox_mesh.hosts.mcp.server import RequestContext, ServerPart, make_server
from vox_mesh.http.mcp.asgi import Application
from vox_mesh.http.mcp.sessions import IDLE_S, MAX_SESSIONS
from vox_mesh.http.requests import MAX_BODY_BYTES

_log = logging.getLogger(__name__)

_CALLER: Final = "vox_mesh.caller"
_STOP_TIMEOUT_S: Final = 5.0


class ProfileServer:
    """A server that runs in a task of its own, in which its sessions begin and end."""

    def __init__(self, profile: Profile, parts: Sequence[ServerPart] = ()) -> None:
        self._profile = profile
        # Hosts and origins are checked before a request gets here.
        security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        self._manager = StreamableHTTPSessionManager(
            make_server(profile, _caller_of, parts),
            security_settings=security,
            session_idle_timeout=IDLE_S,
            max_request_body_size=MAX_BODY_BYTES,
            max_sessions=MAX_SESSIONS,
        )
        self._is_running = asyncio.Event()
        self._is_ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def application(self) -> Application:
        """The ASGI application."""
        return self._manager.handle_request

    def state_of(self, caller: ToolCaller, owner: str) -> dict[str, Any]:
        """Return what a request carries: its caller, and who may use the session that it opens."""
        user = AuthenticatedUser(AccessToken(token="", client_id=owner, scopes=[]))
        return {"user": user, _CALLER: caller}

    async def start(self) -> None:
        """Start the server."""
        self._task = asyncio.create_task(self._run(), name=f"vox-mesh-mcp-{self._profile}")
        running = asyncio.ensure_future(self._is_running.wait())
        await asyncio.wait({running, self._task}, return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        if self._task.done():
            await self._task

    async def _run(self) -> None:
        async with self._manager.run():
            self._is_running.set()
            await self._is_ended.wait()

    async def stop(self) -> None:
        """End all sessions and stop."""
        self._is_ended.set()
        if self._task is None:
            return
        _, late = await asyncio.wait({self._task}, timeout=_STOP_TIMEOUT_S)
        for task in late:
            _log.warning("MCP server not stopped in time: profile=%s", self._profile)
            task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def end_session(self, session_id: str, owner: str) -> None:
        """End a session, as its client would."""
        scope = {
            **self.state_of(_NO_CALLER, owner),
            "type": "http",
            "method": "DELETE",
            "path": self._profile.path,
            "query_string": b"",
            "headers": [(b"mcp-session-id", session_id.encode("latin-1"))],
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(_: Any) -> None:
            pass

        await self.application(scope, receive, send)


_NO_CALLER: Any = None


def _caller_of(context: RequestContext) -> ToolCaller:
    """Return the caller of a request: each message of a session comes with its own."""
    assert context.request is not None
    caller: ToolCaller = context.request.scope[_CALLER]
    return caller
