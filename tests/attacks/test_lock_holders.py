"""An agent that wants what another one holds, and asks for it as if it were its own."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.oplog.authoring import scene
from vox_mesh.errors import LockHeld, NotKnown
from vox_mesh.nodes.processes import process_of


async def test_acquiring_again_never_hands_out_the_lock_of_another_agent() -> None:
    async with scene() as there, there.node("a") as mesh, there.node("b") as other:
        for key, shared in (("file:a", False), ("file:b", True)):
            held = await mesh.locks.acquire_or_renew(key, agent="ann", shared=shared)
            for node, agent in ((mesh, "eve"), (mesh, "Ann"), (mesh, "ann "), (other, "ann")):
                if not shared:
                    with pytest.raises(LockHeld):
                        await node.locks.acquire_or_renew(key, agent=agent)
                else:
                    own = await node.locks.acquire_or_renew(key, agent=agent, shared=True)
                    assert (own.fence_token != held.fence_token, own.is_renewed) == (True, False)
                    assert await node.locks.release(own)
                with pytest.raises(NotKnown):
                    await node.locks.release_held(key, agent=agent)
                assert await node.locks.release_held(agent=agent) == []
            again = await mesh.locks.acquire_or_renew(key, agent="ann", shared=shared)
            assert (again.fence_token, again.is_renewed) == (held.fence_token, True)


async def test_a_session_lock_does_not_outlive_its_process() -> None:
    async with scene() as there, there.node("a") as mesh:
        await mesh.locks.sessions.run_once()
        child = await asyncio.create_subprocess_exec("sleep", "600")
        try:
            held = await mesh.locks.acquire_or_renew("file:a", agent="ann", session=process_of(child.pid))
            await mesh.locks.sessions.run_once()
            with pytest.raises(LockHeld):
                await mesh.locks.acquire_or_renew("file:a", agent="eve")
        finally:
            child.kill()
            await child.wait()
        taken = await mesh.locks.acquire_or_renew("file:a", agent="eve")
        assert taken.fence_token > held.fence_token


async def test_the_lock_of_a_silent_agent_is_not_kept_by_the_heartbeats_of_another() -> None:
    async with scene() as there, there.node("a") as mesh, there.node("b") as other:
        held = await mesh.locks.acquire("file:a", agent="ann", ttl=30, session="heartbeats")
        await mesh.locks.renew(held, ttl=5)
        for node, agent in ((mesh, "eve"), (mesh, "ann "), (other, "ann")):
            assert await node.locks.heartbeat(agent=agent) == []
        (seen,) = await mesh.locks.holders("file:a")
        assert seen.left_s <= 5
        assert [each.fence_token for each in await mesh.locks.heartbeat(agent="ann")] == [held.fence_token]
