"""A node with something in its way says what, there and elsewhere, and goes on by itself when it is gone."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest

from proof.chaos.proxy import Proxy, PushFault
from tests.support.jobs import example_handlers
from tests.support.nodes.node_runs import Machines, UpNode, ask, diagnosed, machines, node_settings
from tests.support.store.disks import Disk
from tests.support.store.disks import disk as disk
from tools.homes import FILE, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh, Settings
from vox_mesh.errors import MeshError
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.node import MeshNode
from vox_mesh.nodes.key_file import new_key

_WORK: Final = ("--handlers", "my_handlers:handlers")
_ALL: Final = 10**6
_TICKS_TO_TELL: Final = 3
"""A check that fails, and checks that fail meanwhile."""


_NO_ROOM: Final = ("disk is full", "No space left", "disk I/O error", "File too large")

_LONG: Final = "long" * 10_000


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Machines]:
    """Machines on which there are handlers."""
    shutil.copy(str(example_handlers.__file__), tmp_path / "my_handlers.py")
    async with machines(tmp_path) as here:
        yield here


async def _schedule(node: UpNode, kind: str, payload: str) -> str:
    """Have it take a job over HTTP; the job's id."""
    manifest = {"kind": kind, "payload": payload}
    scheduled = await node.post("/v1/jobs", {"manifests": [manifest], "new": True})
    assert scheduled.status_code == HTTPStatus.OK, scheduled.text[:1_000]
    job_id: str = scheduled.json()[0]["job_id"]
    return job_id


async def _works(node: UpNode) -> None:
    """It takes jobs over HTTP, and works on them."""
    job_id = await _schedule(node, "example.echo", "hello")
    ended = await node.client.get(f"/v1/jobs/{job_id}/wait")
    assert ended.json()["state"] == "succeeded", ended.text


def _failed_ticks(node: UpNode) -> int:
    return node.said.count("heartbeat failed")


async def _until_told(settings: Settings, node: UpNode, words: str) -> None:
    """Wait until others see it in the roster, which comes with the next tick."""
    async with asyncio.timeout(60):
        while True:
            _, (there,) = await ask(settings, "nodes")
            assert there["node_id"] == node.name
            if any(words in fault for fault in there["faults"]):
                return


async def test_a_replica_that_is_cut_off_is_reported_here_and_to_all_and_it_heals(
    tmp_path: Path, here: Machines, server: Server
) -> None:
    elsewhere = node_settings(MESH_REPLICA, tmp_path, server, "elsewhere")
    async with Proxy(server.port) as proxy:
        settings = node_settings(MESH_REPLICA, tmp_path, server, "ann", db_url=proxy.url)
        node = await here.ready(settings, *_WORK)
        assert await diagnosed(elsewhere) == {}
        proxy.spoil(PushFault.CUT, times=_ALL)
        faults = await node.until_ill("replica")
        assert list(faults) == ["replica"], "the database itself answers"
        assert "out of touch" in faults["replica"]
        await _works(node)  # by asking the database, which is slower
        await _until_told(elsewhere, node, "replica: it is")
        for place in (settings, elsewhere):
            found = await diagnosed(place)
            assert set(found) == {"nodes", "service"}
            assert "ann: replica: it is" in found["nodes"]
        assert "out of touch" in (await diagnosed(settings))["service"]
        proxy.release()
        await node.until_ready()
        await _works(node)


async def test_a_server_that_hangs_is_reported_within_a_tick_and_it_goes_on_when_that_does(
    tmp_path: Path, here: Machines, server: Server
) -> None:
    node = await here.ready(node_settings(MESH_REPLICA, tmp_path, server, "ann"), *_WORK)
    server.freeze()
    try:
        faults = await node.until_ill("database")
        assert _failed_ticks(node) <= _TICKS_TO_TELL
        assert "did not answer a tick in time" in faults["database"]
        assert "did not answer" in (await node.until_ill("replica"))["replica"]
        assert "did not answer" in (await diagnosed(node.settings))["reachability"]
    finally:
        server.thaw()
    await node.until_ready()
    await _works(node)


async def test_a_token_that_was_revoked_is_reported_within_a_tick_and_it_goes_on_when_it_is_good_again(
    tmp_path: Path, here: Machines, server: Server
) -> None:
    node = await here.ready(node_settings(MESH_REPLICA, tmp_path, server, "ann"), *_WORK)
    good = server._key
    await asyncio.to_thread(_restart, server, SigningKey(new_key()))
    faults = await node.until_ill("database")
    while "VOX_DB_TOKEN" not in faults["database"]:  # for a moment there was no server at all
        assert _failed_ticks(node) <= 2 * _TICKS_TO_TELL
        faults = await node.until_ill("database")
    assert "VOX_DB_TOKEN" in faults["database"]
    assert "refused the token" in (await diagnosed(node.settings))["reachability"]
    await asyncio.to_thread(_restart, server, good)
    await node.until_ready()
    await _works(node)


def _is_ready(node: MeshNode) -> bool:
    return all(check.is_ok for check in node.health.checks())


async def test_a_token_that_is_revoked_while_a_node_starts_does_not_end_it(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, check_ownerless = server._key, MeshNode._check_ownerless

    async def revoked(node: MeshNode) -> bool:
        assert not _is_ready(node)  # though it is registered, and answers
        await asyncio.to_thread(_restart, server, SigningKey(new_key()))
        return await check_ownerless(node)

    monkeypatch.setattr(MeshNode, "_check_ownerless", revoked)
    async with Mesh.open(node_settings(MESH_REPLICA, tmp_path, server, "ann")) as node:
        monkeypatch.undo()
        await asyncio.to_thread(_restart, server, good)
        async with asyncio.timeout(60):
            while not _is_ready(node) or not node._is_owned:
                with suppress(MeshError):
                    await node.run_once()


def _restart(server: Server, key: SigningKey) -> None:
    """Start it again with another key: what the last one signed is of no use any more."""
    server.kill()
    server._key = key
    server.start()


@pytest.mark.parametrize(("case", "check"), [(FILE, "database"), (MESH_REPLICA, "replica")], ids=str)
async def test_a_full_disk_is_reported_within_a_tick_and_it_goes_on_when_there_is_room(
    here: Machines, disk: Disk, case: HomeCase, check: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    settings = node_settings(case, disk.folder, server, "ann", scope_id=disk.folder.parent.name[:64])
    node = await here.ready(settings, *_WORK)
    await _works(node)
    disk.fill(node.process.pid)
    if server is not None:
        await _schedule(node, "nobodys.job", _LONG)  # which it is to have a copy of
    faults = await node.until_ill(check)
    assert list(faults) == [check]
    assert any(words in faults[check] for words in _NO_ROOM), faults
    assert _failed_ticks(node) <= _TICKS_TO_TELL
    found = await diagnosed(node.settings)
    assert faults[check] in found["service"]
    disk.empty(node.process.pid)
    await node.until_ready()
    await _works(node)
