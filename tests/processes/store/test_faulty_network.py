"""Between the store and its server stands a network that loses, cuts, delays and refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from proof.chaos.proxy import Fault, Proxy
from tests.support.running import lengths
from tests.support.running.jobs import Job
from tests.support.store.tables import make_table
from tests.support.store.tally import applied, assert_accounted_for
from tests.support.store.transport import transport
from tests.support.store.writers import COLUMNS, outcome_of, pair
from tools.homes import MESH, MESH_HTTP, HomeCase
from tools.sqld import Server
from vox_mesh import Answer, Outcome, Script, Statement, Store, open_store
from vox_mesh.errors import DatabaseUnavailable, OutcomeUnknown, Unreachable
from vox_mesh.model.base.backends import Driver

_PATIENT_S = 60.0


@pytest.fixture
async def proxy(shared_server: Server) -> AsyncIterator[Proxy]:
    """A proxy before the server."""
    async with Proxy(shared_server.port) as proxy:
        yield proxy


@pytest.fixture(params=[MESH, *lengths.cases_in_soak(MESH_HTTP)], ids=str)
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, shared_server: Server, proxy: Proxy
) -> AsyncIterator[Store]:
    """A store that reaches its server through the proxy."""
    case: HomeCase = request.param
    settings = case.settings(tmp_path, shared_server, db_url=proxy.url, db_request_timeout="3s")
    async with await open_store(settings) as store:
        yield store
        proxy.release()


class Counter:
    """A number in the database that every script raises, and answers with."""

    def __init__(self, store: Store, table: str) -> None:
        self._store = store
        self._table = table

    @classmethod
    async def make(cls, store: Store) -> Counter:
        table = await make_table(store, "n INTEGER NOT NULL")
        await store.write(Script(Statement(f"INSERT INTO {table} VALUES (0)")))
        return cls(store, table)

    def script(self) -> Script:
        return Script(
            Statement(f"UPDATE {self._table} SET n = n + 1"),
            answer=Answer(f"SELECT n FROM {self._table}", columns=("n",)),
        )

    async def raised(self, timeout: float = _PATIENT_S) -> Outcome:
        return await self._store.write(self.script(), timeout=timeout)

    async def value(self) -> Any:
        return (await self._store.read(f"SELECT n FROM {self._table}", timeout=_PATIENT_S)).value


@pytest.mark.soak
@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.CUT_ANSWER], ids=str)
async def test_a_lost_answer_is_given_again_as_it_was(store: Store, proxy: Proxy, fault: Fault) -> None:
    counter = await Counter.make(store)
    for n in range(1, 2 * lengths.LOST_ANSWERS, 2):
        proxy.spoil(fault)
        outcome = await counter.raised()
        assert (outcome.rows.value, outcome.repeated) == (n, True)
        outcome = await counter.raised()
        assert (outcome.rows.value, outcome.repeated) == (n + 1, False)


async def test_a_request_cut_in_the_middle_has_no_effect_and_is_sent_again(
    store: Store, proxy: Proxy
) -> None:
    counter = await Counter.make(store)
    proxy.spoil(Fault.CUT_REQUEST)
    outcome = await counter.raised()
    assert (outcome.rows.value, outcome.repeated) == (1, False)
    assert await counter.value() == 1


async def test_an_answer_that_comes_too_late_is_asked_for_again(store: Store, proxy: Proxy) -> None:
    counter = await Counter.make(store)
    proxy.spoil(Fault.HOLD_ANSWER)
    outcome = await counter.raised()  # the request's own time limit passes before the caller's
    assert (outcome.rows.value, outcome.repeated) == (1, True)
    proxy.release()
    assert (await counter.raised()).rows.value == 2


async def test_a_refused_connection_has_no_effect_and_is_reported_as_such(store: Store, proxy: Proxy) -> None:
    counter = await Counter.make(store)
    await proxy.refuse()
    # The first attempt may meet the connection as it closes; after that nothing can be sent.
    with pytest.raises((Unreachable, OutcomeUnknown)):
        await counter.raised(timeout=0.3)
    with pytest.raises(Unreachable):
        await counter.raised(timeout=0.3)
    await proxy.accept()
    assert (await counter.raised()).rows.value == 1


async def test_a_caller_is_never_notified_that_nothing_was_sent_when_the_answers_are_lost(
    store: Store, proxy: Proxy
) -> None:
    counter = await Counter.make(store)
    over_websocket = "WebSocket" in await transport(store)
    # A WebSocket's first answers are the upgrade, the greeting and the stream; those are let through.
    proxy.spoil(Fault.DROP_ANSWER, times=1_000, after=3 if over_websocket else 0)
    script = counter.script()
    with pytest.raises(OutcomeUnknown):
        await store.write(script, timeout=2.5)
    proxy.release()
    outcome = await store.write(script, timeout=_PATIENT_S)
    assert (outcome.rows.value, outcome.repeated) == (1, True)
    assert await counter.value() == 1


async def test_what_was_reported_as_not_sent_is_not_sent_later_with_its_neighbours(
    store: Store, proxy: Proxy
) -> None:
    job = Job("", await make_table(store, COLUMNS), "me")
    await proxy.refuse()
    with pytest.raises((Unreachable, OutcomeUnknown)):  # from now on, the store knows that the line is cut
        await store.write(Script(Statement("SELECT 1")), timeout=0.2)
    impatient, patient = (
        asyncio.create_task(outcome_of(store, pair(job, caller, 0), timeout))
        for caller, timeout in enumerate((0.2, _PATIENT_S))
    )
    reports = [{"caller": 0, "n": 0, "outcome": await impatient}]
    await proxy.accept()
    reports.append({"caller": 1, "n": 0, "outcome": await patient})
    assert reports[1]["outcome"] == "applied"
    assert_accounted_for(reports, await applied(store, job.table, "me"))


@pytest.mark.soak
async def test_concurrent_callers_are_given_the_truth_through_all_faults(
    store: Store, proxy: Proxy, seed: int
) -> None:
    random = Random(seed)
    job = Job("", await make_table(store, COLUMNS), "me")
    reports: list[dict[str, Any]] = []
    over, served = asyncio.Event(), asyncio.Event()

    async def call(caller: int) -> None:
        n = 0
        while not over.is_set():
            answer = await outcome_of(store, pair(job, caller, n), _PATIENT_S if caller % 2 else 0.5)
            reports.append({"caller": caller, "n": n, "outcome": answer})
            n += 1
            if answer == "applied":
                served.set()

    calls = [asyncio.create_task(call(caller)) for caller in range(8)]
    for _ in range(lengths.SPOILED_STREAM):
        if random.random() < 0.2:
            await proxy.refuse()
            await proxy.accept()
            continue
        proxy.spoil(random.choice(list(Fault)), times=random.randint(1, 2), after=random.randint(0, 4))
        await asyncio.wait_for(proxy.spoiled.acquire(), _PATIENT_S)
        served.clear()  # between faults something must get through, or no patience would be enough
        await asyncio.wait_for(served.wait(), _PATIENT_S)
    proxy.release()
    over.set()
    await asyncio.gather(*calls)
    assert {each["outcome"] for each in reports if each["caller"] % 2} == {"applied"}
    assert_accounted_for(reports, await applied(store, job.table, "me"))


async def test_the_transport_is_chosen_when_the_server_is_first_met(
    tmp_path: Path, shared_server: Server, proxy: Proxy
) -> None:
    case = HomeCase(MESH.home, Driver.AUTO)
    await proxy.refuse()
    settings = case.settings(tmp_path, shared_server, db_url=proxy.url)
    async with await open_store(settings) as store:
        with pytest.raises(DatabaseUnavailable):
            await store.read("SELECT 1", timeout=0.2)
        await proxy.accept()
        assert (await store.read("SELECT 1", timeout=_PATIENT_S)).value == 1
        assert await transport(store) == "hrana over WebSocket"
