"""Hrana 3 over WebSocket: one connection, a stream for writing and one for reading, kept open."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import aiohttp
import orjson

from vox_mesh.errors import NoAnswer, Unreachable, UpgradeRefused
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.engine import EngineFacts
from vox_mesh.store.hrana import codec
from vox_mesh.store.hrana.token import is_read_only
from vox_mesh.store.script import Statement
from vox_mesh.store.values import Rows

_PROTOCOL: Final = "hrana3"
_WRITING: Final = 1
_READING: Final = 2
_MAX_MESSAGE: Final = 64 * 2**20
_CLOSE_S: Final = 0.2  # a server that hangs must not make us wait to leave it
_BUSY_GATEWAY: Final = frozenset({502, 503, 504})


class Connection:
    """An open WebSocket. It ends with the first thing that goes wrong on it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, timeout: float) -> None:
        self._socket = socket
        self._timeout = timeout
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last_id = 0
        self._streams: set[int] = set()
        self._opening = asyncio.Lock()
        self._listening = asyncio.create_task(self._listen(), name="vox-mesh-hrana")

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return not self._socket.closed and not self._listening.done()

    async def request(self, stream: int, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request on a stream and return its response."""
        try:
            async with asyncio.timeout(self._timeout):
                if stream not in self._streams:
                    await self._open_stream(stream)
                return await self._ask({**request, "stream_id": stream})
        except TimeoutError:
            await self.close()
            raise NoAnswer(f"the server did not answer within {self._timeout:g} s") from None
        except asyncio.CancelledError:
            if stream == _WRITING:
                # What was sent may still be running: the stream must not be used for anything else.
                await self.close()
            raise
        except (aiohttp.ClientError, OSError) as error:
            await self.close()
            raise NoAnswer(f"the connection to the server broke: {error}") from None

    async def _open_stream(self, stream: int) -> None:
        """Nothing is sent on a stream before the server has granted it: so "full" means "not applied"."""
        async with self._opening:
            if stream not in self._streams:
                try:
                    await self._ask({"type": "open_stream", "stream_id": stream})
                except NoAnswer:
                    raise codec.server_full() from None
                self._streams.add(stream)

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._last_id += 1
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[self._last_id] = answer
        message = {"type": "request", "request_id": self._last_id, "request": request}
        await self._socket.send_frame(orjson.dumps(message), aiohttp.WSMsgType.TEXT)
        return await answer

    async def _listen(self) -> None:
        try:
            async for message in self._socket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    break
                self._hear(orjson.loads(message.data))
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(NoAnswer("the server closed the connection"))
            self._waiting.clear()

    def _hear(self, message: dict[str, Any]) -> None:
        answer = self._waiting.pop(message.get("request_id", 0), None)
        if answer is None or answer.done():
            return
        if message["type"] == "response_ok":
            answer.set_result(message["response"])
        else:
            answer.set_exception(codec.request_error(message["error"]))

    async def close(self) -> None:
        """Close the socket; whoever waits is told."""
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        await self._socket.close()


class WsEngine:
    """Connects when it is first needed and again after every loss, unseen by callers."""

    max_scripts = 256

    def __init__(self, endpoint: str, token: str | None, timeout: float) -> None:
        self._endpoint = endpoint
        self._token = token
        self._is_read_only = is_read_only(token)
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()

    async def run(self, batch: Batch) -> BatchResult:
        """Run the batch's transaction."""
        if self._is_read_only:
            raise codec.unauthorized("it may only read")
        connection = await self.connect()
        response = await connection.request(_WRITING, {"type": "batch", "batch": codec.encode_batch(batch)})
        result = codec.decode_batch(response["result"])
        if not result.is_over:
            await connection.close()
        return result

    async def query(self, statement: Statement) -> Rows:
        """Answer a query."""
        connection = await self.connect()
        stmt = codec.encode_statement(statement)
        response = await connection.request(_READING, {"type": "execute", "stmt": stmt})
        return codec.decode_rows(response["result"])

    async def connect(self) -> Connection:
        """The open connection, or a new one."""
        connection = self._connection
        if connection is not None and connection.is_open:
            return connection
        async with self._connecting:
            if self._connection is None or not self._connection.is_open:
                self._connection = await self._open()
            return self._connection

    async def _open(self) -> Connection:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        try:
            async with asyncio.timeout(self._timeout):
                socket = await self._session.ws_connect(
                    self._endpoint.replace("http", "ws", 1),
                    protocols=(_PROTOCOL,),
                    compress=0,
                    max_msg_size=_MAX_MESSAGE,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S),
                )
                await self._greet(socket)
        except TimeoutError:
            raise Unreachable(f"{self._endpoint} did not answer within {self._timeout:g} s") from None
        except aiohttp.WSServerHandshakeError as error:
            if error.status in _BUSY_GATEWAY:
                raise Unreachable(f"{self._endpoint} answered with status {error.status}") from None
            raise _no_websocket(self._endpoint) from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{self._endpoint} can't be reached: {error}") from None
        return Connection(socket, self._timeout)

    async def _greet(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        if socket.protocol != _PROTOCOL:
            await socket.close()
            raise _no_websocket(self._endpoint)
        await socket.send_str(orjson.dumps({"type": "hello", "jwt": self._token}).decode())
        reply = await socket.receive()
        if reply.type is not aiohttp.WSMsgType.TEXT:
            raise Unreachable(f"{self._endpoint} closed the connection at once")
        message = orjson.loads(reply.data)
        if message["type"] != "hello_ok":
            await socket.close()
            raise codec.unauthorized(message.get("error", {}).get("message", "no reason given"))

    async def facts(self) -> EngineFacts:
        """Which way the database is reached."""
        version = await self.query(Statement("SELECT sqlite_version()"))
        return EngineFacts("hrana over WebSocket", self._endpoint, f"libSQL, SQLite {version.value}")

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()
        if self._session is not None:
            await self._session.close()


def _no_websocket(endpoint: str) -> UpgradeRefused:
    return UpgradeRefused(
        f"{endpoint} does not offer Hrana 3 over WebSocket", hint="set VOX_DB_DRIVER=auto or http"
    )
