"""Three nodes under load, each killed and begun again in turn: nothing is lost, doubled or left behind."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import httpx
import pytest

from tests.support.jobs import load_handlers
from tests.support.jobs.job_runs import works
from tests.support.nodes.node_load import Load
from tests.support.nodes.node_runs import Machines, UpNode, machines, node_settings
from tests.support.running.lengths import NODE_ROUNDS, SOAK, only_at_full_length
from tools.homes import MESH_REPLICA
from tools.sqld import Server
from vox_mesh import Settings

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_800 if SOAK else 180)]

_NAMES: Final = ("ann", "ben", "cat")
_UP: Final = ("--handlers", "my_handlers:handlers", "--worker-exec", "--grace", "500ms")
_LEASE_S: Final = 1.5
_BETWEEN: Final = 60 if SOAK else 12
"""Jobs that end between two faults."""

_LOOK_S: Final = 0.03
_MORE_BYTES: Final = 40 * 2**20
_MORE_FILES: Final = 24


class ResourceUse(NamedTuple):
    """What a process takes of its machine."""

    bytes: int
    files: int


def _footing(node: UpNode) -> ResourceUse:
    pid = node.process.pid
    result = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    folder = Path(f"/proc/{pid}/fd")
    return ResourceUse(int(result.stdout) * 1_024, len(list(folder.iterdir())) if folder.exists() else 0)


class Truth:
    """Asks the nodes all the time whether they are ready, and holds them to it."""

    def __init__(self, here: Machines) -> None:
        self._here = here
        self.asked_for = 0
        self.kept = 0

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[None]:
        """While the block runs."""
        asking = [asyncio.create_task(self._ask(name)) for name in _NAMES]
        try:
            yield
        finally:
            for task in asking:
                task.cancel()
            for result in await asyncio.gather(*asking, return_exceptions=True):
                if not isinstance(result, asyncio.CancelledError):
                    raise AssertionError(result) from (result if isinstance(result, Exception) else None)

    async def _ask(self, name: str) -> None:
        while True:
            node = self._here.nodes[name]
            if await node.is_ready():
                await self._hold_to(node)
            await asyncio.sleep(_LOOK_S)

    async def _hold_to(self, node: UpNode) -> None:
        """It reported that it is ready: then it writes as asked, unless it was asked to end."""
        self.asked_for += 1
        wanted = {"keys": [f"truth:{node.name}:{self.asked_for}"], "agent": node.name, "ttl": "1s"}
        try:
            answer = await node.post("/v1/locks", wanted)
            said = answer.text
        except httpx.TransportError as error:
            said = repr(error)
        else:
            if answer.status_code == HTTPStatus.CREATED:
                self.kept += 1
                return
        assert node.is_told_to_end, f"{node.name} was ready, and then {said}\n{node.said[-2_000:]}"


async def _replaced(here: Machines, settings: Settings, number: int) -> UpNode:
    """End a node and begin it again; in between no one answers for it."""
    assert settings.node_id is not None
    node = here.nodes[settings.node_id]
    code = await node.stop(number)
    assert code == (-number if number == signal.SIGKILL else 0), node.said[-2_000:]
    assert await node.is_ready() is None
    return await here.ready(settings, *_UP)


def _running(marker: str) -> list[str]:
    """The processes whose command line has the marker."""
    result = subprocess.run(["ps", "-Ao", "pid=,args="], capture_output=True, text=True, check=True)
    return [line for line in result.stdout.splitlines() if marker in line and "ps -Ao" not in line]


@only_at_full_length  # chaos shows the same in every run
async def test_whatever_happens_to_nodes_the_mesh_is_right_and_they_tell_the_truth(
    tmp_path: Path, server: Server, seed: int
) -> None:
    random = Random(seed)
    shutil.copy(str(load_handlers.__file__), tmp_path / "my_handlers.py")
    long = {"db_deadline": "20s", "db_request_timeout": "10s", "tick": "500ms"}
    all_settings = [node_settings(MESH_REPLICA, tmp_path, server, name, **long) for name in _NAMES]
    watching = all_settings[0].model_copy(update={"http": False, "bind": None})
    async with works(watching, tmp_path, lease=_LEASE_S, places=4) as run, machines(tmp_path) as here:
        for settings in all_settings:
            await here.ready(settings, *_UP)
        load, truth = Load(here, run.mesh.store, random, str(tmp_path)), Truth(here)
        survivor = here.nodes[_NAMES[0]]
        async with load.running(_NAMES), truth.asked():
            await run.until_ended(_BETWEEN)
            before, ended = _footing(survivor), _BETWEEN
            for turn in range(NODE_ROUNDS):
                for place, settings in enumerate(all_settings[1:]):
                    fault = signal.SIGKILL if (turn + place) % 2 else signal.SIGTERM
                    await _replaced(here, settings, fault)
                    ended += _BETWEEN
                    await run.until_ended(ended)
            after = _footing(survivor)
            await _replaced(here, all_settings[0], signal.SIGKILL)
        await run.until_ended(len(load.jobs))
        for node in here.nodes.values():
            assert await node.stop() == 0, node.said[-2_000:]
        assert _running(str(tmp_path)) == []
        history = await run.assert_right(load.jobs)
        assert {story.end for story in history.stories.values()} == {"succeeded"}
        load.assert_tokens_rose()
        load.assert_messages_arrived()
        print(
            f"{len(load.jobs)} jobs, {history.expired} leases ran out, {len(load.grants)} grants, "
            f"{len(load.done)} messages and {load.again} again, {truth.kept} words kept, "
            f"{load.refused} refused; {before} -> {after}"
        )
        assert truth.kept
        if SOAK:
            assert after.bytes - before.bytes < _MORE_BYTES
            assert after.files - before.files < _MORE_FILES
