"""A node that is asked to end does so, also when there is no database to say so to; and says what is left."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest

from tests.support.jobs import example_handlers
from tests.support.nodes.node_runs import PATIENCE_S, Machines, UpNode, ask, machines, node_settings
from tests.support.running.lengths import cases_in_soak
from tools.homes import MESH_REPLICA
from tools.sqld import Server

_WORK: Final = ("--handlers", "my_handlers:handlers")
_JOBS: Final = 3
_LOOK_S: Final = 0.03


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Machines]:
    """Machines on which there are handlers."""
    shutil.copy(str(example_handlers.__file__), tmp_path / "my_handlers.py")
    async with machines(tmp_path) as here:
        yield here


async def _load(node: UpNode) -> None:
    """Have it work on some jobs that do not end by themselves."""
    jobs = [{"kind": "example.wait", "payload": number} for number in range(_JOBS)]
    scheduled = await node.post("/v1/jobs", {"manifests": jobs})
    assert scheduled.status_code == HTTPStatus.OK, scheduled.text
    await _until_all(node, "running")


async def _until_all(node: UpNode, state: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            jobs = (await node.client.get("/v1/jobs")).json()["items"]
            if [job["state"] for job in jobs] == [state] * _JOBS:
                return
            await asyncio.sleep(_LOOK_S)


@pytest.mark.parametrize("how", ["gone", *cases_in_soak("hung")])
async def test_with_the_database_away_it_ends_in_time_and_says_what_it_could_not_give_back(
    here: Machines, tmp_path: Path, server: Server, how: str
) -> None:
    settings = node_settings(MESH_REPLICA, tmp_path, server, "ann")
    node = await here.ready(settings, *_WORK, "--grace", "100ms")
    await _load(node)
    if how == "hung":
        server.freeze()
    else:
        server.kill()
    code = await node.stop()
    assert "draining: 3 jobs running, unfinished ones are released" in node.said
    assert "spool not empty at close: writes=" in node.said
    assert "leave announcement failed" in node.said or code == 1
    assert "shutdown timed out" in node.said or code == 0
    assert "Traceback" not in node.said
    if how == "hung":
        server.thaw()
    else:
        await asyncio.to_thread(server.start)
    heir = await here.ready(settings, "--no-worker")
    await _until_all(heir, "pending")
    jobs = (await heir.client.get("/v1/jobs")).json()["items"]
    assert {(job["claimer"], job["failures"]) for job in jobs} == {(None, 0)}
    assert (await ask(settings, "oplog", "verify"))[0] == 0
    assert await heir.stop() == 0


async def test_a_second_signal_ends_it_at_once_also_with_the_database_away(
    here: Machines, tmp_path: Path, server: Server
) -> None:
    settings = node_settings(MESH_REPLICA, tmp_path, server, "ann")
    node = await here.ready(settings, *_WORK, "--grace", "1h")
    await _load(node)
    server.freeze()
    try:
        node.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if "draining: " in node.said:
                    break
                await asyncio.sleep(_LOOK_S)
        assert await node.stop() == 128 + signal.SIGTERM
    finally:
        server.thaw()
    assert (await ask(settings, "oplog", "verify"))[0] == 0
