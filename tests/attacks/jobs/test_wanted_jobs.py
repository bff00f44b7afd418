"""What an agent is given: only jobs whose tags it has, and no more than it wants to hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from vox_mesh.errors import BadValue
from vox_mesh.jobs.work.reports import succeeded
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.node import MeshNode
from vox_mesh.testing.harness import MeshHarness


@pytest.fixture
async def harness() -> AsyncIterator[MeshHarness]:
    async with MeshHarness() as harness:
        yield harness


async def taken_by(node: MeshNode, *tags: str, count: int = 1) -> set[str]:
    """The jobs that an agent with these tags is given."""
    return {each.job.job_id for each in await node.work.take("coder", tags=tags, count=count)}


async def test_jobs_with_tags_do_not_hold_up_others(harness: MeshHarness) -> None:
    node = await harness.node()
    tagged = [Manifest.of(kind="work", payload=n, tags=["gpu"], priority=3) for n in range(40)]
    await node.jobs.schedule_all(tagged)  # more than one look reads
    other = (await node.jobs.schedule("work")).job_id
    assert await taken_by(node, count=9) == {other}


async def test_the_tags_that_count_are_those_of_the_verified_manifest(
    harness: MeshHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await harness.node()
    look = node.jobs.queries.claimable

    async def planted(*asked: Any, tags: Any, **more: Any) -> Any:
        return await look(*asked, **more)

    monkeypatch.setattr(node.jobs.queries, "claimable", planted)
    gpu = (await node.jobs.schedule("work", tags=["gpu"], priority=3)).job_id
    other = (await node.jobs.schedule("work")).job_id
    assert await taken_by(node, count=2) == {other}
    assert await taken_by(node, "gpu") == {gpu}


async def test_an_agent_holds_no_more_jobs_than_its_capacity(harness: MeshHarness) -> None:
    nodes = [await harness.node(name) for name in ("one", "two")]
    await nodes[0].jobs.schedule_all([Manifest.of(kind="work", payload=n) for n in range(8)])
    asked = (node.work.take("coder", count=2, capacity=3, lease="30s") for node in nodes * 2)
    held = [each for taken in await asyncio.gather(*asked) for each in taken]
    held += [
        each for node in nodes for each in await node.work.take("coder", count=2, capacity=3, lease="30s")
    ]
    assert len(held) == 3  # also if requests that have not seen each other are at work at once
    assert len(await nodes[0].work.take("other", count=2, capacity=1)) == 1
    node = next(each for each in nodes if each.identity.node_id == held[0].job.claimer)
    await node.work.report(held[0].job, held[0].claim_token, succeeded())
    assert len(await nodes[1].work.take("coder", count=2, capacity=3)) == 1
    await harness.clock.advance("31s")  # expired leases do not count
    assert len(await nodes[1].work.take("coder", count=5, capacity=3)) == 2
    for capacity in (0, 10_001):
        with pytest.raises(BadValue, match=f"capacity must be between 1 and 10000, got {capacity}"):
            await node.work.take("coder", capacity=capacity)
