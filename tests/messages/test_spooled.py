"""Spooled messages: what is replayed is stored, or stays in the spool."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.homes import MESH
from tools.sqld import Server
from vox_mesh import Mesh, Script, Statement, open_store
from vox_mesh.errors import StaleIncarnation
from vox_mesh.model.messages.records import MessageState
from vox_mesh.runtime.open_store import Role

_SUPERSEDE = "UPDATE node_incarnations SET incarnation = incarnation + ?"


async def test_a_single_message_stays_in_the_spool_if_its_node_may_not_write(
    tmp_path: Path, server: Server
) -> None:
    settings = MESH.settings(tmp_path / "a", server, node_id="a", tick="1h", db_deadline="500ms")
    command = MESH.settings(tmp_path / "b", server, node_id="b")
    async with Mesh.open(settings) as mesh, await open_store(command, Role.COMMAND) as other:
        await mesh.run_once()
        queue, submit = mesh.store.spool_queue, mesh.store._combiner.submit
        assert queue is not None
        server.end()
        sent = await mesh.messages.send("z", "x")
        assert sent.state == MessageState.SPOOLED
        await queue.stop_replaying()
        server.start()
        while (await queue.status()).depth > 1:  # the inbox was announced first
            queue._chunk = 1
            await queue.replay_once(submit)
        await other.write(Script(Statement(_SUPERSEDE, (1,))))
        with pytest.raises(StaleIncarnation):
            await queue.replay_once(submit)
        assert (await queue.status()).depth == 1
        await other.write(Script(Statement(_SUPERSEDE, (-1,))))
        assert await queue.replay_once(submit) == 1
        assert await mesh.messages.queries.find(sent.message_uuid) is not None
