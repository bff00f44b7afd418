"""The proxy of a run: what each weather does to what goes through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from proof.chaos.proxy import HEALTHY, NetworkConditions, Proxy

_PATIENCE_S = 10.0


class Echo:
    """A server that says in capitals what it hears, and keeps it."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.news = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer until the other side hangs up."""
        while data := await reader.read(2**16):
            self.heard.append(data)
            self.news.set()
            writer.write(data.upper())
        writer.close()

    async def heard_times(self, count: int) -> None:
        """Wait until so much was heard."""
        async with asyncio.timeout(_PATIENCE_S):
            while len(self.heard) < count:
                self.news.clear()
                await self.news.wait()


@pytest.fixture
async def echo() -> Echo:
    """Who is at the other end."""
    return Echo()


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[Proxy]:
    """A proxy in front of it."""
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    async with server, Proxy(server.sockets[0].getsockname()[1]) as proxy:
        yield proxy


class Line:
    """A client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, proxy: Proxy) -> Line:
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", proxy.port))

    def say(self, words: bytes) -> None:
        """Send."""
        self._writer.write(words)

    async def answer(self) -> bytes:
        """What comes next; nothing, if the other side hung up."""
        async with asyncio.timeout(_PATIENCE_S):
            return await self._reader.read(2**16)

    def close(self) -> None:
        """Hang up."""
        self._writer.transport.abort()


@pytest.fixture
async def line(proxy: Proxy) -> AsyncIterator[Line]:
    """A connection through the proxy that has had an answer."""
    line = await Line.to(proxy)
    line.say(b"hello")
    assert await line.answer() == b"HELLO"
    yield line
    line.close()


async def _took_s(line: Line, words: bytes) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    line.say(words)
    assert await line.answer()
    return loop.time() - began


async def test_a_delay_is_added_both_ways_and_ends_with_the_weather(proxy: Proxy, line: Line) -> None:
    proxy.set_conditions(NetworkConditions(delay_s=0.05))
    assert await _took_s(line, b"slow") >= 0.1
    proxy.set_conditions(HEALTHY)
    line.say(b"quick")
    assert await line.answer() == b"QUICK"


async def test_a_throttled_line_takes_the_time_that_its_bytes_take(proxy: Proxy, line: Line) -> None:
    proxy.set_conditions(NetworkConditions(bytes_per_s=20_000))
    assert await _took_s(line, bytes(1_000)) >= 0.1


async def test_on_a_half_open_line_nothing_comes_and_afterwards_it_is_closed(
    proxy: Proxy, line: Line, echo: Echo
) -> None:
    proxy.set_conditions(NetworkConditions(is_half_open=True))
    line.say(b"anybody?")
    fresh = await Line.to(proxy)
    fresh.say(b"nobody")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await line.answer()
    proxy.set_conditions(HEALTHY)
    assert await line.answer() == b""
    assert await fresh.answer() == b""
    assert echo.heard == [b"hello"]
    fresh.close()


async def test_a_doubled_request_is_heard_twice_on_its_line_or_as_that_of_another(
    proxy: Proxy, line: Line, echo: Echo
) -> None:
    proxy.set_conditions(NetworkConditions(is_doubling=True))
    line.say(b"again")
    await echo.heard_times(2)
    line.say(b"POST / HTTP/1.1")
    async with asyncio.timeout(_PATIENCE_S):
        while b"".join(echo.heard) != b"hello" + 2 * b"again" + 2 * b"POST / HTTP/1.1":
            echo.news.clear()
            await echo.news.wait()


async def test_a_line_that_is_cut_while_its_client_is_slow_is_closed_like_any_other(
    proxy: Proxy, line: Line, echo: Echo
) -> None:
    words = bytes(2**24)
    line.say(words)
    async with asyncio.timeout(_PATIENCE_S):
        while sum(map(len, echo.heard)) < len(words):  # more comes back than anybody has room for
            echo.news.clear()
            await echo.news.wait()
    cutting = asyncio.create_task(proxy.refuse())
    while await line.answer():
        pass
    async with asyncio.timeout(_PATIENCE_S):
        await cutting


async def test_answers_alone_can_be_late(proxy: Proxy, line: Line, echo: Echo) -> None:
    proxy.set_conditions(NetworkConditions(answer_s=_PATIENCE_S))
    line.say(b"slow")
    await echo.heard_times(2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await line.answer()


async def test_connections_that_are_dropped_are_closed_and_others_can_be_made(
    proxy: Proxy, line: Line
) -> None:
    proxy.set_conditions(NetworkConditions(answer_s=_PATIENCE_S))
    line.say(b"on its way")
    await proxy.drop()
    proxy.set_conditions(HEALTHY)
    assert await line.answer() == b""
    fresh = await Line.to(proxy)
    fresh.say(b"again")
    assert await fresh.answer() == b"AGAIN"
    fresh.close()
