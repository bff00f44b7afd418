"""Lines lose, delay and double what goes over them, and their ends see what a client would."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from proof.simulate.loop import House, SimulatedLoop, new_loop
from proof.simulate.network import FAIR, Database, Line, Weather
from vox_mesh.errors import BadStatement, NoAnswer, Unreachable
from vox_mesh.store.batch import Batch
from vox_mesh.store.engines.memory import SharedMemory
from vox_mesh.store.script import Statement

_TIMEOUT_S = 3.0
_COUNT = Statement("SELECT count(*) FROM told")


class Town:
    """A database with one table, and a house with a line to it."""

    def __init__(self, loop: SimulatedLoop, weather: Weather) -> None:
        self.loop = loop
        self.database = Database(loop, SharedMemory(lambda: 0), random.Random(1))
        self.database.memory.query_now(Statement("CREATE TABLE told (word TEXT)"))
        self.house = House("client")
        self.line: Line = self.database.line(self.house, _TIMEOUT_S)
        self.line.way.weather = weather

    async def tell(self, word: str = "hello") -> None:
        batch = Batch()
        batch.add("INSERT INTO told VALUES (?)", (word,))
        await self.loop.begin(self.house, self.line.run(batch.seal()))

    @property
    def words(self) -> int:
        return int(self.database.memory.query_now(_COUNT).value)


def played(scenario: Callable[[Town], Coroutine[Any, Any, None]], weather: Weather = FAIR) -> None:
    loop = new_loop(random.Random(1).random)
    loop.run_until_complete(scenario(Town(loop, weather)))
    loop.close()


def test_on_a_fair_line_what_is_asked_is_done_and_answered() -> None:
    async def scenario(town: Town) -> None:
        await town.tell()
        assert (await town.line.query(_COUNT)).value == 1
        with pytest.raises(BadStatement):
            await town.line.query(Statement("SELECT nonsense"))
        assert town.loop.now < 0.1

    played(scenario)


@pytest.mark.parametrize(
    ("weather", "error", "words"),
    [
        (Weather(refused=1.0), Unreachable, 0),
        (Weather(lost=1.0), NoAnswer, 0),
        (Weather(unanswered=1.0), NoAnswer, 1),
        (Weather(broken=1.0), NoAnswer, 1),
    ],
    ids=["refused", "lost", "unanswered", "broken"],
)
def test_a_bad_line_is_told_as_it_is_and_no_better(
    weather: Weather, error: type[Exception], words: int
) -> None:
    async def scenario(town: Town) -> None:
        with pytest.raises(error):
            await town.tell()
        assert town.words == words
        assert town.loop.now <= _TIMEOUT_S + 0.1

    played(scenario, weather)


def test_what_comes_twice_is_done_twice_and_answered_once() -> None:
    async def scenario(town: Town) -> None:
        await town.tell()
        await asyncio.sleep(5)
        assert town.words == 2

    played(scenario, Weather(doubled=1.0))


def test_what_is_late_comes_after_its_sender_gave_up_or_died() -> None:
    async def scenario(town: Town) -> None:
        asking = asyncio.create_task(town.tell())
        await asyncio.sleep(0.0001)
        town.loop.raze(town.house)
        assert town.words == 0
        await asyncio.sleep(60)
        assert town.words == 1
        assert not asking.done()
        asking.cancel()

    played(scenario, Weather(late=1.0, late_s=50.0))


def test_a_database_that_stands_still_answers_when_it_goes_on() -> None:
    async def scenario(town: Town) -> None:
        town.loop.pause(town.database.house)
        with pytest.raises(NoAnswer):
            await town.tell()
        assert town.words == 0
        town.loop.resume(town.database.house)
        await town.tell()
        assert town.words == 2

    played(scenario)


def test_everybody_soon_knows_of_a_commit() -> None:
    async def scenario(town: Town) -> None:
        other = town.database.line(House("another"), _TIMEOUT_S)
        waiting = asyncio.create_task(other.changes.after(other.changes.count))
        await asyncio.sleep(0)
        await town.tell()
        await waiting
        assert town.loop.now < 1.1

    played(scenario)


def test_while_a_foreign_client_holds_the_database_writes_wait_and_reads_do_not() -> None:
    async def scenario(town: Town) -> None:
        town.database.hold()
        telling = asyncio.ensure_future(town.tell())
        assert (await town.line.query(_COUNT)).value == 0
        assert not telling.done()
        town.database.let_go()
        await telling
        assert town.words == 1

    played(scenario)


def test_a_database_that_is_put_back_holds_what_it_held() -> None:
    async def scenario(town: Town) -> None:
        await town.tell()
        image = town.database.memory.image()
        await town.tell()
        seen = town.line.changes.count
        town.database.put_back(image)
        assert town.words == 1
        assert town.line.changes.count > seen
        await town.tell()
        assert town.words == 2

    played(scenario)
