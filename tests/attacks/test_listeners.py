"""Agents that listen to the events of a mesh, and whose grant ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from tests.support.messages.relaying import TOKEN, address_of
from tests.support.nodes.serving import ServedNode
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.nodes.signing import admitted
from tools.homes import FILE
from vox_mesh.mesh import Mesh
from vox_mesh.store import new_key


async def test_a_stream_of_events_ends_with_the_grant_of_its_agent(tmp_path: Path) -> None:
    shared_mesh = SharedMesh(FILE, tmp_path, None, new_key(), has_relay=True)
    async with (
        Mesh.open(shared_mesh.settings("ann", token=TOKEN)) as node,
        httpx.AsyncClient(base_url=address_of(node), timeout=60, trust_env=False) as client,
    ):
        agent = await admitted(ServedNode(node, client, shared_mesh), "listener", ["mesh.read"])
        assert (await agent.ask("GET", "/v1/nodes")).status_code == 200
        answer = await client.send(agent.signed("GET", "/v1/events?topics=locks"), stream=True)
        assert answer.status_code == 200
        lines = answer.aiter_lines()
        async with asyncio.timeout(60):
            while not (await anext(lines)).startswith("event: reset"):
                pass
            (grant,) = await node.grants.in_force("listener")
            await node.grants.revoke(grant.grant.grant_id)
            node.principals.known._reading.expire()  # it is remembered for a second
            await node.locks.acquire("task:secret", agent="dan")
            assert not [line async for line in lines if "task:secret" in line]
        await answer.aclose()
