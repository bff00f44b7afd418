"""Tasks of MCP outlive the node that made them and the process that submitted them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from tests.support.hosts.mcp_tasks import MODERN, TaskClient, task_client
from tests.support.nodes.node_runs import PATIENCE_S, TOKEN, Machines, UpNode, machines, node_settings
from tools.homes import FILE, MESH_REPLICA, HomeCase, environment
from tools.sqld import Server
from vox_mesh import Settings
from vox_mesh.hosts.mcp.tasks.wire import EXTENSION

pytestmark = pytest.mark.timeout(180)

_ROOT: Final = Path(__file__).resolve().parents[3]
_KIND: Final = "test.work"
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {EXTENSION: {}}},
}


@pytest.fixture(params=[FILE, MESH_REPLICA], ids=str)
def case(request: pytest.FixtureRequest) -> HomeCase:
    """A file, or a server with replicas."""
    chosen: HomeCase = request.param
    return chosen


@pytest.fixture
def settings(case: HomeCase, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Settings]:
    """The settings of two nodes on one database."""
    server: Server | None = request.getfixturevalue("server") if case.needs_server else None
    shared = {} if case.needs_server else {"db_path": tmp_path / "shared.db"}
    return {name: node_settings(case, tmp_path, server, name, **shared) for name in ("ann", "ben")}


@asynccontextmanager
async def client_of(node: UpNode) -> AsyncIterator[TaskClient]:
    """A client of a node, for the agent amy."""
    async with task_client(f"http://{node.settings.bind}", TOKEN, agent="amy") as client:
        yield client


async def report(node: UpNode, **outcome: Any) -> Any:
    """Take the job through a node, and report this about it; what it was answered."""
    headers = {"Vox-Agent": "worker"}
    body = {"kinds": [_KIND], "wait": "30s"}
    (taken,) = (
        await node.client.post("/v1/jobs/take", json=body, headers=headers, timeout=PATIENCE_S)
    ).json()
    answer = await node.client.post(
        f"/v1/jobs/{taken['job_id']}/report",
        json={"claim_token": taken["claim_token"], **outcome},
        headers=headers,
    )
    answer.raise_for_status()
    return taken["answer"]


async def killed(here: Machines, name: str) -> None:
    """Kill a node."""
    assert await here.nodes[name].stop(signal.SIGKILL) == -signal.SIGKILL


async def test_a_task_goes_on_at_another_node_and_after_a_restart(
    settings: dict[str, Settings], tmp_path: Path
) -> None:
    async with machines(tmp_path) as here:
        ann, ben = [await here.ready(each) for each in settings.values()]
        async with client_of(ann) as client:
            done, asks, stops = [await client.submit(kind=_KIND, payload=n) for n in range(3)]
            assert (await client.ask("tasks/cancel", stops.task_id))["resultType"] == "complete"
        await killed(here, "ann")
        async with client_of(ben) as client:
            assert (await client.get(done.task_id))["createdAt"] == done.document["createdAt"]
            assert (await client.get(stops.task_id))["status"] == "cancelled"
            waiting = asyncio.create_task(client.until(done.task_id, "completed"))
            await report(ben, outcome="succeeded", result={"n": 1})
            ended = await waiting
            await report(ben, outcome="needs_input", question={"text": "Which?", "choices": ["a", "b"]})
            ((key, _),) = (await client.until(asks.task_id, "input_required"))["inputRequests"].items()
        ann = await here.ready(settings["ann"])
        await killed(here, "ben")
        async with client_of(ann) as client:
            again = await client.get(done.task_id)
            assert [each["lastUpdatedAt"] for each in (again, ended)] == [ended["lastUpdatedAt"]] * 2
            for task in (again, ended):
                assert '{"n":1}' in task["result"]["structuredContent"]["result"]
            assert [*(await client.get(asks.task_id))["inputRequests"]] == [key]
            right = {key: {"action": "accept", "content": {"answer": "b"}}}
            await client.ask("tasks/update", asks.task_id, inputResponses=right)
            assert await report(ann, outcome="failed", reason="no disk", retry=False) == "b"
            failed = await client.until(asks.task_id, "completed")
            assert failed["result"]["isError"] is True


class Pipe:
    """A `vox-mesh mcp`, spoken to in lines as a host does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._count = 0

    async def ask(self, method: str, **params: Any) -> Any:
        """Send a request, and return its result."""
        self._count += 1
        request = {
            "jsonrpc": "2.0",
            "id": self._count,
            "method": method,
            "params": {**params, "_meta": _META},
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(orjson.dumps(request) + b"\n")
        async with asyncio.timeout(PATIENCE_S):
            while (answer := orjson.loads(await self.process.stdout.readline())).get("id") != self._count:
                pass
        return answer["result"]


@asynccontextmanager
async def pipe(settings: Settings) -> AsyncIterator[Pipe]:
    """A host's process next to a node, for the agent amy."""
    variables = {**os.environ, "PYTHONPATH": str(_ROOT), **environment(settings), "VOX_AGENT_ID": "amy"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "vox_mesh.cli", "mcp"),
        env=variables,
        cwd=settings.home_dir.parent,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Pipe(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_task_outlives_the_process_that_submitted_its_job(
    settings: dict[str, Settings], tmp_path: Path
) -> None:
    async with machines(tmp_path) as here:
        ann = await here.ready(settings["ann"])
        async with pipe(settings["ann"]) as host:
            submit = {"kind": _KIND, "payload": 1}
            created = await host.ask("tools/call", name="submit", arguments=submit)
            assert (created["resultType"], created["status"]) == ("task", "working")
            host.process.kill()
            await host.process.wait()
        await report(ann, outcome="succeeded", result="kept")
        async with pipe(settings["ann"]) as host:
            task = await host.ask("tasks/get", taskId=created["taskId"])
            assert task["status"] == "completed"
            assert "kept" in task["result"]["structuredContent"]["result"]
