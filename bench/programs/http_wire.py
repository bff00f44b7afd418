"""HTTP over a bare socket: a client that costs little next to the server it measures."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

Connect = Callable[[], Awaitable[tuple[StreamReader, StreamWriter]]]
"""Opens a connection."""

_PIECE: Final = 2**18
_PATIENCE_S: Final = 60.0


class WireAnswer(NamedTuple):
    """The status of an answer, and its body if it is kept."""

    status: int
    body: bytes


class HttpWire:
    """One connection to a service."""

    def __init__(self, connect: Connect, headers: str, host: str = "localhost") -> None:
        self._connect = connect
        self._head = f" HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n"

    @classmethod
    def to_url(cls, url: str, token: str) -> Self:
        """Return a connection to an address, with a token."""
        parts = urlsplit(url)
        connect = partial(asyncio.open_connection, parts.hostname or "", parts.port or 80)
        return cls(connect, f"Authorization: Bearer {token}", parts.netloc)

    @classmethod
    def to_socket(cls, path: Path, agent: str) -> Self:
        """Return a connection to the socket of a node, of an agent."""
        return cls(partial(asyncio.open_unix_connection, path), f"Vox-Agent: {agent}")

    async def __aenter__(self) -> Self:
        async with asyncio.timeout(_PATIENCE_S):
            self._reader, self._writer = await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.transport.abort()

    def send(self, method: str, path: str, body: bytes = b"", headers: str = "") -> None:
        """Send a request, with more headers, each with its end; wait for nothing."""
        length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        self._writer.write(f"{method} {path}{self._head}{headers}{length}\r\n".encode() + body)

    async def ask(self, method: str, path: str, body: bytes = b"", headers: str = "") -> WireAnswer:
        """Send a request, and read the whole answer."""
        self.send(method, path, body, headers)
        async with asyncio.timeout(_PATIENCE_S):
            status, length = await self._read_head()
            if length is None:
                raise ConnectionError("the answer is a stream")
            return WireAnswer(status, await self._reader.readexactly(length))

    async def listen(self, seconds: float) -> None:
        """Read a stream for a while, as fast as it comes."""
        try:
            async with asyncio.timeout(seconds):
                while await self._reader.read(_PIECE):
                    pass
        except TimeoutError:
            return

    async def _read_head(self) -> tuple[int, int | None]:
        status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = headers.get("content-length")
        return int(status.split()[1]), None if length is None else int(length)
