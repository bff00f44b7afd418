"""The network between simulated processes: nodes to database, and node to node.

A request may be lost, with or without its response, delayed, duplicated or reordered.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from proof.simulate.loop import SimulatedLoop, SimulatedProcess
from vox_mesh.errors import MeshError, NoAnswer, Unreachable
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.nodes.store_memory import StoreMemory
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.engine import Ask, EngineFacts
from vox_mesh.store.engines.memory import SharedMemory
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement
from vox_mesh.store.watch.changes import Changes

T = TypeVar("T")

_TRIED: Final = "half-open"
"""The state of a circuit breaker that probes."""

_QUICK_S: Final = (0.0002, 0.004)
"""The latency when nothing is wrong."""

_DOUBLE_S: Final = 2.0
"""A duplicate arrives within this time."""

_OVERTAKES: Final = 0.5
"""The share of duplicates of which the second response is the one that counts."""

_NOTIFY_S: Final = 1.0
"""Every node learns of a commit within this time; several commits are announced at once."""


@dataclass(frozen=True, slots=True)
class NetworkConditions:
    """The quality of a connection: the shares of requests to which these things happen."""

    refused: float = 0.0
    """It can't be sent."""
    lost: float = 0.0
    """It is sent, and never arrives."""
    unanswered: float = 0.0
    """It arrives, and the response does not."""
    broken: float = 0.0
    """It arrives, and the connection breaks before the response."""
    doubled: float = 0.0
    """It arrives twice."""
    late: float = 0.0
    """It, or its response, arrives up to `late_s` seconds late."""
    late_s: float = 0.0

    def can_repeat(self, timeout: float) -> bool:
        """Return whether a request can be applied again after it was answered: duplicated, or retried."""
        return self.doubled > 0 or (self.late > 0 and self.late_s > timeout)


HEALTHY: Final = NetworkConditions()


class Channel:
    """Requests from one process to others, with their responses."""

    def __init__(
        self, loop: SimulatedLoop, client: SimulatedProcess, rng: random.Random, timeout: float
    ) -> None:
        self.conditions = HEALTHY
        self._loop = loop
        self._client = client
        self._rng = rng
        self._timeout = timeout

    async def ask(self, to: SimulatedProcess, work: Callable[[Answer], object]) -> Any:
        """Run a function in another process, and return its response."""
        loop, rng, conditions = self._loop, self._rng.random, self.conditions
        if conditions is not HEALTHY and rng() < conditions.refused:
            await asyncio.sleep(self._quick())
            raise Unreachable("the line is dead")
        reply: asyncio.Future[Any] = loop.create_future()
        first = self._answer(reply)
        if conditions is HEALTHY or rng() >= conditions.lost:
            ways_s = [self._on_its_way()]
            if conditions is not HEALTHY and rng() < conditions.doubled:
                ways_s.append(self._on_its_way() + _DOUBLE_S * rng())
                if rng() < _OVERTAKES:
                    ways_s.reverse()
            for way_s, answer in zip(ways_s, (first, _ignore), strict=False):
                loop.send(way_s, to, work, answer)
        timer = loop.call_later(self._timeout, _give_up, reply, self._timeout)
        try:
            return await reply
        finally:
            timer.cancel()

    def _answer(self, reply: asyncio.Future[Any]) -> Answer:
        conditions, rng = self.conditions, self._rng.random
        back_s = self._on_its_way()
        if conditions is not HEALTHY and rng() < conditions.unanswered:
            return _ignore
        is_broken = conditions is not HEALTHY and rng() < conditions.broken

        def answer(result: Any) -> None:
            content = NoAnswer("the connection broke") if is_broken else result
            self._loop.send(back_s, self._client, _settle, reply, content)

        return answer

    def _on_its_way(self) -> float:
        conditions = self.conditions
        if conditions is not HEALTHY and self._rng.random() < conditions.late:
            return conditions.late_s * self._rng.random()
        return self._quick()

    def _quick(self) -> float:
        least, most = _QUICK_S
        return least + (most - least) * self._rng.random()


Answer = Callable[[Any], None]
"""Takes the response; an error is raised at the caller."""


def _ignore(_result: Any) -> None:
    """Ignore the response."""


def _settle(reply: asyncio.Future[Any], answer: Any) -> None:
    if reply.done():
        return
    if isinstance(answer, Exception):
        reply.set_exception(answer)
    else:
        reply.set_result(answer)


def _give_up(reply: asyncio.Future[Any], seconds: float) -> None:
    if not reply.done():
        reply.set_exception(NoAnswer(f"no answer came within {seconds:g} s"))


class Database:
    """The database, in its own process, and all connections to it."""

    def __init__(self, loop: SimulatedLoop, memory: SharedMemory, rng: random.Random) -> None:
        self.process: Final = SimulatedProcess("database")
        self.memory: Final = memory
        self._loop = loop
        self._rng = rng
        self._lines: list[DatabaseConnection] = []
        self._held = 0
        self._waiting: list[Callable[[], None]] = []

    def hold(self) -> None:
        """Let a foreign client begin a write transaction."""
        self._held += 1

    def release(self) -> None:
        """End that transaction, and run the writes that waited for it."""
        self._held -= 1
        while self._waiting and not self._held:
            self._waiting.pop(0)()

    def restore(self, image: bytes) -> None:
        """Restore an earlier state."""
        self.memory.restore(image)
        for connect in self._lines:
            connect.changes.bump()

    def connect(self, client: SimulatedProcess, timeout: float) -> DatabaseConnection:
        """Return a connection for a process."""
        self._lines = [connect for connect in self._lines if not connect.client.is_killed]
        connect = DatabaseConnection(self, client, Channel(self._loop, client, self._rng, timeout))
        self._lines.append(connect)
        return connect

    def run(self, batch: Batch, by: DatabaseConnection, answer: Answer) -> None:
        """Run a batch, and notify all other connections; the caller learns of it from the response."""
        if self._held:
            self._waiting.append(partial(self.run, batch, by, answer))
            return
        answer(self.memory.run_now(batch))
        for connect in self._lines:
            if connect is by and by.channel.conditions is HEALTHY:
                continue
            if connect.changes.is_awaited:
                connect.notify_soon(self._loop, _NOTIFY_S * self._rng.random())
            else:
                connect.changes.bump()

    def query(self, statement: Statement, answer: Answer) -> None:
        """Answer a query."""
        try:
            answer(self.memory.query_now(statement))
        except MeshError as error:
            answer(error)


class DatabaseConnection:
    """The database as one node sees it."""

    max_scripts = SharedMemory.max_scripts

    def __init__(self, database: Database, client: SimulatedProcess, channel: Channel) -> None:
        self.client: Final = client
        self.channel: Final = channel
        self.is_remote = True
        self.changes = Changes()
        self.keys: dict[str, SigningKey] = database.memory.keys
        self.memories: dict[str, StoreMemory] = database.memory.memories
        self._database = database
        self._is_notifying = False
        self._probes = 0
        self.circuit: Callable[[], str] = lambda: "off"
        """Returns the state of the node's circuit breaker."""
        self.probed: Callable[[int], None] = lambda count: None
        """Called for each probe of a circuit, with the number of other calls in progress."""

    def notify_soon(self, loop: SimulatedLoop, seconds: float) -> None:
        """Notify those who wait for a commit."""
        if not self._is_notifying:
            self._is_notifying = True
            loop.send(seconds, self.client, self._notify)

    def _notify(self) -> None:
        self._is_notifying = False
        self.changes.bump()

    async def run(self, batch: Batch) -> BatchResult:
        """Run a batch in a transaction."""
        result: BatchResult = await self._ask(partial(self._database.run, batch, self))
        return result

    async def query(self, statement: Statement) -> Rows:
        """Answer a query."""
        rows: Rows = await self._ask(partial(self._database.query, statement))
        return rows

    async def _ask(self, work: Callable[[Answer], object]) -> Any:
        if self.circuit() != _TRIED:
            return await self.channel.ask(self._database.process, work)
        self.probed(self._probes)
        self._probes += 1
        try:
            return await self.channel.ask(self._database.process, work)
        finally:
            self._probes -= 1

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Ask]:
        """Run several queries on one snapshot."""
        async with self._database.memory.snapshot() as ask:
            yield ask

    async def facts(self) -> EngineFacts:
        """Return facts about the engine."""
        return await self._database.memory.facts()

    async def close(self) -> None:
        """Do nothing: the others still use the database."""


def served(
    loop: SimulatedLoop, process: SimulatedProcess, serve: Callable[[], Coroutine[Any, Any, T]]
) -> Callable[[Answer], object]:
    """Return a function that runs a coroutine in a process, for requests from others."""

    async def work(answer: Answer) -> None:
        try:
            result: Any = await serve()
        except MeshError as error:
            result = error
        answer(result)

    return lambda answer: loop.begin(process, work(answer))
