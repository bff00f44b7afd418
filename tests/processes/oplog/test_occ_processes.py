"""Processes that write the same rows: all of them count, and one that is killed leaves nothing half done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tests.processes.conftest import StartWriter
from tests.support.oplog.occ_writers import COUNTER
from tests.support.oplog.rivals import MEMORIES, at, row
from tests.support.running import lengths
from tests.support.running.jobs import Job
from tests.support.running.processes import Writer
from tools.homes import FILE, MESH, HomeCase
from vox_mesh import Mesh, Settings

_WRITERS: Final = 16
_PROCESSES: Final = 16 if lengths.SOAK else 4
_COUNTS: Final = 50 if lengths.SOAK else 3
_KILLS: Final = 10 if lengths.SOAK else 2
_CALLERS: Final = 4


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[StartWriter]:
    """Start a writer; whatever becomes of the test, it is gone at the end."""
    writers: list[Writer] = []

    async def start_one(settings: Settings, job: Job) -> Writer:
        log = tmp_path / f"occ-{len(writers)}.log"
        writers.append(await Writer.start(settings, job, log, "tests.support.oplog.occ_writers"))
        return writers[-1]

    yield start_one
    await asyncio.gather(*(writer.kill() for writer in writers))


@pytest.mark.soak
@pytest.mark.timeout(600 if lengths.SOAK else 180)
@pytest.mark.parametrize("case", [MESH, *lengths.in_soak(FILE)], ids=str)
async def test_16_writers_in_processes_of_their_own_count_exactly(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest, start: StartWriter
) -> None:
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    settings = case.settings(tmp_path, server, db_deadline="60s")
    job = Job("count", scripts=_COUNTS, callers=_WRITERS // _PROCESSES)
    writers = [await start(settings, job) for _ in range(_PROCESSES)]
    await asyncio.gather(*(writer.until_more(1) for writer in writers))
    reports = await asyncio.gather(*(writer.finish() for writer in writers))
    print(f"lost races: {[report[-1]['lost'] for report in reports]}")
    async with Mesh.open_command(settings) as mesh:
        assert (await row(mesh, COUNTER))["importance"] == _COUNTS * _WRITERS


@pytest.mark.soak
@pytest.mark.timeout(600 if lengths.SOAK else 180)
@pytest.mark.parametrize("case", [MESH, *lengths.in_soak(FILE)], ids=str)
async def test_a_killed_writer_leaves_row_conflict_and_log_telling_the_same(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest, start: StartWriter
) -> None:
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    settings = case.settings(tmp_path, server, db_deadline="60s")
    victims: list[Writer] = []
    for number in range(_KILLS):
        victim = await start(settings, Job("quarrel", writer=f"v{number}", callers=_CALLERS))
        await victim.until_more(40 + 7 * number)
        await victim.kill()
        victims.append(victim)
    reports = [report for victim in victims for report in victim.reports]
    async with Mesh.open_command(settings) as mesh:
        conflicts = {each.conflict_id: each for each in await mesh.conflicts.list()}
        entries = [entry async for page in mesh.oplog.entries() for entry in page]
        ops = [
            json.loads(each.payload) for each in entries if each.kind == "ResolveConflict" and each.accepted
        ]
        resolved = [op["conflict_id"] for op in ops]
        assert len({*resolved}) == len(resolved)
        assert {*resolved} == {each.conflict_id for each in conflicts.values() if not each.is_open}
        for conflict in conflicts.values():
            now = await mesh.occ.read(MEMORIES, conflict.row_key)
            assert now is not None
            if conflict.is_open:
                assert now == conflict.right
            else:
                (op,) = (each for each in ops if each["conflict_id"] == conflict.conflict_id)
                assert (now["content"], now["written_at"]) == ("left", op["written_at"])
        assert {each["conflict"] for each in reports if "conflict" in each} <= conflicts.keys()
        assert {each["resolved"] for each in reports if "resolved" in each} <= {*resolved}
        counted = sum("counted" in each for each in reports)
        counter = await mesh.occ.read(MEMORIES, at(COUNTER))
        assert counter is not None
        assert counted <= counter["importance"] <= counted + _KILLS * _CALLERS
        assert all(chain.problem is None for chain in await mesh.oplog.verify())
