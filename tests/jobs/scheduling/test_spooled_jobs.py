"""Away from the database, jobs and ops are spooled; what needs an answer is refused, and says why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from tools.homes import MESH
from tools.sqld import Server
from vox_mesh import Mesh, OpKind, Script, Settings, Statement
from vox_mesh.cli.jobs.job import list_
from vox_mesh.errors import CircuitOpen, DatabaseUnavailable, MeshError, Unreachable
from vox_mesh.http.api.jobs.jobs import ReadyQuery, list_spooled_jobs
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.node import MeshNode

_NOTE = OpKind("test.note")
_SURE = OpKind("test.sure", appendable=False)
_UNKNOWN = "f" * 64


@asynccontextmanager
async def _away(settings: Settings, server: Server) -> AsyncIterator[MeshNode]:
    """A node that had reached the database, and whose circuit is open now."""
    async with Mesh.open(settings) as mesh:
        await mesh.run_once()
        server.kill()
        while mesh.store.circuit != "open":
            with pytest.raises(MeshError):
                await mesh.store.write(Script(Statement("SELECT 1")), timeout=0.2)
        for kind in (_NOTE, _SURE):
            mesh.oplog.register(kind)
        yield mesh


@asynccontextmanager
async def _back(settings: Settings, server: Server) -> AsyncIterator[MeshNode]:
    """The same node, started again on the database that is back, with nothing left to replay."""
    await asyncio.to_thread(server.start)
    async with Mesh.open(settings) as mesh, asyncio.timeout(60):
        mesh.oplog.register(_NOTE)
        await mesh.store.drained()
        yield mesh


@pytest.fixture
def settings(tmp_path: Path, server: Server) -> Settings:
    return MESH.settings(tmp_path, server, node_id="a", tick="1h", db_circuit_breaker=True)


async def test_jobs_are_spooled_in_order_and_refused_ones_are_named(
    settings: Settings,
    server: Server,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vox_mesh.cli.jobs.job.start_shared", lambda _: settings)
    twice = [Manifest.of(kind="work", payload="same", ulid="01ARZ3NDEKTSV4RRFFQ69G5FAV")]
    async with _away(settings, server) as mesh:
        first = await mesh.jobs.schedule("work", 1)
        second = await mesh.jobs.schedule("work", 2, after=[first.ulid], new=False)
        (same,) = await mesh.jobs.schedule_all(twice, new=False)
        (again,) = await mesh.jobs.schedule_all(twice, new=False)
        lost = await mesh.jobs.schedule("work", 3, after=[_UNKNOWN])
        assert all(each.spooled for each in (first, second, same, again, lost))
        assert again.job_id == same.job_id
        with pytest.raises(Unreachable, match="can't be looked up") as refused:
            await mesh.jobs.schedule("work", 4, after=["01ARZ3NDEKTSV4RRFFQ69G5FAX"])
        assert "full id" in refused.value.hint
        spooled = await mesh.jobs.spooled.listed()
        assert [each.job_id for each in spooled] == [
            each.job_id for each in (first, second, same, again, lost)
        ]
        assert {each.state for each in spooled} == {"spooled"}
        shown = CliRunner().invoke(list_, ["--spooled", "--kind", "wo*", "--limit", "2", "--json"])
        assert [each["ulid"] for each in orjson.loads(shown.output)] == [first.ulid, second.ulid]
        views = await list_spooled_jobs(mesh, ReadyQuery(kind="work", limit=2))
        assert [vars(each) for each in views] == orjson.loads(shown.output)
        with pytest.raises(CircuitOpen):
            await mesh.jobs.schedule_all(twice, spool=False)
    async with _back(settings, server) as mesh:
        jobs = await mesh.jobs.queries.listed()
        assert [job.ulid for job in jobs[::-1]] == [each.ulid for each in (first, second, same)]
        assert [each.predecessor for each in await mesh.jobs.queries.predecessors([second.job_id])] == [
            first.job_id
        ]
        (refusal,) = await mesh.jobs.spooled.listed()
        assert (refusal.job_id, refusal.state) == (lost.job_id, "refused")
        assert "unknown_predecessor" in str(refusal.reason)
        assert "spooled script refused" in caplog.text
        assert lost.job_id[:8] in CliRunner().invoke(list_, ["--spooled"]).output
        assert not (await mesh.jobs.schedule("work", 5)).spooled


async def test_what_needs_an_answer_is_refused_and_says_why(settings: Settings, server: Server) -> None:
    async with _away(settings, server) as mesh:
        for refused in (
            mesh.locks.acquire("file:a", agent="x"),
            mesh.oplog.append(_SURE.name, {}),
        ):
            with pytest.raises(CircuitOpen, match="needs an answer, so it is not spooled"):
                await refused


async def test_ops_are_spooled_unless_they_depend_on_others(settings: Settings, server: Server) -> None:
    async with _away(settings, server) as mesh:
        first = await mesh.oplog.append(_NOTE.name, {"n": 1})
        assert first.spooled
        with pytest.raises(DatabaseUnavailable):
            await mesh.oplog.append(_NOTE.name, {"n": 2}, deps=[first.key])
    async with _back(settings, server) as mesh:
        entries = await mesh.oplog.tail(10, kind=_NOTE.name)
        assert [entry.op_id for entry in entries] == [first.key]


async def test_a_released_job_is_found_in_the_log_though_its_op_was_bound_long_after_it(
    settings: Settings, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _away(settings, server) as mesh:
        await mesh.oplog.append(_NOTE.name, {})
        job = await mesh.jobs.schedule("work", 1)
    monkeypatch.setattr("vox_mesh.jobs.authorship._MAX_SEARCHED", 1)
    async with _back(settings, server) as mesh:
        assert await mesh.jobs.authorship._search(await mesh.jobs.find(job))
