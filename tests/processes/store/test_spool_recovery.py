"""Spooled writes arrive once and in order, whatever dies in between."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import pytest

from proof.chaos.proxy import Fault, Proxy
from tests.processes.conftest import StartWriter
from tests.support.running import lengths
from tests.support.running.jobs import Job
from tests.support.store.tables import make_table
from tests.support.store.writers import COLUMNS, part
from tools.homes import MESH, MESH_HTTP, HomeCase
from tools.sqld import Server
from vox_mesh import Role, Script, Settings, Statement, Store, open_store
from vox_mesh.errors import CircuitOpen, OutcomeUnknown, SpoolFull, Unreachable
from vox_mesh.store.slots import spools
from vox_mesh.store.spool.spool import status_of

_AT_ONCE_S = 2.0  # far below any deadline or pause between attempts


async def _job(settings: Settings, scripts: int = 0) -> Job:
    async with await open_store(settings) as store:
        return Job("spool", await make_table(store, COLUMNS), "me", scripts)


def _row(job: Job, n: int, *, appendable: bool = True) -> Script:
    return Script(part(job, 0, n, 1), appendable=appendable)


async def _numbers(store: Store, job: Job) -> list[int]:
    """What arrived, in the order of arrival."""
    return [row[0] for row in await store.read(f"SELECT n FROM {job.table} ORDER BY seq", timeout=30.0)]


async def _drained(store: Store) -> None:
    async with asyncio.timeout(60):
        await store.drained()


@pytest.mark.soak
@pytest.mark.parametrize("case", [MESH, *lengths.in_soak(MESH_HTTP)], ids=str)
async def test_1000_writes_outlive_the_server_and_the_process(
    case: HomeCase, tmp_path: Path, server: Server, start_writer: StartWriter
) -> None:
    settings = case.settings(tmp_path, server, db_deadline="1s")
    job = await _job(settings, lengths.SPOOLED)
    server.kill()
    writer = await start_writer(settings, job)
    await writer.until(lambda reports: len(reports) == lengths.SPOOLED)
    assert all(report["spooled"] for report in writer.reports)
    await writer.kill()
    await asyncio.to_thread(server.start)
    assert {"drained": True} in await (await start_writer(settings, Job("drain"))).finish()
    async with await open_store(settings) as store:
        assert await _numbers(store, job) == list(range(lengths.SPOOLED))


@pytest.mark.soak
async def test_a_process_killed_again_and_again_while_it_replays_doubles_nothing(
    tmp_path: Path, server: Server, start_writer: StartWriter
) -> None:
    async with Proxy(server.port) as proxy:
        settings = MESH.settings(tmp_path, server, db_url=proxy.url, db_deadline="1s")
        job = await _job(settings, lengths.REPLAYED)
        await proxy.refuse()
        writer = await start_writer(settings, job)
        await writer.until(lambda reports: len(reports) == job.scripts)
        await writer.kill()
        await proxy.accept()
        arrived = []
        for kill in range(lengths.REPLAY_KILLS):
            # A line's first answers are the upgrade, the greeting and the stream, and that for reading has
            # three more, about the schema: what is held is a later answer to a part of the spool.
            proxy.spoil(Fault.HOLD_ANSWER, after=6 + kill % 2)
            writer = await start_writer(settings, Job("drain"))
            await asyncio.wait_for(proxy.spoiled.acquire(), 60)
            await writer.kill()  # the database has rows whose answers never came
            proxy.release()
            async with await open_store(settings, Role.COMMAND) as store:
                arrived.append(len(await _numbers(store, job)))
        assert arrived == sorted(arrived)
        assert 0 < arrived[0] <= arrived[-1] < job.scripts, "no process was killed in the middle"
        writer = await start_writer(settings, Job("drain"))
        assert {"drained": True} in await writer.finish()
        async with await open_store(settings) as store:
            assert await _numbers(store, job) == list(range(job.scripts))


async def test_the_open_circuit_sends_appendable_writes_to_the_spool_and_refuses_others_at_once(
    tmp_path: Path, server: Server
) -> None:
    settings = MESH.settings(tmp_path, server, db_circuit_breaker=True)
    job = await _job(settings)
    async with await open_store(settings) as store:
        server.kill()
        for _ in range(5):
            with pytest.raises(Unreachable):
                await store.write(_row(job, -1, appendable=False), timeout=0.2)
        started = time.monotonic()
        with pytest.raises(CircuitOpen):
            await store.write(_row(job, -1, appendable=False))
        outcomes = [await store.write(_row(job, n)) for n in range(20)]
        assert time.monotonic() - started < _AT_ONCE_S
        assert all(outcome.spooled for outcome in outcomes)
        await asyncio.to_thread(server.start)
    # The circuit rests for 30 s; a process that starts has a closed one.
    async with await open_store(settings) as store:
        await _drained(store)
        assert await _numbers(store, job) == list(range(20))


@pytest.mark.parametrize("breaker", [False, True], ids=["breaker off", "breaker on"])
async def test_a_write_of_unknown_fate_that_lands_in_the_spool_is_applied_once(
    tmp_path: Path, server: Server, breaker: bool
) -> None:
    async with Proxy(server.port) as proxy:
        more = {"db_url": proxy.url, "db_circuit_breaker": breaker}
        settings = MESH.settings(tmp_path, server, **more)
        job = await _job(settings)
        async with await open_store(settings) as store:
            await store.write(_row(job, 0))
            proxy.spoil(Fault.HOLD_ANSWER)
            writing = asyncio.create_task(store.write(_row(job, 1), timeout=1.0))
            await proxy.spoiled.acquire()
            server.kill()  # it has applied the row, and no caller got the answer
            assert (await writing).spooled
            assert (await store.write(_row(job, 2))).spooled
            proxy.release()
            await asyncio.to_thread(server.start)
            await _drained(store)
            assert await _numbers(store, job) == [0, 1, 2]


async def test_a_write_of_unknown_fate_that_finds_the_spool_full_is_reported_as_unknown(
    tmp_path: Path, server: Server
) -> None:
    async with Proxy(server.port) as proxy:
        settings = MESH.settings(tmp_path, server, db_url=proxy.url, spool_max_bytes=4_096)
        job = await _job(settings)
        async with await open_store(settings) as store:
            big = Script(part(job, 0, 0, 1), Statement("SELECT ?", ("x" * 4_096,)), appendable=True)
            await store.write(_row(job, -1))
            proxy.spoil(Fault.HOLD_ANSWER)
            with pytest.raises(OutcomeUnknown, match="spool"):
                await store.write(big, timeout=1.0)
            proxy.release()
            await _drained(store)
            assert (await store.write(big, timeout=30.0)).repeated
            assert await _numbers(store, job) == [-1, 0]


async def test_a_full_spool_says_so_and_keeps_nothing_by_halves(tmp_path: Path, server: Server) -> None:
    settings = MESH.settings(tmp_path, server, spool_max_bytes=4_096, db_deadline="1s")
    job = await _job(settings)
    async with await open_store(settings) as store:
        server.kill()
        kept = 0
        with suppress(SpoolFull):
            while (await store.write(_row(job, kept))).spooled:
                kept += 1
        assert kept > 3
        with pytest.raises(SpoolFull, match="has no room") as full:
            await store.write(_row(job, kept))
        assert "VOX_SPOOL_MAX_BYTES" in full.value.hint
        with pytest.raises(SpoolFull):
            await store.write_all([_row(job, 1_000 + n) for n in range(3)])
        (spool,) = spools(settings.home_dir)
        assert status_of(spool).depth == kept
        await asyncio.to_thread(server.start)
        await _drained(store)
        await store.write(_row(job, kept))  # there is room again
        assert await _numbers(store, job) == list(range(kept + 1))


async def test_only_the_next_owner_of_the_slot_replays_its_spool(
    tmp_path: Path, server: Server, start_writer: StartWriter
) -> None:
    settings = MESH.settings(tmp_path, server, db_deadline="1s", node_id="first")
    job = await _job(settings, 10)
    server.kill()
    writer = await start_writer(settings, job)
    await writer.until(lambda reports: len(reports) == job.scripts)
    await writer.kill()
    await asyncio.to_thread(server.start)
    async with await open_store(settings.model_copy(update={"node_id": "second"})) as other:
        await _drained(other)
        await other.write(_row(job, 77))
        assert await _numbers(other, job) == [77]
        async with await open_store(settings) as owner:
            await _drained(owner)
        assert await _numbers(other, job) == [77, *range(10)]
