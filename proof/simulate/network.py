"""The lines between houses: from each node to the database, and from node to node. What goes over them may be
lost, with its answer or without, come late, come twice, or overtake another."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from proof.simulate.loop import House, SimulatedLoop
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
"""The circuit of a breaker that has rested."""

_QUICK_S: Final = (0.0002, 0.004)
"""How long something is on its way, when nothing is wrong."""

_DOUBLE_S: Final = 2.0
"""What comes twice comes again within this time."""

_OVERTAKES: Final = 0.5
"""The share of what comes twice of which the answer to the second is the one that is heard."""

_TOLD_S: Final = 1.0
"""Within this time everybody knows of a commit; of several, at once."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How bad a line is: the shares of what goes over it to which these things happen."""

    refused: float = 0.0
    """It can't even be sent."""
    lost: float = 0.0
    """It is sent, and never comes."""
    unanswered: float = 0.0
    """It comes, and the answer does not."""
    broken: float = 0.0
    """It comes, and the connection breaks before the answer."""
    doubled: float = 0.0
    """It comes twice."""
    late: float = 0.0
    """It comes, or its answer does, after `late_s` seconds at the most."""
    late_s: float = 0.0

    def can_repeat(self, timeout: float) -> bool:
        """Whether a request can be applied again after it was answered: it came twice, or was sent again."""
        return self.doubled > 0 or (self.late > 0 and self.late_s > timeout)


FAIR: Final = Weather()


class Way:
    """One direction of traffic: from a house to another one, and back with the answer."""

    def __init__(self, loop: SimulatedLoop, home: House, chance: random.Random, timeout: float) -> None:
        self.weather = FAIR
        self._loop = loop
        self._home = home
        self._chance = chance
        self._timeout = timeout

    async def ask(self, to: House, work: Callable[[Answer], object]) -> Any:
        """Have something done in another house; it tells its answer, which is what comes back."""
        loop, chance, weather = self._loop, self._chance.random, self.weather
        if weather is not FAIR and chance() < weather.refused:
            await asyncio.sleep(self._quick())
            raise Unreachable("the line is dead")
        asked: asyncio.Future[Any] = loop.create_future()
        answer = self._answer(asked)
        if weather is FAIR or chance() >= weather.lost:
            ways_s = [self._on_its_way()]
            if weather is not FAIR and chance() < weather.doubled:
                ways_s.append(self._on_its_way() + _DOUBLE_S * chance())
                if chance() < _OVERTAKES:
                    ways_s.reverse()
            for way_s, told in zip(ways_s, (answer, _unheard), strict=False):
                loop.send(way_s, to, work, told)
        timer = loop.call_later(self._timeout, _give_up, asked, self._timeout)
        try:
            return await asked
        finally:
            timer.cancel()

    def _answer(self, asked: asyncio.Future[Any]) -> Answer:
        weather, chance = self.weather, self._chance.random
        back_s = self._on_its_way()
        if weather is not FAIR and chance() < weather.unanswered:
            return _unheard
        is_broken = weather is not FAIR and chance() < weather.broken

        def answer(result: Any) -> None:
            told = NoAnswer("the connection broke") if is_broken else result
            self._loop.send(back_s, self._home, _settle, asked, told)

        return answer

    def _on_its_way(self) -> float:
        weather = self.weather
        if weather is not FAIR and self._chance.random() < weather.late:
            return weather.late_s * self._chance.random()
        return self._quick()

    def _quick(self) -> float:
        least, most = _QUICK_S
        return least + (most - least) * self._chance.random()


Answer = Callable[[Any], None]
"""Takes what came of it; an error is raised where it was asked."""


def _unheard(_result: Any) -> None:
    """Nobody hears this."""


def _settle(asked: asyncio.Future[Any], told: Any) -> None:
    if asked.done():
        return
    if isinstance(told, Exception):
        asked.set_exception(told)
    else:
        asked.set_result(told)


def _give_up(asked: asyncio.Future[Any], seconds: float) -> None:
    if not asked.done():
        asked.set_exception(NoAnswer(f"no answer came within {seconds:g} s"))


class Database:
    """The one database, in a house of its own, and all lines to it."""

    def __init__(self, loop: SimulatedLoop, memory: SharedMemory, chance: random.Random) -> None:
        self.house: Final = House("database")
        self.memory: Final = memory
        self._loop = loop
        self._chance = chance
        self._lines: list[Line] = []
        self._held = 0
        self._waiting: list[Callable[[], None]] = []

    def hold(self) -> None:
        """Have a foreign client begin a write transaction."""
        self._held += 1

    def let_go(self) -> None:
        """Have it end, and the writes that waited for it run."""
        self._held -= 1
        while self._waiting and not self._held:
            self._waiting.pop(0)()

    def put_back(self, image: bytes) -> None:
        """Have the database be as it was."""
        self.memory.restore(image)
        for line in self._lines:
            line.changes.bump()

    def line(self, home: House, timeout: float) -> Line:
        """A line from a house."""
        self._lines = [line for line in self._lines if not line.home.is_razed]
        line = Line(self, home, Way(self._loop, home, self._chance, timeout))
        self._lines.append(line)
        return line

    def run(self, batch: Batch, by: Line, answer: Answer) -> None:
        """Run a batch, and have everybody know that there was one; who gets the answer knows by that."""
        if self._held:
            self._waiting.append(partial(self.run, batch, by, answer))
            return
        answer(self.memory.run_now(batch))
        for line in self._lines:
            if line is by and by.way.weather is FAIR:
                continue
            if line.changes.is_awaited:
                line.tell_soon(self._loop, _TOLD_S * self._chance.random())
            else:
                line.changes.bump()

    def query(self, statement: Statement, answer: Answer) -> None:
        """Answer a query."""
        try:
            answer(self.memory.query_now(statement))
        except MeshError as error:
            answer(error)


class Line:
    """The database as one life of a node sees it."""

    max_scripts = SharedMemory.max_scripts

    def __init__(self, database: Database, home: House, way: Way) -> None:
        self.home: Final = home
        self.way: Final = way
        self.is_remote = True
        self.changes = Changes()
        self.keys: dict[str, SigningKey] = database.memory.keys
        self.memories: dict[str, StoreMemory] = database.memory.memories
        self._database = database
        self._is_telling = False
        self._probes = 0
        self.circuit: Callable[[], str] = lambda: "off"
        """How the breaker of whoever lives there stands."""
        self.probed: Callable[[int], None] = lambda beside: None
        """Called when a circuit is tried, with how many calls were let through beside that."""

    def tell_soon(self, loop: SimulatedLoop, seconds: float) -> None:
        """Have those who wait there know of a commit."""
        if not self._is_telling:
            self._is_telling = True
            loop.send(seconds, self.home, self._tell)

    def _tell(self) -> None:
        self._is_telling = False
        self.changes.bump()

    async def run(self, batch: Batch) -> BatchResult:
        """Have a batch's transaction run."""
        result: BatchResult = await self._ask(partial(self._database.run, batch, self))
        return result

    async def query(self, statement: Statement) -> Rows:
        """Have a query answered."""
        rows: Rows = await self._ask(partial(self._database.query, statement))
        return rows

    async def _ask(self, work: Callable[[Answer], object]) -> Any:
        if self.circuit() != _TRIED:
            return await self.way.ask(self._database.house, work)
        self.probed(self._probes)
        self._probes += 1
        try:
            return await self.way.ask(self._database.house, work)
        finally:
            self._probes -= 1

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Ask]:
        """Several queries of one moment."""
        async with self._database.memory.snapshot() as ask:
            yield ask

    async def facts(self) -> EngineFacts:
        """Which way the database is reached."""
        return await self._database.memory.facts()

    async def close(self) -> None:
        """The database stays for the others."""


def served(
    loop: SimulatedLoop, house: House, serve: Callable[[], Coroutine[Any, Any, T]]
) -> Callable[[Answer], object]:
    """What a house does that takes its time, for whoever asks over a way to it."""

    async def work(answer: Answer) -> None:
        try:
            result: Any = await serve()
        except MeshError as error:
            result = error
        answer(result)

    return lambda answer: loop.begin(house, work(answer))
