"""Admission of requests: agents take turns, and leave room for the owner's side."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.nodes.node_runs import PATIENCE_S
from vox_mesh.http.access import _LOCAL, credential_of
from vox_mesh.http.admission import _LIMITS, AdmissionPool, Load
from vox_mesh.http.problems import Problem


async def _scan(pool: AdmissionPool, agent: str, running: asyncio.Event) -> None:
    """Scan until it is stopped."""
    async with pool.place(credential_of(agent)):
        running.set()
        await asyncio.Event().wait()


async def test_a_slow_scan_of_an_agent_shuts_out_no_one() -> None:
    pool = AdmissionPool(Load.SCAN, _LIMITS[Load.SCAN]._replace(turn_s=0.0))
    running = asyncio.Event()
    async with asyncio.timeout(PATIENCE_S):
        slow = asyncio.create_task(_scan(pool, "eve", running))
        await running.wait()
        async with pool.place(_LOCAL):
            assert not slow.done(), "the owner's side has a place of its own"
        own = asyncio.create_task(_scan(pool, "eve", asyncio.Event()))
        await asyncio.sleep(0)
        assert not slow.done(), "what it sends itself does not stop it"
        async with pool.place(credential_of("ann")):
            with pytest.raises(Problem, match="while other clients wait"):
                await slow
            assert not own.done(), "it waits for its turn"
        own.cancel()
        await asyncio.gather(own, return_exceptions=True)
        async with pool.place(credential_of("ben")), pool.place(_LOCAL):
            pass
