"""Many agents want several of the same few keys at once: no one waits forever."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.locks.lock_history import WRITES, falling_writes
from tests.support.locks.lock_processes import lockers
from tests.support.running import lengths
from tests.support.store.tables import make_table
from tools.homes import FILE, MESH_REPLICA, HomeCase
from vox_mesh.mesh import Mesh

_PROCESSES = 4
_AGENTS = 8
_KEYS = [f"key-{n}" for n in range(10)]


@pytest.mark.soak
@pytest.mark.parametrize("case", [MESH_REPLICA, *lengths.in_soak(FILE)], ids=str)
async def test_32_agents_that_each_want_3_of_10_keys_are_all_served(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest, seed: int
) -> None:
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    settings = case.settings(tmp_path, server, db_deadline="60s")
    async with Mesh.open_command(settings) as mesh:
        table = await make_table(mesh.store, WRITES)
        async with lockers(tmp_path, table) as start:
            processes = await asyncio.gather(*(start(settings, f"p{n}") for n in range(_PROCESSES)))
            wants = {"agents": _AGENTS, "keys": _KEYS, "seconds": lengths.WANTING_S, "seed": seed}
            ends = await asyncio.gather(*(process.order("want", **wants) for process in processes))
            assert not [end for end in ends if "error" in end], ends
            agents = [agent for end in ends for agent in end["agents"]]
            written = [each for process in processes for each in process.reports if "ended" in each]
            served = [agent["served"] for agent in agents]
            longest = max(agent["longest_s"] for agent in agents)
            print(f"{case}: {sum(served)} times served, each {min(served)} to {max(served)} times")
            print(f"{case}: the longest wait was {longest:.3f} s")
            assert len(agents) == _PROCESSES * _AGENTS
            assert min(served) >= 1, "someone was never served"
            assert {each["step"] for each in written} == {"ok"}, "a lock was lost while it was held"
            assert await falling_writes(mesh.store, table) == []
            assert await mesh.locks.holders() == []
            left = "SELECT count(*) FROM lock_waiters WHERE scope_id = ?"
            assert (await mesh.store.read(left, (settings.scope_id,), fresh=True)).value == 0
