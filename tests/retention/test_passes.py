"""Passes: one leader at a time, in small batches, continued by another node, while others write."""

from __future__ import annotations

import asyncio

import pytest

from tests.retention.test_jobs import done, jobs_of, keep_no_jobs
from tests.support.jobs.staging import schedule
from tests.support.messages.messaging import NodeGroup, write
from vox_mesh.errors import BadValue, LockHeld, StaleFence
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.node import MeshNode
from vox_mesh.runtime.retention import retention as of_retention
from vox_mesh.runtime.retention.pruner import Limits
from vox_mesh.runtime.retention.retention import WHOLE
from vox_mesh.store.script import Script, Statement
from vox_mesh.testing import MeshHarness


async def many(node: MeshNode, count: int) -> str:
    """Jobs that have ended, and one that has not; its id."""
    for _ in range(count):
        await done(node)
    last = await schedule(node)
    await keep_no_jobs(node)
    return last


async def test_a_pass_ends_after_its_share_and_the_next_one_continues(
    crowd: NodeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vox_mesh.runtime.retention.pruner.PAGE", 4)
    monkeypatch.setattr("vox_mesh.runtime.retention.sweep.PAGE", 4)
    monkeypatch.setattr(of_retention, "_PASS", Limits(4, 60.0))
    one, two = await crowd.node("one"), await crowd.node("two")
    last = await many(one, 6)
    assert sum(each.pruned for each in await one.retention.prune_some()) == 4
    await two.store.synced()
    progress = await two.retention.progress()
    assert progress["jobs"].position > 0
    assert progress[WHOLE].position > 0
    assert progress["jobs"].completed_ms is None
    assert sum(each.pruned for each in await two.retention.prune_some()) == 2
    await two.store.synced()
    progress = await two.retention.progress()
    assert (progress["jobs"].position, progress["jobs"].pruned) == (0, 6)
    assert (progress[WHOLE].position, progress[WHOLE].pruned) == (0, 6)
    assert await jobs_of(two) == [last]


async def test_only_one_process_prunes_at_a_time(crowd: NodeGroup) -> None:
    one, two = await crowd.node("one"), await crowd.node("two")
    await many(one, 1)
    assert await one.retention._leadership.keep(60.0)
    await two.store.synced()
    assert await two.retention.prune_some() == []
    with pytest.raises(LockHeld, match="node one is pruning"):
        await two.retention.prune_all()
    await one.retention._leadership.resign()
    await two.store.synced()
    assert sum(each.pruned for each in await two.retention.prune_all()) == 1


async def test_a_leader_that_was_replaced_prunes_nothing_more(local: MeshNode) -> None:
    last = await many(local, 1)
    guards = 0
    retention = local.retention
    keep = retention._leadership.keep

    async def keep_and_lose(ttl: float) -> bool:
        nonlocal guards
        guards += 1
        leads = await keep(ttl)
        if guards == 2:  # as if it had slept, and another node had led since
            await write(local, "DELETE FROM distributed_locks WHERE scope_id = ?1 AND repository_id = ?2")
        return leads

    retention._leadership.keep = keep_and_lose  # type: ignore[method-assign]
    with pytest.raises(StaleFence):
        await retention.prune_some()
    assert len(await jobs_of(local)) == 2
    assert last in await jobs_of(local)


async def test_a_pass_that_was_killed_midway_is_continued_when_its_lease_has_expired(
    harness: MeshHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await harness.node("one"), await harness.node("two")
    last = await many(one, 120)  # three batches
    batches = 0
    write_script = one.store.write

    async def write_and_die(script: Script, **more: float | None) -> object:
        nonlocal batches
        if any("DELETE FROM jobs " in statement.sql for statement in script.statements):
            batches += 1
            if batches == 2:
                raise asyncio.CancelledError
        return await write_script(script, **more)

    monkeypatch.setattr(one.store, "write", write_and_die)
    monkeypatch.setattr(one.retention._leadership, "resign", lambda: asyncio.sleep(0))
    with pytest.raises(asyncio.CancelledError):
        await one.retention.prune_some()
    await harness.kill("one")
    assert len(await jobs_of(two)) == 71
    assert await two.retention.prune_some() == []
    await harness.clock.advance("2m")
    await two.retention.prune_some()
    assert await jobs_of(two) == [last]
    rebuild = Rebuild(two.store)
    assert (await rebuild.check(), rebuild.findings) == ([], [])


async def test_others_write_while_jobs_are_pruned(node: MeshNode) -> None:
    last = await many(node, 60)
    pruning = asyncio.create_task(node.retention.prune_all())
    written = []
    while not pruning.done():
        written.append(await schedule(node))
        await asyncio.sleep(0)  # in memory, a write does not wait
    await pruning
    assert set(await jobs_of(node)) == {last, *written}
    assert len(written) > 1
    assert await Rebuild(node.store).check() == []


async def test_a_row_that_is_needed_again_at_the_last_moment_stays(local: MeshNode) -> None:
    needed = await done(local)
    await schedule(local)
    await keep_no_jobs(local)
    page, reads = local.store.read, 0

    async def read(sql: str, *more: object, **named: object) -> object:
        nonlocal reads
        rows = await page(sql, *more, **named)  # type: ignore[arg-type]
        if "may_be_due" in sql and "JOB_REFERRERS" not in sql and "json_group_array" in sql:
            reads += 1
            await schedule(local, after=[(needed, "end")])
        return rows

    local.store.read = read  # type: ignore[method-assign, assignment]
    done_by = {each.subject: each for each in await local.retention.prune_all()}
    assert reads
    assert (done_by["jobs"].pruned, done_by["jobs"].needed) == (0, 1)
    local.store.read = page  # type: ignore[method-assign]
    assert needed in await jobs_of(local)


async def test_nothing_is_pruned_while_a_live_node_does_not_know_it(local: MeshNode) -> None:
    await many(local, 1)
    await local.retention.prune_all()
    await write(
        local, "UPDATE node_versions SET schema_version = 42 WHERE scope_id = ?1 AND repository_id = ?2"
    )
    await local.store.synced()
    local.features._cached_until = None
    with pytest.raises(BadValue, match="does not know retention"):
        await local.retention.prune_all()


async def test_a_turn_with_nothing_due_writes_nothing(harness: MeshHarness) -> None:
    node = await harness.node()
    await harness.clock.advance("1h")
    written = node.store.stats.answered
    await node._retention_maintenance.run_once()
    assert node.store.stats.answered == written


async def test_policies_have_a_bound(local: MeshNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_retention, "_MAX_POLICIES", 1)
    await local.retention.set("jobs", age_ms=5_000)
    await local.retention.set("jobs", age_ms=6_000)
    with pytest.raises(BadValue, match="1 policies"):
        await local.retention.set("logs", age_ms=5_000)


async def test_a_policy_that_no_node_has_written_is_ignored(local: MeshNode) -> None:
    await write(local, "INSERT INTO retention_policies VALUES (?1, ?2, 'jobs', '', -5, NULL, NULL)")
    await local.store.write(
        Script(
            Statement("INSERT INTO retention_policies VALUES (?, ?, 'x', '', 5, 5, 5)", local.store.mesh_id)
        )
    )
    assert all(policy.is_default for policy in (await local.retention.policies()).listed())
