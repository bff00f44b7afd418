"""Steps while the database is away: an outage is no failure of a job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from proof.chaos.proxy import Proxy
from tests.support.jobs.job_desks import ended
from tests.support.messages.messaging import PATIENCE_S
from tools.homes import MESH_REPLICA
from tools.sqld import Server
from vox_mesh import JobContext, Mesh, Settings
from vox_mesh.errors import CircuitOpen
from vox_mesh.node import MeshNode

_SHORT: Final = {"db_deadline": 1.0, "db_request_timeout": 0.5, "tick": 0.5, "db_max_stale_ms": 500}


class Signal(logging.Handler):
    """Sets an event when a log line begins with a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self._loop = asyncio.get_running_loop()
        self._seen = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(self._text):
            self._loop.call_soon_threadsafe(self._seen.set)

    async def wait(self) -> None:
        """Wait for the line."""
        async with asyncio.timeout(PATIENCE_S):
            await self._seen.wait()


@pytest.fixture
def signal() -> Iterator[Callable[[str], Signal]]:
    """Signals for the lines of the package."""
    added: list[Signal] = []

    def make(text: str) -> Signal:
        added.append(Signal(text))
        logging.getLogger("vox_mesh").addHandler(added[-1])
        return added[-1]

    yield make
    for each in added:
        logging.getLogger("vox_mesh").removeHandler(each)


def _behind(proxy: Proxy, folder: Path, server: Server) -> Settings:
    settings = MESH_REPLICA.settings(folder, server, db_url=proxy.url, node_id="worker")
    return settings.model_copy(update=_SHORT)


@pytest.mark.timeout(120)
async def test_a_result_waits_for_the_database_while_the_job_is_held(
    tmp_path: Path, shared_server: Server, signal: Callable[[str], Signal]
) -> None:
    effects: list[int] = []
    async with Proxy(shared_server.port) as proxy, Mesh.open(_behind(proxy, tmp_path, shared_server)) as node:

        async def effect() -> int:
            effects.append(1)
            await proxy.refuse()
            return 7

        @node.worker.handles("work", lease="5m")
        async def handle(context: JobContext) -> Any:
            return await context.step("effect", effect)

        not_stored = signal("steps not stored yet")
        job = await node.jobs.schedule("work", max_attempts=1)
        async with node.worker.running():
            await not_stored.wait()
            await proxy.accept()
            (done,) = await ended(node, job)
        assert (done.state, done.attempts, done.failures, done.interruptions) == ("succeeded", 1, 0, 0)
        assert await node.jobs.result(job) == 7
    assert len(effects) == 1


@pytest.mark.timeout(120)
async def test_a_result_is_given_up_with_the_claim_and_the_job_has_not_failed(
    tmp_path: Path, shared_server: Server, signal: Callable[[str], Signal]
) -> None:
    effects: list[int] = []
    async with Proxy(shared_server.port) as proxy, Mesh.open(_behind(proxy, tmp_path, shared_server)) as node:

        async def effect() -> int:
            effects.append(1)
            if len(effects) == 1:
                await proxy.refuse()
            return 7

        @node.worker.handles("work", lease="2s")
        async def handle(context: JobContext) -> Any:
            return await context.step("effect", effect)

        stopped = signal("job stopped")
        job = await node.jobs.schedule("work", max_attempts=1)
        async with node.worker.running():
            await stopped.wait()
            await proxy.accept()
            (done,) = await ended(node, job)
        assert (done.state, done.failures) == ("succeeded", 0)
        assert not [each for each in asyncio.all_tasks() if each.get_name() == "vox-mesh-steps"]
    assert len(effects) == 2


@pytest.mark.parametrize("max_interruptions", [0, 1])
async def test_an_attempt_that_ends_with_the_database_is_interrupted(
    local: MeshNode, max_interruptions: int
) -> None:
    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        if context.attempt == 1:
            raise CircuitOpen("the database is away")

    job = await local.jobs.schedule(
        "work", max_attempts=1, max_interruptions=max_interruptions, backoff="20ms"
    )
    async with local.worker.running():
        (done,) = await ended(local, job)
    if max_interruptions:
        assert (done.state, done.failures, done.interruptions) == ("succeeded", 0, 1)
    else:
        assert (done.state, done.attempts) == ("failed", 1)
        assert "interrupted more often than max_interruptions (0)" in (done.reason or "")


@pytest.mark.timeout(120)
async def test_of_jobs_that_wait_for_the_database_only_those_that_are_held_go_on(
    tmp_path: Path, shared_server: Server, signal: Callable[[str], Signal]
) -> None:
    effects: list[str] = []
    async with Proxy(shared_server.port) as proxy, Mesh.open(_behind(proxy, tmp_path, shared_server)) as node:
        both_run = asyncio.Barrier(2)

        async def effect(kind: str) -> str:
            effects.append(kind)
            if effects.count(kind) == 1:
                await both_run.wait()
                await proxy.refuse()
            return kind

        async def handle(context: JobContext) -> Any:
            return await context.step("effect", effect, context.job.kind)

        node.worker.handles("short", lease="2s")(handle)
        node.worker.handles("long", lease="5m")(handle)
        stopped = signal("job stopped")
        jobs = [await node.jobs.schedule(kind, max_attempts=1) for kind in ("short", "long")]
        async with node.worker.running():
            await stopped.wait()
            await proxy.accept()
            done = await ended(node, *jobs)
        assert [(job.state, job.failures, job.attempts) for job in done] == [
            ("succeeded", 0, 2),
            ("succeeded", 0, 1),
        ]
        assert [await node.jobs.result(job) for job in jobs] == ["short", "long"]
    assert sorted(effects) == ["long", "short", "short"]
