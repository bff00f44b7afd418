"""Writers end in the middle of a script: the others go on, and nothing is left half done."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.processes.conftest import StartWriter
from tests.support.running import lengths
from tests.support.running.jobs import Job
from tests.support.store.tables import make_table
from tests.support.store.tally import applied, assert_accounted_for
from tests.support.store.writers import COLUMNS
from tools.homes import FILE, MESH, HomeCase
from tools.sqld import Server
from vox_mesh import open_store

_CALLERS = 4
_SOON_S = 10.0


@pytest.mark.soak
async def test_a_killed_writer_blocks_no_one_and_leaves_no_half_script(
    tmp_path: Path, start_writer: StartWriter
) -> None:
    settings = FILE.settings(tmp_path, None)
    async with await open_store(settings) as store:
        table = await make_table(store, COLUMNS)
    witness = await start_writer(settings, Job("stream", table, "witness", callers=_CALLERS))
    victims = []
    for number in range(lengths.WRITER_KILLS):
        victim = await start_writer(settings, Job("stream", table, f"victim{number}", callers=_CALLERS))
        await victim.until_more(50 + 7 * number)
        await victim.kill()
        victims.append(victim)
        await asyncio.wait_for(witness.until_more(20), _SOON_S)
    await witness.finish()
    async with await open_store(settings) as store:
        assert {report["outcome"] for report in witness.reports} == {"applied"}
        assert_accounted_for(witness.reports, await applied(store, table, "witness"))
        for victim in victims:
            found = await applied(store, table, victim.job.writer)
            assert_accounted_for(victim.reports, found, unreported=_CALLERS)


@pytest.mark.parametrize("case", [FILE, MESH], ids=str)
async def test_an_interrupted_writer_ends_soon_in_silence_and_leaves_no_half_script(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest, start_writer: StartWriter
) -> None:
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    settings = case.settings(tmp_path, server)
    async with await open_store(settings) as store:
        job = Job("stream", await make_table(store, COLUMNS), "me", callers=_CALLERS)
    writer = await start_writer(settings, job)
    await writer.until_more(100)
    writer.interrupt()
    assert await writer.ended(_SOON_S) == 130
    assert writer.errors == ""
    async with await open_store(settings) as store:
        found = await applied(store, job.table, "me")
        assert_accounted_for(writer.reports, found, unreported=_CALLERS)


async def test_an_interrupted_writer_ends_soon_also_while_the_server_is_away(
    tmp_path: Path, server: Server, start_writer: StartWriter
) -> None:
    settings = MESH.settings(tmp_path, server)
    async with await open_store(settings) as store:
        job = Job("stream", await make_table(store, COLUMNS), "me", callers=_CALLERS)
    writer = await start_writer(settings, job)
    await writer.until_more(50)
    server.kill()
    started = time.monotonic()
    writer.interrupt()
    assert await writer.ended(_SOON_S) == 130
    print(f"ended after {time.monotonic() - started:.1f} s")
    assert "Traceback" not in writer.errors
    await asyncio.to_thread(server.start)
    async with await open_store(settings) as store:
        found = await applied(store, job.table, "me")
        assert_accounted_for(writer.reports, found, unreported=_CALLERS)
