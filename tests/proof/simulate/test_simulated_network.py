"""Lines lose, delay and double what goes over them, and their ends see what a client would."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from proof.simulate.loop import SimulatedLoop, SimulatedProcess, new_loop
from proof.simulate.network import HEALTHY, Database, DatabaseConnection, NetworkConditions
from vox_mesh.errors import BadStatement, NoAnswer, Unreachable
from vox_mesh.store.batch import Batch
from vox_mesh.store.engines.memory import SharedMemory
from vox_mesh.store.script import Statement

_TIMEOUT_S = 3.0
_COUNT = Statement("SELECT count(*) FROM reported")


class Network:
    """A database with one table, and a house with a line to it."""

    def __init__(self, loop: SimulatedLoop, conditions: NetworkConditions) -> None:
        self.loop = loop
        self.database = Database(loop, SharedMemory(lambda: 0), random.Random(1))
        self.database.memory.query_now(Statement("CREATE TABLE reported (word TEXT)"))
        self.process = SimulatedProcess("client")
        self.connection: DatabaseConnection = self.database.connect(self.process, _TIMEOUT_S)
        self.connection.channel.conditions = conditions

    async def tell(self, word: str = "hello") -> None:
        batch = Batch()
        batch.add("INSERT INTO reported VALUES (?)", (word,))
        await self.loop.begin(self.process, self.connection.run(batch.seal()))

    @property
    def words(self) -> int:
        return int(self.database.memory.query_now(_COUNT).value)


def run_scenario(
    scenario: Callable[[Network], Coroutine[Any, Any, None]], conditions: NetworkConditions = HEALTHY
) -> None:
    loop = new_loop(random.Random(1).random)
    loop.run_until_complete(scenario(Network(loop, conditions)))
    loop.close()


def test_on_a_fair_line_what_is_asked_is_done_and_answered() -> None:
    async def scenario(network: Network) -> None:
        await network.tell()
        assert (await network.connection.query(_COUNT)).value == 1
        with pytest.raises(BadStatement):
            await network.connection.query(Statement("SELECT nonsense"))
        assert network.loop.now < 0.1

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("conditions", "error", "words"),
    [
        (NetworkConditions(refused=1.0), Unreachable, 0),
        (NetworkConditions(lost=1.0), NoAnswer, 0),
        (NetworkConditions(unanswered=1.0), NoAnswer, 1),
        (NetworkConditions(broken=1.0), NoAnswer, 1),
    ],
    ids=["refused", "lost", "unanswered", "broken"],
)
def test_a_bad_line_is_reported_unchanged_and_no_better(
    conditions: NetworkConditions, error: type[Exception], words: int
) -> None:
    async def scenario(network: Network) -> None:
        with pytest.raises(error):
            await network.tell()
        assert network.words == words
        assert network.loop.now <= _TIMEOUT_S + 0.1

    run_scenario(scenario, conditions)


def test_what_comes_twice_is_done_twice_and_answered_once() -> None:
    async def scenario(network: Network) -> None:
        await network.tell()
        await asyncio.sleep(5)
        assert network.words == 2

    run_scenario(scenario, NetworkConditions(doubled=1.0))


def test_what_is_late_comes_after_its_sender_gave_up_or_died() -> None:
    async def scenario(network: Network) -> None:
        asking = asyncio.create_task(network.tell())
        await asyncio.sleep(0.0001)
        network.loop.kill(network.process)
        assert network.words == 0
        await asyncio.sleep(60)
        assert network.words == 1
        assert not asking.done()
        asking.cancel()

    run_scenario(scenario, NetworkConditions(late=1.0, late_s=50.0))


def test_a_database_that_stands_still_answers_when_it_goes_on() -> None:
    async def scenario(network: Network) -> None:
        network.loop.pause(network.database.process)
        with pytest.raises(NoAnswer):
            await network.tell()
        assert network.words == 0
        network.loop.resume(network.database.process)
        await network.tell()
        assert network.words == 2

    run_scenario(scenario)


def test_everybody_soon_knows_of_a_commit() -> None:
    async def scenario(network: Network) -> None:
        other = network.database.connect(SimulatedProcess("another"), _TIMEOUT_S)
        waiting = asyncio.create_task(other.changes.after(other.changes.count))
        await asyncio.sleep(0)
        await network.tell()
        await waiting
        assert network.loop.now < 1.1

    run_scenario(scenario)


def test_while_a_foreign_client_holds_the_database_writes_wait_and_reads_do_not() -> None:
    async def scenario(network: Network) -> None:
        network.database.hold()
        telling = asyncio.ensure_future(network.tell())
        assert (await network.connection.query(_COUNT)).value == 0
        assert not telling.done()
        network.database.release()
        await telling
        assert network.words == 1

    run_scenario(scenario)


def test_a_database_that_is_restore_holds_what_it_held() -> None:
    async def scenario(network: Network) -> None:
        await network.tell()
        image = network.database.memory.image()
        await network.tell()
        seen = network.connection.changes.count
        network.database.restore(image)
        assert network.words == 1
        assert network.connection.changes.count > seen
        await network.tell()
        assert network.words == 2

    run_scenario(scenario)
