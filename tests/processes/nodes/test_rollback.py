"""The store goes back in time under processes: commands get tokens that rise, nodes join again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.support.nodes.node_runs import PATIENCE_S, UpNode, ask, machines, node_settings
from tools.homes import MESH, MESH_REPLICA
from tools.sqld import Server
from vox_mesh import Mesh
from vox_mesh.model.nodes.store_memory import ROLLED_BACK, TOKENS_RAISED_BY
from vox_mesh.nodes.nodes import Node


def _copy(server: Server, to: Path) -> None:
    server.end()
    server.copy_data(to)
    server.start()


async def test_tokens_of_commands_rise_though_no_node_could_notice(server: Server, tmp_path: Path) -> None:
    settings = MESH.settings(tmp_path, server, scope_id="one", node_id="a")

    async def acquired() -> dict[str, Any]:
        code, lock = await ask(settings, "lock", "acquire", "task:1", "--agent", "ada")
        assert code == 0
        return dict(lock)

    first = await acquired()
    await ask(settings, "lock", "release", "task:1", "--token", str(first["fence_token"]))
    _copy(server, tmp_path / "copy")
    lost = await acquired()
    server.put_back(tmp_path / "copy")
    new = await acquired()
    assert first["fence_token"] < lost["fence_token"] < new["fence_token"] < 2**53
    async with Mesh.open_command(settings) as mesh:
        (holder,) = await mesh.locks.holders("task:1")
        assert holder.fence_token == new["fence_token"]


async def test_nodes_under_which_the_store_goes_back_join_again(server: Server, tmp_path: Path) -> None:
    ada = node_settings(MESH_REPLICA, tmp_path, server, "ada")
    bob = node_settings(MESH_REPLICA, tmp_path, server, "bob")
    async with machines(tmp_path) as there:
        one, two = await there.ready(ada), await there.ready(bob)
        _copy(server, tmp_path / "copy")
        for node in (one, two):
            await node.until_ready()
        lock = {"keys": ["task:1"], "agent": "ada"}
        lost = (await one.post("/v1/locks", lock)).json()
        async with Mesh.open_command(ada) as mesh:
            message = await mesh.messages.send("zoe", {"n": 1}, sender="ada")
        await _ticked(one, 3)
        server.put_back(tmp_path / "copy")
        for node in (one, two):
            await _rejoined(node)
            await node.until_ready()
        new = (await two.post("/v1/locks", lock)).json()
        assert new["fence_token"] > lost["fence_token"] + TOKENS_RAISED_BY
        held = {"lock_key": "task:1", "fence_token": lost["fence_token"]}
        assert (await one.post("/v1/locks/renew", held)).status_code >= 400
        async with Mesh.open_command(ada) as mesh:
            assert len(await mesh.oplog.tail(100, kind=ROLLED_BACK)) == 1
            assert not [report for report in await mesh.oplog.verify() if report.problem]
        _, found = await ask(ada, "db", "lost")
        (rolled_back,) = found["rollbacks"]
        assert rolled_back["after_log_id"] <= rolled_back["to_log_id"]
        rows = {(row["table"], row["key"]): row for row in found["rows"]}
        assert rows["a2a_messages", message.message_uuid]["now"] is None
        assert rows["distributed_locks", "task:1"]["lost"]["fence_token"] == lost["fence_token"]
        assert rows["distributed_locks", "task:1"]["now"]["fence_token"] == new["fence_token"]
        assert await ask(ada, "db", "lost", "--discard") == (0, {"discarded": 1})
        _, found = await ask(ada, "db", "lost")
        assert (len(found["rollbacks"]), found["copies"], found["rows"]) == (1, [], [])


async def _ticked(node: UpNode, times: int) -> None:
    """Wait until a node has ticked so often."""
    async with Mesh.open_command(node.settings) as mesh, asyncio.timeout(PATIENCE_S):
        first: int | None = None
        async for nodes in _rows(mesh):
            beats = next(each.beats for each in nodes if each.node_id == node.name)
            first = beats if first is None else first
            if beats >= first + times:
                return


async def _rejoined(node: UpNode) -> None:
    """Wait until a node has noticed: it is another process, which sends no event."""
    await node._until(lambda: node.metric("vox_store_rollbacks_total"), "it did not notice")


async def _rows(mesh: Mesh) -> AsyncIterator[list[Node]]:
    while True:
        yield await mesh.nodes.all()
        await asyncio.sleep(0.05)
