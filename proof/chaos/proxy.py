"""A TCP proxy on loopback that injects faults into the traffic between a client and a server."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Final, Self

from tools.sqld import free_port

_HOST: Final = "127.0.0.1"
_CHUNK: Final = 2**20
_LINGER_S: Final = 1.0
_PUSH_ASKED: Final = b"/LogEntries "


class Fault(StrEnum):
    """Faults of one message. After all but `HOLD_ANSWER` the connection is closed."""

    DROP_ANSWER = "drop the answer"
    CUT_ANSWER = "cut the answer in the middle"
    CUT_REQUEST = "cut the request in the middle"
    HOLD_ANSWER = "hold the answer back"


class PushFault(StrEnum):
    """Faults of a stream that a server pushes."""

    CUT = "cut in the middle of a frame"
    SWALLOW = "swallow everything, and leave the connection open"


@dataclass(frozen=True, slots=True)
class NetworkConditions:
    """The conditions of a connection, while they last."""

    delay_s: float = 0.0
    """Additional latency in each direction."""
    answer_s: float = 0.0
    """Additional latency of responses."""
    bytes_per_s: float = float("inf")
    """The throughput of each connection, in each direction."""
    is_half_open: bool = False
    """Connections stay open, and nothing passes; afterwards they are unusable."""
    is_doubling: bool = False
    """Every request reaches the server twice."""


HEALTHY: Final = NetworkConditions()

_OF_ANSWERS: Final = (Fault.DROP_ANSWER, Fault.CUT_ANSWER, Fault.HOLD_ANSWER)
_OF_PUSHES: Final = (*_OF_ANSWERS, *PushFault)


@dataclass
class Order:
    """A fault for the next messages: how many, after how many others."""

    fault: Fault | PushFault
    times: int
    after: int


class Link:
    """One client's connection and its counterpart to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.answers = 0
        self.is_pushed = False
        """Whether the last request was for a stream of pushes."""
        self.is_mute = False
        self.is_dead = False
        """Whether nothing passes any more, in either direction."""
        self.unwanted = asyncio.Event()
        self.closed = asyncio.Event()

    async def close(self) -> None:
        """Close both sides; data already written is still sent, if it is read soon."""
        try:
            for side in (self.client, self.server):
                side.close()
                try:
                    await asyncio.wait_for(side.wait_closed(), _LINGER_S)
                except TimeoutError:
                    side.transport.abort()
                except OSError:
                    pass  # the other end closed first
        finally:
            self.closed.set()


class Proxy:
    """Listen on its own port and forward everything, except for the ordered faults."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self.url = f"http://{_HOST}:{self.port}"
        self.spoiled = asyncio.Semaphore(0)
        """Released once for each fault that was injected."""
        self._target = target
        self._order: Order | None = None
        self._released = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._links: set[Link] = set()
        self._conditions = HEALTHY
        self._doubles: set[asyncio.Task[None]] = set()

    def set_conditions(self, conditions: NetworkConditions) -> None:
        """Set the conditions; connections that were half open are closed when that ends."""
        self._conditions = conditions
        for link in self._links:
            if conditions.is_half_open:
                link.is_dead = True
            elif link.is_dead:
                link.unwanted.set()

    def spoil(self, fault: Fault | PushFault, *, times: int = 1, after: int = 0) -> None:
        """Inject a fault `times` times, each on a connection that has had `after` responses before.

        A fault of pushes comes after that many of them, on any connections: a reader of a log that is
        compacted may have to begin new streams, and would never get as many in one.
        """
        self._released.clear()
        self._order = Order(fault, times, after)

    def release(self) -> None:
        """Inject no more faults, and forward what was held."""
        self._order = None
        self._released.set()

    async def accept(self) -> None:
        """Listen."""
        self._listener = await asyncio.start_server(self._serve, _HOST, self.port)

    async def refuse(self) -> None:
        """Stop listening and drop every connection: new ones are refused."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for link in list(self._links):
            link.unwanted.set()
            await link.closed.wait()
        for double in self._doubles:
            double.cancel()
        await asyncio.gather(*self._doubles, return_exceptions=True)

    def _due(self, link: Link, *faults: Fault | PushFault) -> Fault | PushFault | None:
        order = self._order
        if order is None or order.fault not in faults:
            return None
        if isinstance(order.fault, PushFault) and order.after:
            order.after -= 1
            return None
        if link.answers < order.after:
            return None
        order.times -= 1
        if order.times == 0:
            self._order = None
        self.spoiled.release()
        return order.fault

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answering, server = await asyncio.open_connection(_HOST, self._target)
        except OSError:
            writer.transport.abort()
            return
        link = Link(writer, server)
        link.is_dead = self._conditions.is_half_open
        self._links.add(link)
        ends = (
            asyncio.create_task(self._pass_requests(reader, link)),
            asyncio.create_task(self._pass_answers(answering, link)),
            asyncio.create_task(link.unwanted.wait()),
        )
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        await link.close()
        self._links.discard(link)

    async def _pass_requests(self, reader: asyncio.StreamReader, link: Link) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if data.startswith(b"POST "):
                    link.is_pushed = _PUSH_ASKED in data
                if self._due(link, Fault.CUT_REQUEST):
                    link.server.write(data[: len(data) // 2])
                    return
                await self._travel(data)
                if link.is_dead:
                    continue
                link.server.write(data)
                if self._conditions.is_doubling and not link.is_pushed:
                    self._double(data, link)
                await link.server.drain()

    async def _travel(self, data: bytes, more_s: float = 0.0) -> None:
        """Wait as long as these bytes take under the current conditions."""
        conditions = self._conditions
        if conditions is not HEALTHY:
            await asyncio.sleep(conditions.delay_s + more_s + len(data) / conditions.bytes_per_s)

    async def drop(self) -> None:
        """Drop every connection, with everything in transit."""
        for link in list(self._links):
            link.unwanted.set()
            await link.closed.wait()

    def _double(self, data: bytes, link: Link) -> None:
        """Send a request to the server once more: an HTTP request over a connection of its own."""
        if data.startswith(b"POST "):
            double = asyncio.create_task(self._send_alone(data))
            self._doubles.add(double)
            double.add_done_callback(self._doubles.discard)
        elif link.answers:  # on a connection with earlier requests, the same bytes again
            link.server.write(data)

    async def _send_alone(self, data: bytes) -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                reader, writer = await asyncio.open_connection(_HOST, self._target)
                try:
                    writer.write(data)
                    await reader.read(_CHUNK)
                finally:
                    writer.transport.abort()

    async def _pass_answers(self, reader: asyncio.StreamReader, link: Link) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if link.is_mute:
                    continue
                match self._due(link, *(_OF_PUSHES if link.is_pushed else _OF_ANSWERS)):
                    case Fault.DROP_ANSWER:
                        return
                    case Fault.CUT_ANSWER | PushFault.CUT:
                        link.client.write(data[: len(data) // 2])
                        return
                    case Fault.HOLD_ANSWER:
                        await self._released.wait()
                    case PushFault.SWALLOW:
                        link.is_mute = True
                        continue
                await self._travel(data, self._conditions.answer_s)
                if link.is_dead:
                    continue
                link.answers += 1
                link.client.write(data)
                await link.client.drain()

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse()
