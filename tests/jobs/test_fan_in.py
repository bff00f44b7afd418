"""Fan-in: a job with many predecessors starts after the last of them, and the end of each costs little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson
import pytest

from tests.support.jobs.job_desks import ControlledHandler, ended
from tests.support.jobs.jobs_in_hand import claim, complete, ops
from vox_mesh import JobContext, OpKind
from vox_mesh.errors import BadManifest, BadValue
from vox_mesh.jobs import authorship, predecessor_results
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.manifest_fields import MAX_AFTER, MAX_AFTER_OPS
from vox_mesh.model.jobs.records import CLAIM, Job
from vox_mesh.model.jobs.scheduling.many_predecessors import MANY
from vox_mesh.node import MeshNode
from vox_mesh.store.script import new_key

_LEAVES: Final = MANY + 4


async def _leaves(node: MeshNode, count: int = _LEAVES, kind: str = "leaf") -> list[str]:
    manifests = [Manifest.of(kind=kind, payload=number) for number in range(count)]
    return [each.job_id for each in await node.jobs.schedule_all(manifests)]


async def _complete(node: MeshNode, job_ids: Sequence[str]) -> None:
    """Claim, start and complete jobs by hand."""
    await claim(node, *job_ids)
    await complete(node, *job_ids)


async def _row(node: MeshNode, job_id: str) -> Job:
    return await node.jobs.queries.find(job_id, fresh=True)


async def _agrees_with_log(node: MeshNode) -> bool:
    rebuild = Rebuild(node.store)
    return await rebuild.check() == [] and rebuild.findings == []


async def test_the_row_of_a_job_with_many_predecessors_changes_only_when_the_last_has_ended(
    node: MeshNode,
) -> None:
    leaves = await _leaves(node)
    last = await node.jobs.schedule("last", after=leaves)
    scheduled = await _row(node, last.job_id)
    assert scheduled.waits == _LEAVES
    for part in (leaves[:1], leaves[1:100], leaves[100:-1]):
        await _complete(node, part)
        assert await _row(node, last.job_id) == scheduled
    await _complete(node, leaves[-1:])
    released = await _row(node, last.job_id)
    assert (released.waits, released.state) == (0, "pending")
    assert released.last_op != scheduled.last_op
    assert await _agrees_with_log(node)


async def test_few_predecessors_are_counted_one_by_one(local: MeshNode) -> None:
    leaves = await _leaves(local, MANY)
    last = await local.jobs.schedule("last", after=leaves)
    await _complete(local, leaves[:10])
    assert (await _row(local, last.job_id)).waits == MANY - 10
    assert await _agrees_with_log(local)


@pytest.mark.parametrize("op_comes_last", [False, True])
async def test_ops_count_among_many_predecessors_in_any_order(local: MeshNode, op_comes_last: bool) -> None:
    leaves, op = await _leaves(local), new_key()
    last = await local.jobs.schedule("last", after=[*leaves, {"op": op}])

    local.oplog.register(OpKind("com.example.pushed"))

    async def append() -> None:
        await local.oplog.append("com.example.pushed", {}, key=op)

    if not op_comes_last:
        await append()
    await _complete(local, leaves)
    if op_comes_last:
        assert (await _row(local, last.job_id)).waits == 1
        await append()
    assert (await _row(local, last.job_id)).waits == 0
    assert await _agrees_with_log(local)


async def test_one_failed_predecessor_of_many_fails_the_job_and_any_end_does_not(local: MeshNode) -> None:
    leaves = await _leaves(local)
    last = await local.jobs.schedule("last", after=leaves)
    any_end = await local.jobs.schedule("last", after=[{"job": each, "when": "end"} for each in leaves])
    await local.jobs.abort(leaves[7])
    assert (await _row(local, last.job_id)).state == "failed"
    assert (await _row(local, any_end.job_id)).waits == _LEAVES
    await _complete(local, [*leaves[:7], *leaves[8:]])
    assert (await _row(local, any_end.job_id)).waits == 0
    assert await _agrees_with_log(local)


async def test_predecessors_that_are_scheduled_later_count_among_many(local: MeshNode) -> None:
    leaves = await _leaves(local)
    late = Manifest.of(kind="leaf", payload="late")
    last = await local.jobs.schedule("last", after=[*leaves, late.content_id], defer=True)
    await _complete(local, leaves)
    assert (await _row(local, last.job_id)).waits == _LEAVES + 1
    await local.jobs.schedule_all([late], new=False)
    await _complete(local, [late.content_id])
    assert (await _row(local, last.job_id)).waits == 0
    assert await _agrees_with_log(local)


async def test_a_worker_runs_all_and_reads_their_results_one_by_one_or_together(
    local: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predecessor_results, "MAX_BYTES", 1_000)
    together: list[Any] = []
    one_by_one: list[int] = []

    @local.worker.handles("leaf")
    async def leaf(context: JobContext) -> int:
        return int(context.payload)

    @local.worker.handles("last")
    async def last(context: JobContext) -> None:
        one_by_one.extend([result async for _, result in context.each_result()])
        together.append(await context.results())

    scheduled = await local.jobs.schedule("last", after=await _leaves(local))
    async with local.worker.running(concurrency=64):
        await ended(local, scheduled.job_id)
    assert sorted(one_by_one) == list(range(_LEAVES))
    assert len(together[0]) == _LEAVES
    monkeypatch.setattr(predecessor_results, "MAX_BYTES", 100)
    job = await local.jobs.find(scheduled)
    with pytest.raises(BadValue, match="must take at most 100 bytes together"):
        await local.jobs.predecessor_results.read(job)


async def test_a_claim_names_a_bounded_number_of_the_ops_that_led_to_it(
    local: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorship, "_MAX_CAUSES", 4)
    ControlledHandler(local, "last").may_end.set()
    leaves = await _leaves(local, 8)
    for each in leaves:
        await _complete(local, [each])
    last = await local.jobs.schedule("last", after=leaves)
    async with local.worker.running():
        await ended(local, last.job_id)
    claims = [each for each in await ops(local, CLAIM) if last.job_id in each.payload]
    assert [len(orjson.loads(each.causal_deps)) for each in claims] == [4]


async def test_details_of_a_job_list_some_of_many_predecessors(local: MeshNode) -> None:
    leaves = await _leaves(local)
    last = await local.jobs.schedule("last", after=leaves)
    assert len(await local.jobs.queries.predecessors([last.job_id])) == _LEAVES
    assert len(await local.jobs.queries.predecessors([last.job_id], 100)) == 100


def test_the_numbers_of_predecessors_and_of_ops_among_them_are_limited() -> None:
    ids = [f"{number:064x}" for number in range(MAX_AFTER + 1)]
    assert len(Manifest.of(kind="last", after=ids[:MAX_AFTER]).after or ()) == MAX_AFTER
    with pytest.raises(BadManifest, match="at most 10000 fit"):
        Manifest.of(kind="last", after=ids)
    ops = [{"op": new_key()} for _ in range(MAX_AFTER_OPS + 1)]
    with pytest.raises(BadManifest, match="has 257 ops; at most 256 fit"):
        Manifest.of(kind="last", after=ops)
