"""Kinds of job: what is decided of them holds at every commit, no matter who claims."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import orjson
import pytest

from tests.support.jobs.jobs_in_hand import claim, claim_seen, claims, complete, ids, most_in_hand, moved, ops
from tests.support.messages.messaging import NodeGroup, write
from vox_mesh.errors import BadValue, NotKnown, Refused
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.kinds import JobKinds
from vox_mesh.jobs.queries import KindRules
from vox_mesh.model.jobs.records import CLAIM, JobState
from vox_mesh.node import MeshNode

_PATIENCE_S = 30.0
_HOUR_MS = 3_600_000


def kinds_of(node: MeshNode) -> JobKinds:
    """What a node decides with."""
    return JobKinds(node.store, node.jobs.queries, node.permits)


async def jobs_of(jobs: Jobs, kind: str, count: int) -> list[str]:
    """The ids of this many new jobs."""
    return ids([await jobs.schedule(kind, number) for number in range(count)])


# --- deciding -------------------------------------------------------------------------------------


async def test_what_is_decided_of_a_kind_stays_until_something_else_is(node: MeshNode) -> None:
    kinds = kinds_of(node)
    await kinds.pause("a.b")
    await kinds.limit("a.b", max_running=2, rate=5, per_ms=1_000)
    await kinds.limit("a.b", lease_ms=2_000)
    await kinds.audit("a.b")
    await kinds.limit("c", max_running=1)
    await node.store.synced()
    assert await kinds.listed() == [
        KindRules("a.b", True, 2, 5, 1_000, 2_000, True),
        KindRules("c", False, 1),
    ]
    await kinds.limit("a.b", rate=None)
    await kinds.limit("c", max_running=None)
    await kinds.resume("a.b")
    await kinds.audit("a.b", False)
    await node.store.synced()
    assert await kinds.listed() == [KindRules("a.b", False, 2, None, None, 2_000)]


async def test_what_is_decided_of_kinds_and_nodes_is_in_the_log(node: MeshNode) -> None:
    kinds = kinds_of(node)
    await kinds.pause("a.b")
    await kinds.limit("a.b", max_running=2, rate=None)
    await kinds.audit("a.b", False)
    await kinds.drain(node.identity.node_id)
    await kinds.undrain(node.identity.node_id)
    entries = await node.oplog.tail(5, node_id=node.identity.chain)
    assert [(each.kind, orjson.loads(each.payload)) for each in entries] == [
        ("SetKind", {"kind": "a.b", "is_paused": True}),
        ("SetKind", {"kind": "a.b", "max_running": 2, "rate": None, "rate_ms": None}),
        ("SetKind", {"kind": "a.b", "is_audited": False}),
        ("DrainNode", {"node": node.identity.node_id}),
        ("UndrainNode", {"node": node.identity.node_id}),
    ]


@pytest.mark.parametrize("kind", ["", "*", "a.*", "A", "a b", "a..b", ".a", "a.", "a\n", "x" * 129])
async def test_a_kind_is_named_exactly(local: MeshNode, kind: str) -> None:
    with pytest.raises(BadValue, match="a kind must be"):
        await kinds_of(local).pause(kind)
    assert await kinds_of(local).listed() == []


@pytest.mark.parametrize(
    ("limits", "fault"),
    [
        ({}, "no limit given"),
        ({"max_running": 0}, "max_running must be an integer from .*, got 0"),
        ({"max_running": True}, "max_running must be an integer from .*, got true"),
        ({"rate": 5}, "rate and per_ms must be given together"),
        ({"per_ms": 5}, "rate and per_ms must be given together"),
        ({"rate": None, "per_ms": 5}, "rate and per_ms must be given together"),
        ({"rate": 0, "per_ms": 5}, "rate must be an integer from .*, got 0"),
        ({"rate": 5, "per_ms": -1}, "per_ms must be an integer from .*, got -1"),
        ({"lease_ms": 999}, "lease_ms must be an integer from .*, got 999"),
    ],
)
async def test_a_limit_that_means_nothing_is_refused(
    local: MeshNode, limits: dict[str, Any], fault: str
) -> None:
    with pytest.raises(BadValue, match=fault):
        await kinds_of(local).limit("a.b", **limits)
    assert await kinds_of(local).listed() == []


# --- claims ---------------------------------------------------------------------------------------


async def test_a_paused_kind_is_held_back_and_others_are_not(node: MeshNode) -> None:
    paused, other = [(await jobs_of(node.jobs, kind, 1))[0] for kind in ("paused", "other")]
    await kinds_of(node).pause("paused")
    with pytest.raises(Refused, match="held_back"):
        await claim(node, paused)
    assert moved(await claim(node, paused, other)) == [other]
    await kinds_of(node).resume("paused")
    assert moved(await claim(node, paused)) == [paused]


async def test_a_drained_node_is_refused_and_others_are_not(crowd: NodeGroup) -> None:
    one, two = await crowd.node("one"), await crowd.node("two")
    first, second = await jobs_of(one.jobs, "work", 2)
    await claim(two, first)
    await kinds_of(one).drain("two")
    with pytest.raises(Refused, match="held_back"):
        await claim(two, second)
    await complete(two, first)  # what it has in hand goes on
    assert moved(await claim(one, second)) == [second]
    await kinds_of(two).undrain("two")
    (third,) = await jobs_of(one.jobs, "third", 1)
    assert moved(await claim(two, third)) == [third]


async def test_only_a_node_that_is_known_is_drained(local: MeshNode) -> None:
    with pytest.raises(NotKnown, match="there is no node elsewhere"):
        await kinds_of(local).drain("elsewhere")
    assert not (await local.jobs.queries.situation()).drains


async def test_of_a_claim_for_many_as_many_are_had_as_there_are_places(local: MeshNode) -> None:
    jobs = await jobs_of(local.jobs, "work", 5)
    await kinds_of(local).limit("work", max_running=2)
    assert moved(await claim(local, *jobs)) == jobs[:2]
    with pytest.raises(Refused, match="held_back"):
        await claim(local, *jobs[2:])
    await complete(local, jobs[0])
    assert moved(await claim(local, *jobs[2:])) == [jobs[2]]


async def _work(node: MeshNode, kind: str, count: int) -> None:
    """Claim what can be claimed and complete it, until all of the kind have ended."""
    while True:
        seen = node.store.change_count
        if (await node.jobs.queries.counts())[kind].get(JobState.SUCCEEDED) == count:
            return
        with suppress(Refused):
            for job_id in moved(await claim_seen(node, await node.jobs.queries.ready([kind], 4))):
                await complete(node, job_id)
            continue
        await node.store.changed(seen)


async def test_no_more_than_the_limit_are_ever_in_hand(crowd: NodeGroup) -> None:
    nodes = [await crowd.node(name) for name in ("one", "two", "three")]
    await jobs_of(nodes[0].jobs, "work", 12)
    await kinds_of(nodes[0]).limit("work", max_running=3)
    for node in nodes:
        await node.store.synced()
    async with asyncio.timeout(_PATIENCE_S):
        await asyncio.gather(*(_work(node, "work", 12) for node in nodes))
    assert 1 < await most_in_hand(nodes[1]) <= 3
    assert sum(len(each.job_ids) for each in await claims(nodes[1])) == 12


async def test_no_more_than_the_rate_are_claimed_by_all_nodes_together(crowd: NodeGroup) -> None:
    nodes = [await crowd.node(name) for name in ("one", "two", "three")]
    jobs = await jobs_of(nodes[0].jobs, "work", 9)
    await kinds_of(nodes[0]).limit("work", rate=4, per_ms=_HOUR_MS)

    async def claim_each(node: MeshNode, chosen: list[str]) -> None:
        for job_id in chosen:
            with suppress(Refused):
                await claim(node, job_id)

    await asyncio.gather(*(claim_each(node, jobs[start::3]) for start, node in enumerate(nodes)))
    assert sum(len(each.job_ids) for each in await claims(nodes[0])) == 4
    assert {entry.reason for entry in await ops(nodes[0], CLAIM) if not entry.accepted} == {"held_back"}
    await write(nodes[0], "UPDATE job_claims SET claimed_ms = 1 WHERE scope_id = ?1 AND repository_id = ?2")
    await asyncio.gather(*(claim_each(node, jobs[start::3]) for start, node in enumerate(nodes)))
    assert sum(len(each.job_ids) for each in await claims(nodes[0])) == 8


async def test_in_no_window_of_time_is_a_rate_exceeded(local: MeshNode) -> None:
    rate, per_ms, count = 3, 60, 12
    await jobs_of(local.jobs, "work", count)
    await kinds_of(local).limit("work", rate=rate, per_ms=per_ms)
    async with asyncio.timeout(_PATIENCE_S):
        while ready := await local.jobs.queries.ready(["work"], 5):
            with suppress(Refused):  # there is no event for time that passes: it is tried again
                await claim_seen(local, ready)
    times = [each.at_ms for each in await claims(local) for _ in each.job_ids]
    assert len(times) == count
    assert all(later - earlier >= per_ms for earlier, later in zip(times, times[rate:], strict=False)), times


async def test_renewals_are_no_claims_and_what_is_past_is_forgotten(node: MeshNode) -> None:
    first, second, third = await jobs_of(node.jobs, "work", 3)
    await kinds_of(node).limit("work", rate=2, per_ms=_HOUR_MS)
    await claim(node, first)
    held = [{"job_id": first, "claim_token": 1}]
    for _ in range(3):
        await node.store.write(node.jobs.transitions.renew(held, 60_000))
    await claim(node, second)
    with pytest.raises(Refused, match="held_back"):
        await claim(node, third)
    await write(node, "UPDATE job_claims SET claimed_ms = 1 WHERE scope_id = ?1 AND repository_id = ?2")
    await claim(node, third)
    sql = "SELECT job_id FROM job_claims WHERE scope_id = ? AND repository_id = ?"
    rows = await node.store.read(sql, node.store.mesh_id, fresh=True)
    assert [row[0] for row in rows] == [third]


async def test_claims_of_kinds_without_a_rate_leave_nothing_behind(local: MeshNode) -> None:
    await kinds_of(local).limit("work", max_running=5)
    await claim(local, *await jobs_of(local.jobs, "work", 3))
    assert (await local.store.read("SELECT count(*) FROM job_claims", fresh=True)).value == 0
