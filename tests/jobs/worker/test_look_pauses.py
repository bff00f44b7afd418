"""The pause after a look that found nothing: a multiple of how long that look took."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from tests.support.jobs.job_desks import ControlledHandler, scheduled
from tests.support.messages.messaging import PATIENCE_S
from tools.homes import MESH_REPLICA
from tools.sqld import Server
from vox_mesh import Mesh
from vox_mesh.jobs.worker import claim_loop
from vox_mesh.jobs.worker.claim_loop import ClaimLoop
from vox_mesh.jobs.worker.claim_round import NextLook
from vox_mesh.store.replica.copy import Applied, Copy
from vox_mesh.store.replica.delegating import DelegatingReplica
from vox_mesh.store.replica.pushed import PushedReplica
from vox_mesh.store.replica.wire import WalFrame


async def test_the_wait_for_the_own_commits_does_not_lengthen_it(
    tmp_path: Path, shared_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, pauses_s = 0.0, list[float]()
    take: Callable[[Copy, Sequence[WalFrame]], Awaitable[Applied]] = Copy.take

    async with Mesh.open(MESH_REPLICA.settings(tmp_path, shared_server, tick="1h")) as node:
        chosen = node.store._replica
        assert isinstance(chosen, DelegatingReplica)
        replica, worker = chosen._chosen, node.worker
        assert isinstance(replica, PushedReplica)

        async def take_late(copy: Copy, frames: Sequence[WalFrame]) -> Applied:
            """Let commits arrive a minute after something has begun to wait for them."""
            nonlocal now_s
            while not replica._progress.is_awaited:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0)
            now_s += 60.0
            return await take(copy, frames)

        async def wait(_: ClaimLoop, next_look: NextLook, least_s: float) -> None:
            pauses_s.append(least_s)
            worker._capacity.close()

        ControlledHandler(node)
        await node.store.synced()
        with monkeypatch.context() as late:
            late.setattr(claim_loop, "_MAX_PAUSE_S", 3_600.0)
            late.setattr(worker._leases, "_monotonic", lambda: now_s)
            late.setattr(ClaimLoop, "_wait", wait)
            late.setattr(Copy, "take", take_late)
            worker._capacity.open(1, ["work"], ())
            await scheduled(node, 1, kind="elsewhere")
            await asyncio.wait_for(worker._claim_loop.run(), PATIENCE_S)
    assert now_s >= 60.0
    assert pauses_s == [0.0]
