"""Connect to the server: one WebSocket with one stream."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any, Final

import aiohttp
import orjson

from vox_mesh.errors import NoAnswer, Unreachable, UpgradeRefused
from vox_mesh.store.engines.hrana import codec

_PROTOCOL: Final = "hrana3"
_STREAM: Final = 1
_MAX_MESSAGE: Final = 64 * 2**20
_CLOSE_TIMEOUT_S: Final = 0.2  # a server that hangs must not delay closing
_numbers: Final = count(1)
_NO_UPGRADE: Final = frozenset({200, 400, 404, 405, 426, 501, 505})


class ConnectionClosed(Exception):
    """An earlier request closed the connection while this one waited; it was not sent."""


class ConnectionDropped(NoAnswer):
    """The server closed the connection instead of answering: it ended, or it can't send the answer."""


def new_session() -> aiohttp.ClientSession:
    """Return a session for connections, which follows no redirect: the token is for the named server only."""
    tracing = aiohttp.TraceConfig()
    tracing.on_request_redirect.append(_refuse_redirect)
    return aiohttp.ClientSession(trace_configs=[tracing])


async def _refuse_redirect(_: object, __: object, redirect: aiohttp.TraceRequestRedirectParams) -> None:
    raise Unreachable(f"{redirect.url} answered with status {redirect.response.status}, a redirect")


class HranaConnection:
    """Sends one request at a time, and closes on the first failure.

    The sender also receives the answer: a task in between would slow requests down.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, timeout: float) -> None:
        self.number = next(_numbers)
        self._socket = socket
        self._timeout = timeout
        self._last_id = 0
        self._turn = asyncio.Lock()
        self._is_closed = False

    @classmethod
    async def open(
        cls, session: aiohttp.ClientSession, endpoint: str, token: str | None, timeout: float
    ) -> HranaConnection:
        """Connect, say hello, and open the stream."""
        try:
            async with asyncio.timeout(timeout):
                socket = await session.ws_connect(
                    endpoint.replace("http", "ws", 1),
                    protocols=(_PROTOCOL,),
                    compress=0,
                    max_msg_size=_MAX_MESSAGE,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_TIMEOUT_S),
                )
                if socket.protocol != _PROTOCOL:
                    await socket.close()
                    raise _no_websocket(endpoint)
                await _greet(socket, endpoint, token)
        except TimeoutError:
            raise Unreachable(f"{endpoint} did not answer within {timeout:g} s") from None
        except aiohttp.WSServerHandshakeError as error:
            if error.status in _NO_UPGRADE:
                raise _no_websocket(endpoint) from None
            raise Unreachable(f"{endpoint} answered with status {error.status}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{endpoint} can't be reached: {error}") from None
        connection = cls(socket, timeout)
        try:
            await connection.ask({"type": "open_stream"})
        except NoAnswer:
            # Nothing else was sent yet, so nothing can have been applied.
            raise codec.server_full() from None
        return connection

    @property
    def is_open(self) -> bool:
        """Return whether a request can be sent, as far as this side knows."""
        return not self._socket.closed and self._socket.get_extra_info("peername") is not None

    async def ask(self, request: dict[str, Any], patience_s: float = 0.0) -> dict[str, Any]:
        """Send a request and return its response, for which it waits at least `patience_s`.

        Raises:
            ConnectionClosed: The connection was closed before the request could be sent.
        """
        async with self._turn:
            if self._is_closed:
                raise ConnectionClosed
            self._last_id += 1
            body = {**request, "stream_id": _STREAM}
            message = orjson.dumps({"type": "request", "request_id": self._last_id, "request": body})
            timeout = max(self._timeout, patience_s)
            try:
                async with asyncio.timeout(timeout):
                    await self._socket.send_frame(message, aiohttp.WSMsgType.TEXT)
                    answer = await self._socket.receive()
            except TimeoutError:
                await self.close()
                raise NoAnswer(f"the server did not answer within {timeout:g} s") from None
            except (aiohttp.ClientError, OSError) as error:
                await self.close()
                raise NoAnswer(f"the connection to the server broke: {error}") from None
            except BaseException:
                # The request may still be running and be answered later: the connection can't be reused.
                await self.close()
                raise
            return await self._response(answer)

    async def _response(self, answer: aiohttp.WSMessage) -> dict[str, Any]:
        if answer.type is not aiohttp.WSMsgType.TEXT:
            await self.close()
            raise ConnectionDropped("the server closed the connection")
        message = codec.parse(answer.data)
        if message.get("request_id") != self._last_id:
            await self.close()
            raise NoAnswer("the server answered something else")
        if message["type"] != "response_ok":
            raise codec.request_error(message["error"])
        response: dict[str, Any] = message["response"]
        return response

    async def close(self) -> None:
        """Close the socket, and with it the stream and any transaction on it."""
        self._is_closed = True
        await self._socket.close()


async def _greet(socket: aiohttp.ClientWebSocketResponse, endpoint: str, token: str | None) -> None:
    await socket.send_str(orjson.dumps({"type": "hello", "jwt": token}).decode())
    reply = await socket.receive()
    if reply.type is not aiohttp.WSMsgType.TEXT:
        raise Unreachable(f"{endpoint} closed the connection at once")
    message = codec.parse(reply.data)
    if message["type"] != "hello_ok":
        await socket.close()
        raise codec.unauthorized(message.get("error", {}).get("message", "no reason given"))


def _no_websocket(endpoint: str) -> UpgradeRefused:
    return UpgradeRefused(
        f"{endpoint} does not offer Hrana 3 over WebSocket", hint="set VOX_DB_DRIVER=auto or http"
    )
