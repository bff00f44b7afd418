"""Many processes write at once: every script once or not at all, and no one hears of the crowd."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.conftest import StartWriter
from tests.support.running import lengths
from tests.support.running.jobs import Job
from tests.support.store.tables import make_table
from tests.support.store.tally import applied
from tests.support.store.writers import COLUMNS, FAILURES
from tools.homes import FILE, MESH, MESH_HTTP, MESH_LIBSQL_CLIENT, HomeCase
from tools.sqld import Server
from vox_mesh import Settings, Store, open_store

_PROCESSES = 8


def _settings(case: HomeCase, folder: Path, server: Server | None) -> Settings:
    return case.settings(folder, server, db_deadline="60s")


@pytest.mark.soak
@pytest.mark.parametrize("case", [FILE, MESH, MESH_LIBSQL_CLIENT, *lengths.in_soak(MESH_HTTP)], ids=str)
async def test_good_scripts_are_applied_once_and_failing_ones_not_at_all(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest, start_writer: StartWriter, seed: int
) -> None:
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    settings = _settings(case, tmp_path, server)
    slow = case is MESH_LIBSQL_CLIENT
    count = lengths.SLOW_SCRIPTS_PER_PROCESS if slow else lengths.SCRIPTS_PER_PROCESS
    async with await open_store(settings) as store:
        table = await make_table(store, COLUMNS)
        jobs = [Job("mixed", table, f"w{i}", count, callers=4, seed=seed) for i in range(_PROCESSES)]
        writers = await asyncio.gather(*(start_writer(settings, job) for job in jobs))
        for writer in writers:
            reports = await writer.finish()
            wrong = [each for each in reports if each["outcome"] != FAILURES.get(each["kind"], "applied")]
            assert not wrong, f"reported something else than was due: {wrong}"
            assert len(reports) == count
            good = {(0, each["n"]) for each in reports if each["kind"] == "good"}
            assert await applied(store, table, writer.job.writer) == good


@pytest.fixture
def checkpointing_server() -> Iterator[Server]:
    """A server that moves its WAL into the database several times while a test runs."""
    interval = str(lengths.CHECKPOINT_INTERVAL_S)
    flags = ("--checkpoint-interval-s", interval, "--max-concurrent-connections", "256")
    with Server(flags=flags) as server:
        yield server


@pytest.mark.soak
@pytest.mark.parametrize(
    ("case", "seconds"),
    [(MESH, lengths.LOAD_S), *lengths.in_soak((MESH_HTTP, lengths.SHORTER_LOAD_S))],
    ids=str,
)
async def test_64_callers_in_8_processes_are_served_through_checkpoints(
    case: HomeCase,
    seconds: float,
    tmp_path: Path,
    checkpointing_server: Server,
    start_writer: StartWriter,
) -> None:
    settings = _settings(case, tmp_path, checkpointing_server)
    async with await open_store(settings) as store:
        table = await make_table(store, COLUMNS)
        jobs = [Job("load", table, f"w{i}", callers=8, seconds=seconds) for i in range(_PROCESSES)]
        writers = await asyncio.gather(*(start_writer(settings, job) for job in jobs))
        for writer in writers:
            await writer.until(bool)
        for writer in writers:
            writer.ask_to_stop()
        sums = {
            (writer.job.writer, report["caller"]): report
            for writer in writers
            for report in await writer.finish()
            if "caller" in report
        }
        found = await _counted(store, table)
    assert len(sums) == 64
    assert {each["outcome"] for each in sums.values()} == {"applied"}
    assert found == {caller: each["applied"] for caller, each in sums.items()}
    longest = max(each["longest_s"] for each in sums.values())
    print(f"{case}: {sum(found.values())} scripts in {seconds:g} s, longest stall {longest:.2f} s")
    assert longest < 30.0, "the server stopped answering"


async def _counted(store: Store, table: str) -> dict[tuple[str, int], int]:
    """How many scripts each caller has there, with each row of them once and no gap."""
    rows = await store.read(
        f"SELECT writer, caller, count(DISTINCT n) AS scripts, count(*), max(n), sum(part) FROM {table} "
        "GROUP BY writer, caller"
    )
    found = {}
    for row in rows:
        caller = row["writer"], row["caller"]
        scripts: int = row["scripts"]
        assert row[3:] == (2 * scripts, scripts - 1, 3 * scripts), caller
        found[caller] = scripts
    return found
