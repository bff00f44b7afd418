"""The SpoolQueue: what only appends is never lost while the database is away, and never doubled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.nodes.clocks import Clock
from tests.support.running.examples import column, few
from tests.support.store.combining import LONG_S, adding
from tests.support.store.gate import GatedEngine
from vox_mesh import Outcome, Script, Statement, Store
from vox_mesh.errors import CircuitOpen, MeshError, NoAnswer, OutcomeUnknown, SpoolFull, Unreachable
from vox_mesh.model.base.backends import Backend
from vox_mesh.store.engines.memory import MemoryEngine
from vox_mesh.store.script import Verdict, WriterId
from vox_mesh.store.spool.spool import Spool
from vox_mesh.store.spool.spool_queue import SpoolQueue
from vox_mesh.store.write.breaker import Breaker

SHORT_S = 0.05


class ReplayPause:
    """A pause of the replay that lasts until a test rings, or (if it listens) the database has answered."""

    def __init__(self, *, listens: bool = False) -> None:
        self._rung = asyncio.Semaphore(0)
        self._listens = listens

    async def __call__(self, answered: asyncio.Event, _: float) -> None:
        await (answered.wait() if self._listens else self._rung.acquire())

    def ring(self) -> None:
        """End the pause."""
        self._rung.release()


class Away:
    """A store on a memory database that can be away, with a spool on disk."""

    def __init__(self, store: Store, gate: GatedEngine, queue: SpoolQueue, bell: ReplayPause) -> None:
        self.store = store
        self.gate = gate
        self.queue = queue
        self.bell = bell

    def leave(self) -> None:
        """The database can't be reached from now on."""
        self.leave_after(0)

    def leave_after(self, requests: int) -> None:
        """The database answers this many more requests, and then can't be reached."""
        gone = (Unreachable("no route") for _ in range(1_000))
        self.gate.before.extend([*([None] * requests), *gone])

    async def back(self) -> None:
        """The database is back; wait until the spool is empty."""
        self.gate.before.clear()
        self.bell.ring()
        await asyncio.wait_for(self.store.drained(), 30)

    async def append(self, *numbers: int, timeout: float = SHORT_S) -> list[Outcome]:
        """Write appendable scripts one after another."""
        return [
            await self.store.write(adding(number, appendable=True), timeout=timeout) for number in numbers
        ]

    async def refused(self) -> int:
        """How many scripts the database refused: sent a second time under a forgotten key, for one."""
        status = (await self.store.status()).spool
        assert status is not None
        return status.refused

    async def ids(self) -> list[Any]:
        """What the table holds, in the order of arrival."""
        return [row[0] for row in await self.store.read("SELECT id FROM t ORDER BY rowid")]


@asynccontextmanager
async def away(
    folder: Path,
    gate: GatedEngine | None = None,
    *,
    breaker: Breaker | None = None,
    max_bytes: int = 2**20,
    bell: ReplayPause | None = None,
) -> AsyncIterator[Away]:
    """A store with its spool in the folder."""
    gate = gate or GatedEngine(MemoryEngine())
    bell = bell or ReplayPause()
    queue = SpoolQueue(Spool(folder / "spool.db", max_bytes), timeout=0.2, wait=bell)
    writer_id = WriterId("", "default", "writer")
    store = Store(Backend.SERVER, gate, writer_id, timeout=LONG_S, breaker=breaker, spool_queue=queue)
    await store.begin()
    await store.write(Script(Statement("CREATE TABLE IF NOT EXISTS t (id INTEGER UNIQUE, a)")))
    try:
        yield Away(store, gate, queue, bell)
    finally:
        await store.close()


class LastingEngine(MemoryEngine):
    """A memory database that outlives its stores, as a server does."""

    async def close(self) -> None:
        """The server stays."""


async def test_unreachable_past_the_deadline_appends_are_kept_and_the_rest_is_reported(
    tmp_path: Path,
) -> None:
    async with away(tmp_path) as a:
        a.leave()
        needs_answer = asyncio.create_task(a.store.write(adding(100), timeout=SHORT_S))
        (kept,) = await a.append(1)
        assert kept.spooled
        with pytest.raises(MeshError):
            await needs_answer
        assert all(outcome.spooled for outcome in await a.append(2, 3))
        status = (await a.store.status()).spool
        assert status is not None
        assert status.depth == 3
        await a.back()
        assert await a.ids() == [1, 2, 3]
        assert not (await a.append(4))[0].spooled


async def test_with_the_circuit_open_appends_are_kept_at_once_and_the_rest_is_refused(tmp_path: Path) -> None:
    clock = Clock()
    breaker = Breaker(clock, faults=1)
    async with away(tmp_path, breaker=breaker) as a:
        a.leave()
        with pytest.raises(CircuitOpen):
            await a.store.write(adding(100))
        assert (await a.store.status()).breaker == "open"
        sent = len(a.gate.batches)
        outcomes = await a.append(1, 2, timeout=LONG_S)
        assert all(outcome.spooled for outcome in outcomes)
        with pytest.raises(CircuitOpen):
            await a.store.write(adding(100))
        assert len(a.gate.batches) == sent, "an open circuit lets nothing through"
        clock.now += 30
        await a.back()
        assert await a.ids() == [1, 2]


async def test_while_anything_is_kept_new_appends_go_behind_it(tmp_path: Path) -> None:
    async with away(tmp_path) as a:
        a.leave()
        await a.append(1)
        a.gate.before.clear()  # back, but not replayed yet
        assert (await a.append(2, timeout=LONG_S))[0].spooled
        await a.store.write(adding(3))
        await a.back()
        ids = await a.ids()
        assert ids.index(1) < ids.index(2)
        assert sorted(ids) == [1, 2, 3]


async def test_a_write_that_succeeds_ends_the_wait_for_the_next_replay(tmp_path: Path) -> None:
    async with away(tmp_path, bell=ReplayPause(listens=True)) as a:
        a.leave()
        await a.append(1)
        a.gate.before.clear()
        await a.store.write(adding(2))
        await asyncio.wait_for(a.store.drained(), 30)
        assert sorted(await a.ids()) == [1, 2]


async def test_the_next_owner_replays_what_was_kept(tmp_path: Path) -> None:
    gate = GatedEngine(LastingEngine())
    async with away(tmp_path, gate) as a:
        a.leave()
        await a.append(*range(1, 301))
    gate.before.clear()
    async with away(tmp_path, gate) as a:
        await a.back()
        assert await a.ids() == list(range(1, 301))


async def test_what_was_replayed_but_not_crossed_out_takes_effect_once(tmp_path: Path) -> None:
    gate = GatedEngine(LastingEngine())
    async with away(tmp_path, gate) as a:
        a.leave()
        await a.append(1, 2, 3)
    gate.before.clear()
    # The owner dies after the database took the scripts and before the spool heard of it.
    spool = Spool(tmp_path / "spool.db", 2**20)
    kept = [script for _, script in spool.first(2, 2**20)]
    spool.close()
    store = Store(Backend.SERVER, gate, WriterId("", "default", "writer"), timeout=LONG_S)
    await store._combiner.submit(kept, LONG_S, is_replay=True)
    await store.close()
    async with away(tmp_path, gate) as a:
        await a.back()
        assert await a.ids() == [1, 2, 3]
        assert await a.refused() == 0


async def test_kept_while_under_way_and_applied_after_all_it_takes_effect_once(tmp_path: Path) -> None:
    gate = GatedEngine(LastingEngine())
    async with away(tmp_path, gate) as a:
        gate.hold()
        (kept,) = await a.append(1)
        assert kept.spooled
        gate.release()  # the request was only slow
    async with away(tmp_path, gate) as a:
        await a.back()
        assert await a.ids() == [1]
        assert await a.refused() == 0


async def test_applied_with_its_answer_lost_and_then_kept_it_takes_effect_once(tmp_path: Path) -> None:
    gate = GatedEngine(LastingEngine())
    async with away(tmp_path, gate) as a:
        gate.after.append(NoAnswer("lost on the way back"))
        a.leave_after(1)
        assert (await a.append(1))[0].spooled
    gate.before.clear()
    async with away(tmp_path, gate) as a:
        await a.back()
        assert await a.ids() == [1]
        assert await a.refused() == 0


async def test_what_the_database_refuses_is_set_aside_and_the_rest_goes_on(tmp_path: Path) -> None:
    async with away(tmp_path) as a:
        await a.append(2, timeout=LONG_S)
        a.leave()
        await a.append(1, 2, 3)
        await a.back()
        assert await a.ids() == [2, 1, 3]
        assert await a.refused() == 1


async def test_a_full_spool_is_reported(tmp_path: Path) -> None:
    async with away(tmp_path, max_bytes=4_096) as a:
        a.leave()
        outcomes = await asyncio.gather(*(a.append(number) for number in range(100)), return_exceptions=True)
        kept = sum(isinstance(outcome, list) for outcome in outcomes)
        assert 5 < kept < 100
        assert all(isinstance(outcome, SpoolFull) for outcome in outcomes[kept:])
        await a.back()
        assert await a.ids() == list(range(kept))


async def test_a_disk_that_fails_is_reported_and_nothing_is_said_to_be_kept(tmp_path: Path) -> None:
    async with away(tmp_path) as a:
        a.leave()
        a.queue._spool._connection.execute("PRAGMA query_only = 1")
        with pytest.raises(MeshError, match="spool"):
            await a.append(1)
        a.queue._spool._connection.execute("PRAGMA query_only = 0")
        await a.back()


async def test_callers_at_once_are_kept_in_the_order_they_came(tmp_path: Path) -> None:
    async with away(tmp_path) as a:
        a.leave()
        tasks = [
            asyncio.create_task(a.store.write(adding(n, appendable=True), timeout=0.2)) for n in range(50)
        ]
        outcomes = await asyncio.gather(*tasks)
        assert all(outcome.spooled for outcome in outcomes)
        await a.back()
        assert await a.ids() == list(range(50))


async def test_an_appendable_script_has_no_answer() -> None:
    with pytest.raises(MeshError, match="appendable"):
        Script(Statement("SELECT 1"), answer=adding(1).answer, appendable=True)


async def test_reads_go_on_as_soon_as_the_database_is_back(tmp_path: Path) -> None:
    async with away(tmp_path) as a:
        a.leave()
        await a.append(1)
        assert await column(a.store, "t", "id") == []
        await a.back()


async def test_under_way_when_the_circuit_opens_an_append_is_kept_and_its_caller_notified(
    tmp_path: Path,
) -> None:
    async with away(tmp_path, breaker=Breaker(time.monotonic, faults=2)) as a:
        a.leave()
        assert (await a.append(1, timeout=LONG_S))[0].spooled
        status = (await a.store.status()).spool
        assert status is not None
        assert status.depth == 1


async def test_large_scripts_are_replayed_in_parts(tmp_path: Path) -> None:
    async with away(tmp_path, max_bytes=2**25) as a:
        a.leave()
        for number in range(12):
            insert = Statement("INSERT INTO t (id, a) VALUES (?, ?)", (number, "x" * 300_000))
            await a.store.write(Script(insert, appendable=True), timeout=SHORT_S)
        a.gate.batches.clear()
        await a.back()
        assert await a.ids() == list(range(12))
        largest = max(sum(len(str(step.params)) for step in batch.steps) for batch in a.gate.batches)
        assert largest < 2 * 2**20


async def test_on_a_slow_line_fewer_are_replayed_at_once_and_then_more_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool.db", 2**20)
    spool.keep([adding(number, appendable=True) for number in range(20)])
    queue = SpoolQueue(spool, timeout=1.0, max_scripts=8)
    sizes: list[int] = []

    async def submit(scripts: Sequence[Script], timeout: float, *, is_replay: bool) -> list[Verdict]:
        sizes.append(len(scripts))
        if len(sizes) < 3:
            raise OutcomeUnknown("no answer came before the deadline", key=scripts[0].key)
        return [Outcome(script.key) for script in scripts]

    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            await queue.replay_once(submit)
    while await queue.replay_once(submit):
        pass
    assert sizes == [8, 4, 2, 4, 8, 6]
    await queue.close()


@few
@given(st.lists(st.sampled_from(["append", "write", "leave", "return", "lose"]), min_size=3, max_size=12))
def test_whatever_happens_to_the_database_everyone_was_given_the_truth(actions: list[str]) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(_live_through(actions, Path(folder)))


async def _live_through(actions: list[str], folder: Path) -> None:
    reported: dict[int, type] = {}
    appended: list[int] = []
    async with away(folder, bell=ReplayPause(listens=True)) as a:
        for number, action in enumerate(actions):
            if action == "leave":
                a.leave()
            elif action == "return":
                a.gate.before.clear()
            elif action == "lose":
                a.gate.after.append(NoAnswer("lost on the way back"))
            else:
                script = adding(number, appendable=action == "append")
                try:
                    await a.store.write(script, timeout=SHORT_S)
                    reported[number] = Outcome
                except MeshError as error:
                    reported[number] = type(error)
                if action == "append":
                    appended.append(number)
        a.gate.before.clear()
        a.gate.after.clear()
        await a.store.write(adding(1_000))
        await asyncio.wait_for(a.store.drained(), 30)
        ids = await a.ids()
        assert len(ids) == len(set(ids))
        for number, ending in reported.items():
            if ending is Outcome:
                assert number in ids, "reported that it was applied or kept"
            elif ending is not OutcomeUnknown:
                assert number not in ids, f"reported {ending.__name__}, which means that it was not applied"
        kept = [number for number in ids if number in appended]
        assert kept == sorted(kept), "appended in this order"
        assert all(reported[number] is Outcome for number in appended)
