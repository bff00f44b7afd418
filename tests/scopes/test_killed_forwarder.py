"""A process that forwards messages is killed at each step: nothing is lost, and nothing is received twice."""

from __future__ import annotations

from typing import Final

import pytest

from tests.scopes.conftest import SCOPES, settle
from tests.support.running.programs import program
from vox_mesh import Settings
from vox_mesh.cli.node.served_scopes import open_nodes
from vox_mesh.runtime.scopes import settings_of_scopes

_COUNT: Final = 40

_FORWARDER: Final = """
import asyncio, os, signal, sys
from vox_mesh.cli.node.served_scopes import forwarder_of, open_nodes
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.runtime.scopes import settings_of_scopes
from vox_mesh.settings import load_process_settings

async def die(*_, **__):
    print("killed here", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    step = sys.argv[1]
    async with open_nodes(settings_of_scopes(load_process_settings(), ["west", "east"])) as (west, east):
        for mesh in (west, east):
            await mesh.supervisor.stop("forwarder")
        forwarder = forwarder_of(west, [west, east], ["west", "east"], Dependencies())
        if step == "claimed":
            forwarder._inboxes["east"].take = die
        elif step == "stored":
            west.messages.claims.ack = die
        await forwarder.run()

asyncio.run(main())
"""


@pytest.mark.parametrize("step", ["claimed", "stored"])
async def test_a_killed_forwarder_loses_no_message_and_repeats_none(on_servers: Settings, step: str) -> None:
    scopes = settings_of_scopes(on_servers, SCOPES[:2])
    async with open_nodes(scopes) as (west, east):
        for mesh in (west, east):
            await mesh.supervisor.stop("forwarder")
        await settle(west, east)
        await east.roles.trust_scope("west", await west.ownership.key())
        sent = [await west.messages.send("ben@east", n, sender=f"ann-{n % 3}") for n in range(_COUNT)]
    with program(_FORWARDER, step, settings=on_servers) as (line, process):
        assert line == "killed here"
        process.wait(60)
    seen: list[str] = []
    async with open_nodes(scopes) as (west, east):  # the same node again: it need not wait for the lease
        async for message in east.messages.receive("ben"):
            seen.append(message.message_uuid)
            await east.messages.ack(message)
            if len(seen) == _COUNT:
                break
        assert all([await west.messages.wait_for_ack(each, 30) for each in sent])
        assert sorted(seen) == sorted(each.message_uuid for each in sent)
        stored = "SELECT count(*), sum(acknowledged) FROM a2a_messages WHERE scope_id = 'east'"
        stored += " AND repository_id = ?1"
        row = (await east.store.read(stored, (east.store.mesh_id[1],), fresh=True))[0]
        assert tuple(row) == (_COUNT, _COUNT)
