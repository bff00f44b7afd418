"""The raw limits: the least code that does the work, without keys, retries or combining."""

from __future__ import annotations

import base64
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from time import perf_counter
from typing import Any, Final

import aiohttp
import orjson

from bench.workload import CREATE, FIRST, INSERT, SELECT, VALUES
from tools.sqld import Server
from vox_mesh.store.batch import Batch
from vox_mesh.store.engines.hrana.codec import encode_batch
from vox_mesh.store.replica import wire
from vox_mesh.store.rows import Value

PRAGMAS: Final = ("journal_mode = WAL", "synchronous = FULL", "journal_size_limit = 16777216")
_STREAM: Final = 1
_NAMESPACE: Final = base64.b64encode(b"default").rstrip(b"=").decode()
_READ_AHEAD: Final = 2**18
_FRAME: Final = wire.PAGE + 24 + 3 + 5  # the page, its numbers, and the heads of both messages around them


class RawFile:
    """A bare `sqlite3` connection, with the pragmas of the file home where it is a file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute

    def insert(self) -> None:
        """One insert in a transaction of its own."""
        execute = self._execute
        execute("BEGIN IMMEDIATE")
        execute(INSERT, VALUES)
        execute("COMMIT")

    def select(self) -> None:
        """One row by its id."""
        self._execute(SELECT, FIRST).fetchall()


@contextmanager
def raw_file(path: str) -> Iterator[RawFile]:
    """A database of its own at the path, with the table and its first row."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        for pragma in PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        connection.execute(CREATE)
        raw = RawFile(connection)
        raw.insert()
        yield raw
    finally:
        connection.close()


class RawSocket:
    """One stream of Hrana 3 on one WebSocket; the caller reads the response itself."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._last_id = 0

    async def insert(self) -> None:
        """One insert, in a request of its own."""
        await self._ask(_execute(INSERT, VALUES, wants_rows=False))

    async def select(self) -> None:
        """One row by its id."""
        await self._ask(_execute(SELECT, FIRST, wants_rows=True))

    async def run(self, batch: Batch) -> None:
        """Run a batch; what its steps answer is not looked at."""
        await self._ask({"type": "batch", "batch": encode_batch(batch)})

    async def rate_in_flight(self, in_flight: int, seconds: float) -> float:
        """Return the inserts per second with this many requests in flight, as many callers would have."""
        insert = _execute(INSERT, VALUES, wants_rows=False)
        start = perf_counter()
        end = start + seconds
        for _ in range(in_flight):
            await self._send(insert)
        answered = 0
        while perf_counter() < end:
            answered += await self._is_done()
            await self._send(insert)
        for _ in range(in_flight):
            answered += await self._is_done()
        return answered / (perf_counter() - start)

    async def greet(self, token: str) -> None:
        """Say hello, open the one stream, and make the table and its first row."""
        await self._socket.send_frame(orjson.dumps({"type": "hello", "jwt": token}), aiohttp.WSMsgType.TEXT)
        await self._is_done()
        await self._ask({"type": "open_stream"})
        await self._ask(_execute(CREATE, (), wants_rows=False))
        await self.insert()

    async def _send(self, request: dict[str, Any]) -> None:
        self._last_id += 1
        message = {
            "type": "request",
            "request_id": self._last_id,
            "request": {**request, "stream_id": _STREAM},
        }
        await self._socket.send_frame(orjson.dumps(message), aiohttp.WSMsgType.TEXT)

    async def _ask(self, request: dict[str, Any]) -> None:
        await self._send(request)
        while not await self._is_done():
            await self._send(request)

    async def _is_done(self) -> bool:
        answer = orjson.loads((await self._socket.receive()).data)
        if answer["type"] in ("hello_ok", "response_ok"):
            return True
        _raise_unless_busy(answer["error"])
        return False


@asynccontextmanager
async def raw_socket(server: Server) -> AsyncIterator[RawSocket]:
    """A greeted WebSocket with an open stream, and the table to write to."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(server.url, protocols=("hrana3",), compress=0) as socket,
    ):
        raw = RawSocket(socket)
        await raw.greet(server.token)
        yield raw


class RawHttp:
    """Hrana over HTTP, a request and a stream for each statement."""

    def __init__(self, session: aiohttp.ClientSession, server: Server) -> None:
        self._session = session
        self._url = f"{server.url}/v3/pipeline"
        self._headers = {"authorization": f"Bearer {server.token}", "content-type": "application/json"}

    async def insert(self) -> None:
        """One insert, in a request of its own."""
        requests = [_execute(INSERT, VALUES, wants_rows=False), {"type": "close"}]
        body = orjson.dumps({"requests": requests})
        while not await self._is_done(body):
            pass

    async def _is_done(self, body: bytes) -> bool:
        async with self._session.post(self._url, data=body, headers=self._headers) as response:
            answer = orjson.loads(await response.read())["results"][0]
        if answer["type"] == "ok":
            return True
        _raise_unless_busy(answer["error"])
        return False


@asynccontextmanager
async def raw_http(server: Server) -> AsyncIterator[RawHttp]:
    """A session with connections that are kept alive."""
    async with aiohttp.ClientSession() as session:
        yield RawHttp(session, server)


class RawLog:
    """The primary's log as bytes, read and dropped."""

    def __init__(self, session: aiohttp.ClientSession, server: Server) -> None:
        self._session = session
        self._url = f"{server.url}/wal_log.ReplicationLog"
        self._headers = {
            "authorization": f"Bearer {server.token}",
            "content-type": "application/grpc-web",
            "x-namespace-bin": _NAMESPACE,
        }

    async def next_frame(self) -> int:
        """Say hello; return the number of frames written so far."""
        parts = wire.FrameParts()
        async with self._post("Hello", 1) as response:
            answer = next(parts.feed(await response.read()))
        assert isinstance(answer, memoryview)
        hello = wire.hello(answer)
        self._headers["x-session-token"] = hello.session
        return hello.next_frame

    async def stream(self, first: int) -> AsyncGenerator[int, None]:
        """Read frames from this one on, without end; yield the count after each piece."""
        size = 0
        async with self._post("LogEntries", first) as response:
            while True:
                size += len(await response.content.readany())
                yield size // _FRAME

    def _post(self, method: str, number: int) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._session.post(f"{self._url}/{method}", data=wire.request(number), headers=self._headers)


@asynccontextmanager
async def raw_log(server: Server) -> AsyncIterator[RawLog]:
    """A session of its own."""
    async with aiohttp.ClientSession(read_bufsize=_READ_AHEAD) as session:
        yield RawLog(session, server)


def _raise_unless_busy(error: dict[str, Any]) -> None:
    """Around a checkpoint the server is busy for a moment: the request is sent again, and counted once."""
    if error.get("code") != "SQLITE_BUSY":
        raise RuntimeError(f"the server refused a raw request: {error}")


def _execute(sql: str, params: Sequence[Value], *, wants_rows: bool) -> dict[str, Any]:
    return {
        "type": "execute",
        "stmt": {"sql": sql, "args": [_value(param) for param in params], "want_rows": wants_rows},
    }


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, int):
        return {"type": "integer", "value": str(value)}
    return {"type": "text", "value": value}
