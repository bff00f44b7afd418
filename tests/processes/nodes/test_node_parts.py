"""The parts of a node: what crashes or hangs is reported by `/readyz`, and begun again where it can be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.jobs.example_handlers import handlers
from tools.homes import FILE
from vox_mesh import HandlerSet, JobContext, Manifest, Mesh, Settings
from vox_mesh.cli.node.node_run import NodeRun, Work
from vox_mesh.jobs.worker.claim_round import NOW, NextLook
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.store.batch import Batch

_TOKEN: Final = "a-token-of-one-node-and-of-no-other"
_PATIENCE_S: Final = 30.0
_LONG_S: Final = 1_000.0
_STEP_S: Final = 0.01


class PolledNode:
    """A node in this process, asked over HTTP."""

    def __init__(self, node: MeshNode, settings: Settings, client: httpx.AsyncClient) -> None:
        self.node = node
        self.settings = settings
        self._client = client

    async def faults(self) -> dict[str, str]:
        """What `/readyz` says is wrong; it lives, whatever that is."""
        assert (await self._client.get("/livez")).status_code == 200
        answer = await self._client.get("/readyz?verbose")
        wrong = {each["name"]: each["detail"] for each in answer.json()["checks"] if not each["ok"]}
        assert answer.status_code == (503 if wrong else 200)
        return wrong

    async def until_ready(self) -> None:
        """Wait for what the node does by itself."""
        await self.until(lambda faults: not faults)

    async def until(self, condition: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        """Ask until it says so; what it says."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                faults = await self.faults()
                if condition(faults):
                    return faults
                await asyncio.sleep(_STEP_S)

    async def restarts(self, part: str) -> float:
        """How often a part was begun again, by `/metrics`."""
        text = (await self._client.get("/metrics")).text
        name = f'vox_part_restarts_total{{part="{part}"}} '
        return next(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))

    async def begin_work(self) -> None:
        """Have it take jobs."""
        await NodeRun(self.settings, None, 1.0)._start_work(self.node, Work(handlers, 1, 0.0))


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncIterator[PolledNode]:
    """A node that is ready."""
    settings = FILE.settings(tmp_path, None, http=True, token=_TOKEN, tick="50ms", db_deadline="1s")
    hasty = Dependencies(chance=lambda: 0.0)  # it pauses as shortly as it may
    async with Mesh.open(settings, hasty) as node:
        url = node.presence.activity.control_addr
        assert url is not None
        headers = {"Authorization": f"Bearer {_TOKEN}"}
        async with httpx.AsyncClient(
            base_url=url, headers=headers, timeout=_PATIENCE_S, trust_env=False
        ) as client:
            asked = PolledNode(node, settings, client)
            await asked.until_ready()
            yield asked


async def test_a_part_that_crashes_is_reported_begun_again_and_counted(
    asked: PolledNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed, keeper = asyncio.Event(), asked.node._message_maintenance

    async def crash() -> None:
        monkeypatch.undo()
        crashed.set()
        raise ZeroDivisionError("a bug of ours")

    assert await asked.restarts("message-maintenance") == 0
    monkeypatch.setattr(keeper, "run_once", crash)
    async with asyncio.timeout(_PATIENCE_S):
        await crashed.wait()
        assert await asked.faults() == {
            "parts": "message-maintenance crashed: ZeroDivisionError: a bug of ours"
        }
    await asked.until_ready()
    assert await asked.restarts("message-maintenance") == 1
    assert await asked.restarts("heartbeat") == 0


async def test_a_worker_whose_parts_crash_is_begun_again_and_takes_jobs(
    asked: PolledNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = asked.node

    async def crash() -> None:
        monkeypatch.undo()
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(node.worker._leases, "run", crash)
    await asked.begin_work()
    assert await asked.until(lambda faults: "parts" in faults) == {
        "parts": "worker crashed: ZeroDivisionError: a bug of ours",
        "worker": "it does not run",
    }
    await asked.until_ready()
    assert await asked.restarts("worker") == 1
    job = await node.jobs.schedule("example.echo", "hello")
    assert (await node.jobs.wait(job, timeout=_PATIENCE_S)).state == "succeeded"


async def test_a_worker_that_does_not_look_for_jobs_is_reported_until_it_does(
    asked: PolledNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, stuck, go_on = asked.node, asyncio.Event(), asyncio.Event()

    async def hang() -> NextLook:
        stuck.set()
        await go_on.wait()
        return NOW

    await asked.begin_work()
    await asked.until_ready()
    monkeypatch.setattr(node.worker._claim_loop, "run_once", hang)
    node.worker._wake.set()
    async with asyncio.timeout(_PATIENCE_S):
        await stuck.wait()
    assert await asked.faults() == {}, "it may take a moment"
    says = node.presence.activity
    assert says.consuming_ms is not None
    says.consuming_ms -= round(_LONG_S * 1_000)
    assert await asked.faults() == {"worker": "it has not looked for jobs for 1000 s"}
    monkeypatch.undo()
    go_on.set()
    await asked.until_ready()


async def test_a_request_that_is_under_way_for_too_long_is_reported_until_it_ends(
    asked: PolledNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, stuck, go_on = asked.node.store, asyncio.Event(), asyncio.Event()
    run = store._engine.run

    async def hang(batch: Batch) -> Any:
        stuck.set()
        while not go_on.is_set():  # whatever anybody says
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue
        return await run(batch)

    monkeypatch.setattr(store._engine, "run", hang)
    async with asyncio.timeout(_PATIENCE_S):
        await stuck.wait()
    store._combiner._began -= _LONG_S
    assert (await asked.faults())["writes"] == "one is under way for 1000 s"
    monkeypatch.undo()
    go_on.set()
    await asked.until_ready()


async def test_a_handler_of_a_loaded_set_runs_no_more_jobs_at_a_time_than_it_may(asked: PolledNode) -> None:
    loaded, running, most = HandlerSet(), 0, 0

    @loaded.handles("narrow", concurrency=1)
    async def work(context: JobContext) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(_STEP_S)
        running -= 1

    node = asked.node
    manifests = [Manifest.of(kind="narrow", payload=number) for number in range(4)]
    jobs = await node.jobs.schedule_all(manifests)
    await NodeRun(asked.settings, None, 1.0)._start_work(node, Work(loaded, 4, 0.0))
    for job in jobs:
        assert (await node.jobs.wait(job, timeout=_PATIENCE_S)).state == "succeeded"
    assert most == 1
