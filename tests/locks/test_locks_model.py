"""Agents that walk over a few keys, in any order of steps: their answers are what the rules say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

from tests.support.locks.holding import PATIENCE_S, expire, is_held, nodes, rows_of, settled
from tests.support.locks.lock_oracle import Claim, Oracle
from tests.support.oplog.authoring import scene
from tests.support.running import lengths
from tests.support.running.walks import walk
from tools.homes import FILE, MESH_REPLICA
from tools.sqld import Server
from vox_mesh.errors import LockHeld, StaleFence
from vox_mesh.locks import scripts as request
from vox_mesh.locks import wait_queue as queue
from vox_mesh.model.locks.patterns import overlap
from vox_mesh.model.locks.records import Lock
from vox_mesh.node import MeshNode

T = TypeVar("T")
Open = Callable[[], AbstractAsyncContextManager[list[MeshNode]]]

_KEYS = ["file:a/x", "file:a/y", "file:b/x", "file:a/*", "file:**/x", "task:1", "task:2"]
_LONG = "+600.000 seconds"

keys_of = st.lists(st.sampled_from(_KEYS), min_size=1, max_size=3, unique=True)
any_of = st.integers(0, 2**16)


class LockWalk(RuleBasedStateMachine):
    """Two nodes, any number of agents; after each step the database shows what the oracle says."""

    opened: Open

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._oracle = Oracle()
        self._locks: dict[Claim, tuple[MeshNode, Lock]] = {}
        self._over: list[tuple[MeshNode, Lock]] = []
        self._waiting: dict[Claim, tuple[MeshNode, asyncio.Task[Lock]]] = {}
        self._highest: dict[str, int] = {}
        self._agents = 0

    def _run(self, step: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(PATIENCE_S):
                ended = await step
                await self._settle()
                return ended

        return self._runner.run(bounded())

    @initialize()
    def begin(self) -> None:
        """Open the mesh."""
        self._context = type(self).opened()
        self._nodes = self._runner.run(self._context.__aenter__())

    def teardown(self) -> None:
        """Leave it, whatever happened."""

        async def end() -> None:
            for _, task in self._waiting.values():
                task.cancel()
            await asyncio.gather(*(task for _, task in self._waiting.values()), return_exceptions=True)
            await self._context.__aexit__(None, None, None)

        try:
            self._runner.run(end())
        finally:
            self._runner.close()

    # --- what is compared ---------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Wait for all who are served by now, and compare."""
        served = [(claim, *self._waiting.pop(claim)) for claim in self._oracle.served()]
        for node in self._nodes:
            node.store._changes.bump()  # in memory no node hears of another's commits
        before = dict(self._highest)  # of shares that are served together, any may have the higher token
        for claim, node, task in served:
            self._granted(claim, node, await task, before)
        for node in self._nodes:
            await settled(node)
        for claim, (_, task) in self._waiting.items():
            assert not task.done(), f"{claim} was served before its turn"
        node = self._nodes[0]
        held = [(h.lock_key, h.holder_agent, h.is_shared) for h in await node.locks.holders()]
        assert sorted(held) == self._oracle.holders()
        rows = await rows_of(node, "lock_waiters")
        waiting = [(row["lock_key"], row["holder_agent"], bool(row["is_shared"])) for row in rows]
        assert sorted(waiting) == self._oracle.waiters()

    def _granted(
        self, claim: Claim, node: MeshNode, lock: Lock, before: dict[str, int] | None = None
    ) -> None:
        highest = dict(self._highest) if before is None else before
        assert (sorted(lock.keys), lock.is_shared) == (sorted(claim.keys), claim.is_shared)
        for key in _KEYS:
            if any(overlap(key, mine) for mine in lock.keys):
                assert lock.fence_token > highest.get(key, 0), f"the token of {key} did not rise"
        for key in lock.keys:
            self._highest[key] = max(lock.fence_token, self._highest.get(key, 0))
        self._locks[claim] = (node, lock)

    def _ended(self, claim: Claim) -> tuple[MeshNode, Lock]:
        self._oracle.end(claim)
        self._over.append(self._locks.pop(claim))
        return self._over[-1]

    def _claim(self, keys: list[str], shared: bool) -> Claim:
        self._agents += 1
        return Claim(tuple(keys), shared, f"agent-{self._agents}")

    def _chosen(self, number: int) -> Claim:
        held = list(self._locks)
        return held[number % len(held)]

    # --- the steps ------------------------------------------------------------------------------------

    @rule(number=any_of, keys=keys_of, shared=st.booleans(), waits=st.booleans())
    def acquire(self, number: int, keys: list[str], shared: bool, waits: bool) -> None:
        """Ask for keys, and wait for them or don't."""
        claim = self._claim(keys, shared)
        node = self._nodes[number % 2]

        async def step() -> None:
            is_granted = self._oracle.ask(claim, waits=waits)
            asking = node.locks.acquire(keys, agent=claim.agent, shared=shared, wait=300 if waits else 0)
            if is_granted:
                self._granted(claim, node, await asking)
            elif waits:
                task = asyncio.create_task(asking)
                self._waiting[claim] = (node, task)
                while not any(
                    row["holder_agent"] == claim.agent for row in await rows_of(node, "lock_waiters")
                ):
                    assert not task.done(), task
                    await asyncio.sleep(0)
            else:
                with pytest.raises(LockHeld):
                    await asking

        self._run(step())

    @precondition(lambda self: self._locks)
    @rule(number=any_of)
    def release(self, number: int) -> None:
        """Let go of a lock."""
        node, lock = self._ended(self._chosen(number))
        assert self._run(node.locks.release(lock))

    @precondition(lambda self: self._locks)
    @rule(number=any_of)
    def expire(self, number: int) -> None:
        """Have a lock's time pass."""
        node, lock = self._ended(self._chosen(number))
        self._run(expire(node, lock))

    @precondition(lambda self: self._locks)
    @rule(number=any_of)
    def end_by_force(self, number: int) -> None:
        """Break what is held of one key."""
        key = self._chosen(number).keys[0]
        for claim in [claim for claim in self._locks if key in claim.keys]:
            self._ended(claim)
        self._run(self._nodes[number % 2].locks.break_lock(key, "a test"))

    @precondition(lambda self: self._locks)
    @rule(number=any_of)
    def turn(self, number: int) -> None:
        """Upgrade or downgrade a lock."""
        claim = self._chosen(number)
        node, lock = self._locks[claim]
        turning = node.locks.downgrade if not claim.is_shared else node.locks.upgrade

        async def step() -> None:
            if self._oracle.turn(claim):
                self._granted(claim, node, await turning(lock))
            else:
                with pytest.raises(LockHeld):
                    await turning(lock)

        self._run(step())

    @precondition(lambda self: self._locks)
    @rule(number=any_of)
    def renew(self, number: int) -> None:
        """Renew a lock, which changes nothing that others see."""
        node, lock = self._locks[self._chosen(number)]
        self._run(node.locks.renew(lock))

    @precondition(lambda self: self._waiting)
    @rule(number=any_of)
    def give_up(self, number: int) -> None:
        """Wait no longer."""
        claim = list(self._waiting)[number % len(self._waiting)]
        _, task = self._waiting.pop(claim)
        self._oracle.end(claim)

        async def step() -> None:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            for node in self._nodes:
                await settled(node)

        self._run(step())

    @rule(number=any_of)
    def sweep(self, number: int) -> None:
        """Tidy up, which changes nothing that anybody sees."""
        self._run(self._nodes[number % 2].locks.sweep_expired_distributed_locks())

    @precondition(lambda self: self._over)
    @rule(number=any_of)
    def use_what_is_over(self, number: int) -> None:
        """Try to go on with a lock that is over."""
        node, lock = self._over[number % len(self._over)]

        async def step() -> None:
            assert not await is_held(node, lock)
            assert not await node.locks.release(lock)
            with pytest.raises(StaleFence):
                await node.locks.renew(lock)

        self._run(step())


def _walk(opened: Open, examples: int, steps: int) -> None:
    machine = type("Walk", (LockWalk,), {"opened": staticmethod(opened)})
    walk(machine, examples, steps)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps a machine under load may do nothing for a while: no one is taken for dead."""
    for module in (queue, request):
        monkeypatch.setattr(module, "WAITER_LEASE", _LONG)


class _InMemory:
    """Two nodes on one database in memory."""

    async def __aenter__(self) -> list[MeshNode]:
        self._scene = scene()
        there = await self._scene.__aenter__()
        self._nodes = [there.node(name) for name in "ab"]
        return [await node.__aenter__() for node in self._nodes]

    async def __aexit__(self, *_: object) -> None:
        for node in self._nodes:
            await node.__aexit__(None, None, None)
        await self._scene.__aexit__(None, None, None)


@pytest.mark.soak
def test_what_agents_are_answered_in_memory_is_what_the_rules_say() -> None:
    _walk(_InMemory, lengths.LOCK_WALKS, 40)


@pytest.mark.soak
@pytest.mark.parametrize("case", [FILE, MESH_REPLICA], ids=str)
def test_what_agents_of_two_nodes_are_answered_is_what_the_rules_say(
    case: Any, tmp_path: Path, shared_server: Server
) -> None:
    walks = 0

    def opened() -> AbstractAsyncContextManager[list[MeshNode]]:
        nonlocal walks
        walks += 1
        server = shared_server if case.needs_server else None
        return nodes(case.settings(tmp_path / str(walks), server, tick="1h"), 2)

    _walk(opened, max(3, lengths.LOCK_WALKS // 4), 25)
