"""Read the primary's write-ahead log through its replication service."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import unquote

import aiohttp

from vox_mesh.errors import NoAnswer, SyncRefused, Unauthorized, Unreachable
from vox_mesh.model.base.histogram import Counts
from vox_mesh.store.replica import wire
from vox_mesh.store.replica.replica import NeedsSnapshot, NoSnapshot, SessionOver
from vox_mesh.store.replica.wire import Hello, Trailers, WalFrame

_SERVICE: Final = "wal_log.ReplicationLog"
_HANDSHAKE: Final = 1
_PURPOSES: Final = {"Hello": "hello", "LogEntries": "frames", "Snapshot": "snapshot"}
_NAMESPACE: Final = base64.b64encode(b"default").rstrip(b"=").decode()
_READ_AHEAD: Final = 2**18
_OK, _FAILED_PRECONDITION, _UNIMPLEMENTED = 0, 9, 12
_NOT_ALLOWED: Final = frozenset({7, 16})
_NO_AUTH: Final = "Error parsing auth header"
_NOT_OFFERED: Final = frozenset({404, 405, 410, 415, 426, 501, 505})


class PrimaryLog:
    """A client of the replication service. Only the push stream may be silent for long.

    Calls that return frames start with the frame `first`, and yield frames in groups as they arrive.
    """

    def __init__(
        self, endpoint: str, token: str | None, timeout: float, requests: Counts | None = None
    ) -> None:
        self._endpoint = endpoint
        self._requests = Counts() if requests is None else requests
        self._timeout = timeout
        self._headers = {"content-type": "application/grpc-web", "x-namespace-bin": _NAMESPACE}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._http: aiohttp.ClientSession | None = None
        self.fetched_bytes = 0
        """The number of bytes received from the primary."""

    async def hello(self, timeout: float) -> Hello:
        """Ask for the primary's log and its last frame, and start a session for the calls that follow."""
        try:
            async with asyncio.timeout(timeout), self._call("Hello", _HANDSHAKE) as chunks:
                answers = [wire.hello(message) async for messages in chunks for message in messages]
        except TimeoutError:
            raise NoAnswer(f"the primary did not answer our hello within {timeout:g} s") from None
        if not answers:
            raise NoAnswer("the primary said nothing to our hello")
        self._headers["x-session-token"] = answers[0].session
        return answers[0]

    async def snapshot(self, first: int) -> AsyncGenerator[list[WalFrame], None]:
        """Yield the pages changed since the frame `first`, newest first; the last one has `size_after`."""
        async with self._call("Snapshot", first) as chunks:
            async for messages in chunks:
                yield [wire.frame(each) for each in messages]

    async def follow(self, first: int) -> AsyncGenerator[list[WalFrame], None]:
        """Yield the frames of the log, then new frames as they are committed, until the connection ends."""
        async with self._call("LogEntries", first, may_be_silent=True) as chunks:
            async for messages in chunks:
                yield [wire.frame(each) for each in messages]

    @asynccontextmanager
    async def _call(
        self, method: str, number: int, *, may_be_silent: bool = False
    ) -> AsyncIterator[AsyncIterator[list[memoryview]]]:
        if self._http is None:
            self._http = aiohttp.ClientSession(read_bufsize=_READ_AHEAD)
        silence = None if may_be_silent else self._timeout
        self._requests.add(_PURPOSES[method])
        try:
            async with self._http.post(
                f"{self._endpoint}/{_SERVICE}/{method}",
                data=wire.request(number),
                headers=self._headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=silence),
            ) as response:
                self._check(response)
                yield self._messages(response)
        except TimeoutError:
            raise NoAnswer("the primary did not answer in time") from None
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(f"{self._endpoint} can't be reached: {error}") from None
        except (
            aiohttp.ServerDisconnectedError,
            aiohttp.ClientPayloadError,
        ):  # their messages are not helpful
            raise NoAnswer("the connection to the primary broke") from None
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswer(f"the connection to the primary broke: {error}") from None
        except wire.BadWire as error:
            raise NoAnswer(f"the primary sent something else than its log: {error}") from None

    def _check(self, response: aiohttp.ClientResponse) -> None:
        """Raise the error of a call that failed at once, from its status and headers."""
        if response.status in _NOT_OFFERED or (
            response.status == 200 and not response.content_type.startswith("application/grpc-web")
        ):
            raise SyncRefused(f"{self._endpoint} does not push its log (status {response.status})")
        if response.status != 200:
            raise NoAnswer(f"the primary answered with status {response.status}")
        if (status := response.headers.get("grpc-status")) is not None:
            _raise_for_trailers(wire.ending(status, response.headers.get("grpc-message", "")))

    async def _messages(self, response: aiohttp.ClientResponse) -> AsyncIterator[list[memoryview]]:
        """Yield the messages of a call, in the groups in which they arrive."""
        parts = wire.FrameParts()
        async for chunk in response.content.iter_any():
            self.fetched_bytes += len(chunk)
            messages: list[memoryview] = []
            ending: Trailers | None = None
            for part in parts.feed(chunk):
                if isinstance(part, Trailers):
                    ending = part
                else:
                    messages.append(part)
            if messages:
                yield messages
            if ending is not None:
                _raise_for_trailers(ending)
                return
        raise NoAnswer("the primary ended the call in the middle")

    async def close(self) -> None:
        """Close all connections."""
        if self._http is not None:
            await self._http.close()


def _raise_for_trailers(ending: Trailers) -> None:
    """Raise the error that the trailers describe, if any."""
    if ending.status == _OK:
        return
    message = unquote(ending.message)
    if ending.status == _FAILED_PRECONDITION and message == "NEED_SNAPSHOT":
        raise NeedsSnapshot("the frame is not in the log any more")
    if ending.status == _FAILED_PRECONDITION and message == "NO_HELLO":
        raise SessionOver("the primary was started again")
    if message == "snapshot not found":
        raise NoSnapshot("the primary has no such snapshot")
    if ending.status == _UNIMPLEMENTED or "deprecated" in message:
        raise SyncRefused(f"the primary does not push its log: {message or 'not implemented'}")
    if ending.status in _NOT_ALLOWED or message.startswith(_NO_AUTH):
        raise Unauthorized(
            f"the primary refused the token for its log: {message}",
            hint="check that VOX_DB_TOKEN is valid",
        )
    raise NoAnswer(f"the primary failed with status {ending.status}: {message}")
