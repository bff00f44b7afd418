"""A server whose disk is full: what can wait waits in the spool, and no one is taken for dead."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from proof.chaos.disk import Disk
from tools.homes import MESH_REPLICA
from tools.sqld import Server
from vox_mesh import Mesh, Script, Statement
from vox_mesh.errors import DatabaseFault, OutcomeUnknown
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.runtime.open_store import open_engine
from vox_mesh.store.schema.probe import try_to_write

_PATIENCE_S: Final = 60.0
_HOUR_S: Final = 3_600


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A small disk for a server."""
    disk = Disk.mounted(tmp_path / "disk", "32m")
    if disk is None:
        pytest.skip("this user may not mount a file system")
    yield disk
    disk.unmount()


@pytest.fixture
def primary(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server on that disk."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(tempfile, "tempdir", str(disk.folder))
        server = Server()
        server.start()
    yield server
    server.stop()


async def test_messages_wait_in_the_spool_and_no_node_is_dead_until_there_is_room(
    disk: Disk, primary: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = MESH_REPLICA.settings(tmp_path / "node", primary)
    engine = await open_engine(settings)
    async with Mesh.open(settings) as node:
        await node.messages.send("reader", "one", sender="writer")
        disk.fill()
        message = await node.messages.send("reader", "two", sender="writer")
        assert message.state == "spooled"
        with pytest.raises(OutcomeUnknown, match="make room on the disk"):
            await node.store.write(Script(Statement("CREATE TABLE t (a)")))
        with pytest.raises(OutcomeUnknown):
            await node.run_once()
        (database,) = [check for check in node.health.checks() if check.name == "database"]
        assert "the database can't be written" in database.detail
        with pytest.raises(DatabaseFault, match="nothing can be written"):
            await try_to_write(engine)

        now_ms = node.clock.now_ms
        with monkeypatch.context() as later:
            later.setattr(MeshClock, "now_ms", property(lambda _: now_ms + 1_000 * _HOUR_S))
            assert node.store.stats.unwritable_since is not None
            node.store.stats.unwritable_since -= _HOUR_S
            assert [each.state for each in await node.nodes.all()] == [NodeState.ALIVE]

        disk.empty()
        await node.run_once()
        assert node.store.unwritable_s == 0
        async with asyncio.timeout(_PATIENCE_S):
            await node.store.drained()
        await try_to_write(engine)
        inbox = await node.messages.inbox("reader")
        assert [each.body for each in inbox] == ["one", "two"]
    await engine.close()
