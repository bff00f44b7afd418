"""Admission of requests: agents take turns, and leave room for the owner's side."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from tests.support.nodes.node_runs import PATIENCE_S
from vox_mesh.http.access import _LOCAL, _READ_TOKEN, _TOKEN, credential_of, credential_of_session
from vox_mesh.http.admission import _LIMITS, AdmissionPool, Load
from vox_mesh.http.console.sessions import ConsoleSessions, SignedInBy
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


async def test_nothing_is_kept_of_a_credential_without_requests() -> None:
    pool = AdmissionPool(Load.SCAN, _LIMITS[Load.SCAN]._replace(wait_s=0.0))
    async with pool.place(credential_of("ann")):
        with pytest.raises(Problem, match="must be at most"):
            await pool.place(credential_of("ann")).__aenter__()
        assert list(pool._rooms) == ["agent ann"]
    assert (pool._rooms, pool._users, pool._queued) == ({}, {}, {})


def test_sessions_count_towards_the_credential_with_which_they_were_made() -> None:
    sessions = ConsoleSessions(lambda: 0)
    accounts: dict[tuple[SignedInBy, bool], set[str]] = {}
    for by, is_read_only, name in product(SignedInBy, (False, True), ("alice", "bob")):
        opened = sessions.open(name, by, is_read_only=is_read_only)
        assert opened is not None
        credential = credential_of_session(opened.session, is_strict=False)
        accounts.setdefault((by, is_read_only), set()).add(credential.account)
    assert accounts[SignedInBy.USER, False] == {_LOCAL.account}
    assert accounts[SignedInBy.TOKEN, False] == {_TOKEN.account}
    assert accounts[SignedInBy.READ_TOKEN, False] == accounts[SignedInBy.READ_TOKEN, True]
    assert accounts[SignedInBy.READ_TOKEN, True] == {_READ_TOKEN.account}
    assert accounts[SignedInBy.USER, True] != accounts[SignedInBy.TOKEN, True]
    assert len({*map(frozenset, accounts.values())}) == 5
