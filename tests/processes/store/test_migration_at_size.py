"""A large database is migrated while nodes work: a killed migration goes on, and there is a way back."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from proof.chaos.builds import NEXT, Build, build_of
from tests.support.running.lengths import MIGRATED_ENTRIES, in_turn, only_at_full_length
from tools.homes import FILE, MESH, HomeCase, environment
from tools.sqld import Server
from vox_mesh import Mesh, Settings, Statement
from vox_mesh.node import MeshNode
from vox_mesh.runtime.open_store import open_engine
from vox_mesh.store.batch import Batch
from vox_mesh.store.engine import Ask, Engine
from vox_mesh.store.schema.backup import back_up
from vox_mesh.store.schema.schema import VERSION, versions_at

T = TypeVar("T")

_AT_ONCE: Final = 5_000
_PATIENCE_S: Final = max(240.0, MIGRATED_ENTRIES / 900)
_LOOK_S: Final = 0.005
_INDEX: Final = (
    "CREATE INDEX IF NOT EXISTS agent_oplog_of_things ON agent_oplog (scope_id, repository_id, id)\n"
    "WHERE kind = 'Thing';"
)
_TABLE: Final = "CREATE TABLE IF NOT EXISTS last_things (\n    thing TEXT NOT NULL PRIMARY KEY\n);"
_COUNTED: Final = 60_000_000
_SLOW: Final = f"""
INSERT INTO last_things
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {_COUNTED})
SELECT max(i) FROM n;"""
"""A statement that takes longer than a server lets a transaction last while others wait."""

_ENTRY: Final = """
INSERT INTO agent_oplog (
    scope_id, repository_id, node_id, seq, op_id, kind, hlc, causal_deps, payload, prev, hash, accepted
)
WITH RECURSIVE n (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?1 + ?2)
SELECT 'another', 'default', 'node', i, printf('%032d', i), 'note', printf('%020d', i), '[]',
    hex(zeroblob(400)), hex(zeroblob(32)), hex(zeroblob(32)), 0
FROM n"""


async def _fill(engine: Engine) -> None:
    """Add entries of another scope to the log, whose size the migration meets."""
    for first in range(0, MIGRATED_ENTRIES, _AT_ONCE):
        is_busy = True
        while is_busy:
            batch = Batch()
            batch.add(_ENTRY, (first, _AT_ONCE))
            result = await engine.run(batch.seal())
            is_busy = result.error is not None and result.error.is_busy
            assert result.committed or is_busy, result.error


def _newer(folder: Path, more: str = "") -> Build:
    """The next version, with two more migrations: an index of the log, which takes its time, and a table.

    The last one runs another statement too.
    """
    build = build_of(NEXT, folder)
    migrations = build.root / "sql" / "migrations"
    for number, sql in enumerate((_INDEX, f"{_TABLE}\n{more}"), build.schema_version + 1):
        (migrations / f"{number:04d}_later.sql").write_text(f"{sql}\n")
    tables = build.root / "sql" / "coordination.sql"
    tables.write_text(f"{tables.read_text()}\n{_INDEX}\n{_TABLE}\n")
    return build


async def _start(build: Build, settings: Settings, *arguments: str) -> Process:
    variables = {**os.environ, "PYTHONPATH": str(build.root), **environment(settings)}
    command = (sys.executable, "-m", "vox_mesh.cli", *arguments, "--json")
    return await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=PIPE, cwd=build.root, env=variables
    )


async def _ask(build: Build, settings: Settings, *arguments: str) -> Any:
    """What a command of a build prints."""
    async with asyncio.timeout(_PATIENCE_S):
        process = await _start(build, settings, *arguments)
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return json.loads(out)


class _Work:
    """Agents that write all the time, and how long each write took."""

    def __init__(self, node: MeshNode) -> None:
        self._node = node
        self._ended = asyncio.Event()
        self._times_ms: list[float] = []
        self.jobs: list[str] = []

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(each) for each in (self._lock(), self._schedule())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in ended} == {asyncio.CancelledError}, ended

    async def _lock(self) -> None:
        while True:
            lock = await self._timed(self._node.locks.acquire("task:work", agent="ada"))
            await self._timed(self._node.locks.release(lock))

    async def _timed(self, write: Awaitable[T]) -> T:
        began = time.perf_counter()
        result = await write
        self._times_ms.append((time.perf_counter() - began) * 1_000)
        return result

    async def _schedule(self) -> None:
        while True:
            job = await self._node.jobs.schedule("work", {"n": len(self.jobs)})
            await self._node.jobs.wait(job.job_id, timeout=_PATIENCE_S)
            self.jobs.append(job.job_id)
            self._ended.set()

    async def until_more(self) -> None:
        """Wait until two more jobs have ended: the second began after this call."""
        for _ in range(2):
            self._ended.clear()
            async with asyncio.timeout(_PATIENCE_S):
                await self._ended.wait()

    def report(self, what: str) -> None:
        times = sorted(self._times_ms)
        p99 = times[int(len(times) * 0.99)]
        print(f"{what}: p50 {statistics.median(times):.1f}, p99 {p99:.1f}, longest {times[-1]:.0f} ms")
        self._times_ms.clear()


async def _version(ask: Ask) -> int:
    return (await versions_at(ask))[0]


@pytest.mark.soak
@pytest.mark.timeout(2 * _PATIENCE_S)
@pytest.mark.parametrize("case", in_turn(FILE, MESH), ids=str)
async def test_a_killed_migration_goes_on_while_nodes_work_and_the_older_version_stays_usable(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: Server | None = request.getfixturevalue("server") if case.needs_server else None
    settings = case.settings(tmp_path, server, db_deadline="60s")
    build = await asyncio.to_thread(_newer, tmp_path / "builds")
    first, last = build.schema_version, build.schema_version + 2
    async with _working(settings) as node:
        engine = await open_engine(settings.model_copy(update={"db_request_timeout": _PATIENCE_S}))
        await _fill(engine)
        backup = await back_up(engine, tmp_path / "before.db")
        print(f"\nbackup: {backup.bytes / 2**20:.0f} MiB")
        load = _Work(node)
        async with load.going_on():
            await load.until_more()
            load.report("writes before, of an older node")
            killed = await _start(build, settings, "db", "migrate")
            while await _version(engine.query) < first:
                assert killed.returncode is None
                await asyncio.sleep(_LOOK_S)
            if killed.returncode is None:
                killed.kill()
            await killed.wait()
            assert first <= await _version(engine.query) <= last
            began = time.perf_counter()
            migrated = await _ask(build, settings, "db", "migrate")
            print(f"migrated from {migrated['from_version']} in {time.perf_counter() - began:.1f} s")
            assert migrated["schema_version"] == last
            await load.until_more()
            load.report("writes meanwhile")
            status = await _ask(build, settings, "db", "migrate", "--status")
            assert (status["state"], status["differences"]) == ("current", [])
            async with Mesh.open(settings.model_copy(update={"home_dir": tmp_path / "again"})) as again:
                await again.jobs.schedule("work")  # the older version can start on the newer schema
        assert {(await node.jobs.wait(each)).state for each in load.jobs} == {"succeeded"}
        assert [each.problem for each in await node.oplog.verify() if each.problem] == []
        await engine.close()
    await _goes_back(tmp_path)


@pytest.mark.soak
@only_at_full_length
@pytest.mark.timeout(2 * _PATIENCE_S)
async def test_a_migration_that_a_server_ends_for_other_writers_is_applied_while_no_node_runs(
    server: Server, tmp_path: Path
) -> None:
    settings = MESH.settings(tmp_path, server, db_deadline="240s")
    build = await asyncio.to_thread(_newer, tmp_path / "builds", _SLOW)
    last = build.schema_version + 2
    async with _working(settings) as node:
        engine = await open_engine(settings.model_copy(update={"db_request_timeout": _PATIENCE_S}))
        load = _Work(node)
        async with load.going_on():
            await load.until_more()
            async with asyncio.timeout(_PATIENCE_S):
                process = await _start(build, settings, "db", "migrate")
                _, err = await process.communicate()
            assert process.returncode
            assert "Transaction timed out" in err.decode()
            assert "stop all nodes, run `vox-mesh db migrate`" in err.decode()
            assert await _version(engine.query) < last
            await load.until_more()
            load.report("writes meanwhile")
    began = time.perf_counter()
    migrated = await _ask(build, settings, "db", "migrate")
    print(f"migrated from {migrated['from_version']} in {time.perf_counter() - began:.1f} s, without nodes")
    assert (migrated["schema_version"], await _version(engine.query)) == (last, last)
    await engine.close()
    async with _working(settings) as node:
        job = await node.jobs.schedule("work")
        assert (await node.jobs.wait(job.job_id, timeout=_PATIENCE_S)).state == "succeeded"


@asynccontextmanager
async def _working(settings: Settings) -> AsyncIterator[MeshNode]:
    """A node that runs the jobs of `_Work`."""
    async with Mesh.open(settings) as node:

        @node.worker.handles("work")
        async def work(_: object) -> None:
            return None

        await node.worker.start(concurrency=4)
        yield node


async def _goes_back(folder: Path) -> None:
    """Restore the backup into an empty database, by the older version."""
    from vox_mesh.runtime.restore import BackupFile, restore

    settings = FILE.settings(folder / "restored", None)
    engine = await open_engine(settings)
    with BackupFile(folder / "before.db") as backup:
        await restore(engine, backup, timeout=_PATIENCE_S)
    assert await _version(engine.query) == VERSION
    entries = await engine.query(Statement("SELECT count(*) FROM agent_oplog WHERE scope_id = 'another'"))
    assert entries.value == MIGRATED_ENTRIES
    await engine.close()
