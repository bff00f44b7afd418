"""Rates and limits on open items: counted with the write, so that no race exceeds them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

import pytest

from tests.support.nodes.shared_mesh import assert_whole
from vox_mesh import Mesh, acting_as
from vox_mesh.errors import (
    BadValue,
    LimitReached,
    LockHeld,
    NotGranted,
    OverGrantBudget,
    RateExceeded,
    TooManyOpen,
)
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.node import MeshNode

ANN: Final = SigningKey(b"a" * 32)


async def granted(owner: MeshNode, *lines: str) -> str:
    """Admit the agent `ann`, and grant it this."""
    await owner.grants.admit("ann", ANN.public)
    return (await owner.grants.issue("ann", lines, delegations=1)).grant_id


async def rows(mesh: Mesh, table: str = "grant_usage") -> int:
    """The number of rows of a table, by default of the uses that count."""
    query = f"SELECT count(*) FROM {table} WHERE scope_id = ?1 AND repository_id = ?2"
    return int((await mesh.store.read(query, mesh.store.mesh_id, fresh=True)).value)


async def outcomes(*awaited: Awaitable[object]) -> list[type]:
    """The errors of what is done at once, and what was done."""
    return [type(each) for each in await asyncio.gather(*awaited, return_exceptions=True)]


async def test_two_nodes_that_race_for_the_last_place_of_a_rate_get_it_once(
    owner: MeshNode, other: MeshNode
) -> None:
    grant_id = await granted(owner, "job.schedule kind a rate 5/1d")

    async def schedule(node: MeshNode, number: int) -> Any:
        with acting_as("ann"):
            return await node.jobs.schedule("a", {"n": f"{node.identity.node_id}{number}"})

    tasks = [schedule(node, number) for number in range(6) for node in (owner, other)]
    found = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [each for each in found if isinstance(each, BaseException)]
    assert len(found) - len(refused) == 5
    assert all(isinstance(each, RateExceeded) for each in refused)
    assert isinstance(refused[0], RateExceeded)
    assert grant_id in refused[0].hint
    assert "try again in 23h59m" in refused[0].hint
    assert 86_000 < (refused[0].retry_in_s or 0) <= 86_400
    assert await rows(owner, "jobs") == await rows(owner) == 5
    await assert_whole(owner)
    await owner.grants.revoke(grant_id)
    assert await rows(owner) == 0


async def test_a_delegation_uses_the_grants_that_it_was_delegated_from(
    owner: MeshNode, other: MeshNode
) -> None:
    parent = await granted(owner, "lock.acquire rate 3/1d open 2")
    await owner.grants.admit("bob")
    await owner.grants.delegate(parent, "bob", ["lock.acquire on task:* rate 3/1d open 2"], key=ANN)
    held = await other.locks.acquire("task:1", agent="bob")
    await owner.locks.acquire(["task:2", "task:3"], agent="ann")
    with pytest.raises(TooManyOpen, match="too_many_open") as refused:
        await other.locks.acquire("task:4", agent="bob")
    assert "2 are open" in refused.value.hint
    with pytest.raises(LockHeld):  # what is not granted is not counted
        await other.locks.acquire("task:2", agent="eve")
    held = await other.locks.downgrade(held)
    with pytest.raises(TooManyOpen):
        await other.locks.acquire("task:4", agent="bob")
    await other.locks.release(held)
    with pytest.raises(LockHeld):
        await other.locks.acquire("task:2", agent="bob")
    await other.locks.acquire("task:4", agent="bob")
    with pytest.raises(LimitReached):
        await owner.locks.acquire("task:5", agent="ann", wait=0.1)
    assert await rows(owner) == 3 + 2


async def test_messages_that_are_not_settled_are_open(owner: MeshNode, other: MeshNode) -> None:
    await granted(owner, "message.send to bob open 2", "message.send to role:qa")
    key = (await other.messages.send("bob", 1, sender="ann")).message_uuid
    assert await outcomes(*(node.messages.send("bob", 2, sender="ann") for node in (owner, other))) in (
        [TooManyOpen, type(await other.messages.queries.get(key))],
        [type(await other.messages.queries.get(key)), TooManyOpen],
    )
    await other.messages.send("bob", 1, sender="ann", key=key)  # it is there
    await other.messages.send("role:qa", 1, sender="ann")
    first, *_ = await other.messages.inbox("bob")
    await other.messages.ack(first)
    await owner.messages.send("bob", 3, sender="ann")
    with pytest.raises(NotGranted):
        await owner.messages.send("cid", 3, sender="ann")


async def test_jobs_by_a_grant_and_its_delegations_may_cost_as_much_as_its_budget(
    owner: MeshNode, other: MeshNode
) -> None:
    await owner.grants.admit("ann", ANN.public)
    await owner.grants.admit("bob")
    parent = (await owner.grants.issue("ann", ["job.schedule"], budget=10, delegations=1)).grant_id
    await owner.grants.delegate(parent, "bob", ["job.schedule"], key=ANN, budget=5)

    async def schedule(node: MeshNode, agent: str, number: int, beats: float) -> Any:
        budget = {"max_bu": beats, "thresholds": {"work": 1}}
        with acting_as(agent):
            return await node.jobs.schedule("a", {"n": number}, budget=budget, new=False)

    with acting_as("ann"), pytest.raises(BadValue, match="must have a budget with max_bu"):
        await owner.jobs.schedule("a")
    for _ in range(2):  # the same job is counted once
        await schedule(other, "bob", 0, 4.5)
    with pytest.raises(OverGrantBudget, match="over_grant_budget") as refused:
        await schedule(other, "bob", 1, 0.6)
    assert "has 0.5 of 5 beats left" in refused.value.hint
    with acting_as("ann"), pytest.raises(OverGrantBudget):  # it may run on until 1.25 of its budget
        await owner.jobs.schedule("a", {"n": 2}, budget={"max_bu": 5})
    found = await outcomes(*(schedule(node, "ann", 3 + at, 3) for at, node in enumerate((owner, other))))
    assert found.count(OverGrantBudget) == 1
    await schedule(owner, "ann", 5, 2.5)
    with pytest.raises(OverGrantBudget, match="over_grant_budget"):
        await schedule(other, "bob", 6, 0.001)
    assert await rows(owner, "jobs") == 3
    await assert_whole(owner)
