"""Rules: a job for each op of a kind, once, whichever node sees it first."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import orjson
import pytest

from tests.jobs.test_maintenance import keep, keeper_of
from tests.support.jobs.firings import assert_scheduled_once, fire_around
from tests.support.jobs.jobs_in_hand import ops
from tests.support.messages.messaging import NodeGroup, write
from tests.support.oplog.authoring import RestartableNodes, assert_sound
from vox_mesh import Mesh
from vox_mesh.errors import BadManifest, BadValue, NotKnown
from vox_mesh.jobs.job_trace import trace_job
from vox_mesh.jobs.scheduling import rules as rules_module
from vox_mesh.jobs.scheduling.rule_ops import adding
from vox_mesh.jobs.scheduling.rules import FIRED, MAX_PER_MINUTE, Rule, Rules
from vox_mesh.model.jobs.records import SCHEDULE, Job
from vox_mesh.node import MeshNode
from vox_mesh.oplog.op_kinds import WRITTEN_BY_JOBS, OpKind, OpKinds
from vox_mesh.store import Script

_PUSHED: Final = OpKind("com.example.pushed")
_BUILD: Final = {"kind": "build", "payload": {"fast": True}}
_PATIENCE_S: Final = 30.0


def rules_of(node: Mesh) -> Rules:
    """The rules as another process has them."""
    kinds = OpKinds()
    kinds.register(_PUSHED)
    return Rules(node.store, node.jobs, node.clock, kinds)


async def pushed(node: MeshNode, **payload: Any) -> str:
    """Log an op, and return its id."""
    if _PUSHED.name not in node._op_kinds:
        node.oplog.register(_PUSHED)
    outcome = await node.oplog.append(_PUSHED.name, payload)
    await node.store.synced()
    return outcome.key


async def scheduled(node: MeshNode) -> list[Job]:
    """The jobs, oldest first."""
    await node.store.synced()
    return [*reversed(await node.jobs.queries.listed())]


async def the_rule(node: MeshNode) -> Rule:
    """The only rule there is."""
    await node.store.synced()
    (rule,) = await rules_of(node).listed()
    return rule


async def test_an_op_has_one_job_that_names_it(any_node: MeshNode) -> None:
    await pushed(any_node, branch="main")  # before there is the rule
    rules = rules_of(any_node)
    await rules.add("build", _PUSHED.name, {**_BUILD, "priority": 3}, {"branch": "main", "forced": True})
    for branch, forced in (("main", 1), ("other", True), ("main", None)):
        await pushed(any_node, branch=branch, forced=forced)
    op_id = await pushed(any_node, branch="main", forced=True)
    firings = await asyncio.gather(*(rules_of(any_node).fire() for _ in range(3)))
    assert sorted(map(len, firings)) == [0, 0, 1]
    assert await rules.fire() == []
    (job,) = await scheduled(any_node)
    op = {"id": op_id, "kind": _PUSHED.name, "node": any_node.identity.chain}
    assert job.core == {
        "kind": "build",
        "nonce": f"build@{op_id}",
        "payload": {"fast": True, "op": {**op, "payload": {"branch": "main", "forced": True}}},
    }
    assert job.priority == 3
    (entry,) = [each for each in await ops(any_node, SCHEDULE) if each.accepted]
    assert orjson.loads(entry.causal_deps) == [op_id]
    (traced,) = (await trace_job(any_node.store, job.job_id)).jobs
    assert [each.op_id for each in traced.ops] == [op_id, entry.op_id]
    rule = await the_rule(any_node)
    assert (rule.last_op, rule.last_job) == (op_id, job.job_id)
    await assert_sound(any_node)


async def test_each_op_fires_once_with_three_nodes_of_which_one_leaves(crowd: NodeGroup) -> None:
    nodes = [await crowd.node(name) for name in ("one", "two", "three")]
    await rules_of(nodes[0]).add("build", _PUSHED.name, _BUILD)
    op_ids: list[str] = []
    for number in range(3):
        op_ids += [await pushed(node, number=number) for node in nodes]
        await asyncio.gather(*(node.store.synced() for node in nodes))
        await asyncio.gather(*(keep(node) for node in nodes))
        await keep(nodes[0])
        if number == 0:
            await nodes.pop().close()
    jobs = await scheduled(nodes[0])
    assert [job.core["nonce"] for job in jobs] == [f"build@{op_id}" for op_id in op_ids]
    await assert_scheduled_once(nodes[0], len(op_ids), FIRED)


async def test_a_firing_whose_node_was_killed_under_way_counts_for_nothing_when_it_comes_late(
    there: RestartableNodes,
) -> None:
    async with there.node("first") as first, there.node("second") as second:
        await first.run_once()
        await second.run_once()
        await rules_of(first).add("build", _PUSHED.name, _BUILD)
        await pushed(first)
        job_id = await fire_around(there, rules_of(first).fire(), rules_of(second).fire())
        assert [entry.node_id for entry in await ops(second, SCHEDULE)] == ["second"]
        assert [job.job_id for job in await scheduled(second)] == [job_id]
        there.gate.release()


async def test_a_rule_has_a_rate_and_further_ops_wait(
    local: MeshNode, caplog: pytest.LogCaptureFixture
) -> None:
    rules = rules_of(local)
    await rules.add("build", _PUSHED.name, _BUILD)
    await rules.add("other", _PUSHED.name, {"kind": "other"}, {"number": MAX_PER_MINUTE})
    op_ids = [await pushed(local, number=number) for number in range(MAX_PER_MINUTE + 1)]
    with caplog.at_level(logging.WARNING):
        assert len(await rules.fire()) == MAX_PER_MINUTE + 1  # the other rule is not delayed
        assert await rules.fire() == []
    assert caplog.messages[0] == "rule delayed, it has scheduled 60 jobs in a minute: rule=build"
    later = "UPDATE job_rules SET minute_ms = minute_ms - 60000 WHERE scope_id = ?1 AND repository_id = ?2"
    await write(local, later)
    (job_id,) = await rules.fire()
    assert (await local.jobs.find(job_id)).core["nonce"] == f"build@{op_ids[-1]}"


async def test_it_fires_as_soon_as_an_op_is_logged(local: MeshNode) -> None:
    await rules_of(local).add("build", _PUSHED.name, {"kind": "build"})
    task = asyncio.create_task(keeper_of(local).run())
    op_id = await pushed(local)
    async with asyncio.timeout(_PATIENCE_S):
        async for change in local.store.watch("SELECT manifest FROM jobs"):
            if change.rows:
                break
    assert f"build@{op_id}" in change.rows.value
    task.cancel()


async def test_a_rule_that_does_not_fire_moves_on_with_the_log(
    there: RestartableNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules_module, "_WINDOW", 3)
    async with there.node() as node:
        await node.run_once()
        rules = rules_of(node)
        added = await rules.add("build", _PUSHED.name, _BUILD, {"branch": "main"})
        for _ in range(7):
            await pushed(node, branch="other")
        assert await rules.fire() == []
        assert (await the_rule(node)).position >= added.position + 7
        written = len(there.gate.batches)
        await rules.fire()
        await keep(node)
        assert len(there.gate.batches) == written
        op_id = await pushed(node, branch="main")
        (job_id,) = await rules_of(node).fire()
        assert (await node.jobs.find(job_id)).core["nonce"] == f"build@{op_id}"


async def test_a_payload_that_does_not_fit_is_left_out_and_a_command_has_none(local: MeshNode) -> None:
    rules = rules_of(local)
    await rules.add("build", _PUSHED.name, _BUILD)
    await rules.add("make", _PUSHED.name, {"command": ["make"], "timeout": 5})
    op_id = await pushed(local, text="x" * 2**18)
    found = [await local.jobs.find(job_id) for job_id in await rules.fire()]
    made, built = sorted(found, key=lambda job: job.kind, reverse=True)
    assert built.core["payload"]["op"]["payload"] is None
    assert made.core == {"command": ["make"], "args": [], "timeout": 5, "nonce": f"make@{op_id}"}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        *((kind, f"can't fire on {kind}: its own jobs lead to such ops") for kind in sorted(WRITTEN_BY_JOBS)),
        ("com.example.unknown", "op kind 'com.example.unknown' not found"),
    ],
)
async def test_ops_that_jobs_write_and_unknown_ones_have_no_rules(
    local: MeshNode, kind: str, reason: str
) -> None:
    with pytest.raises(BadValue, match=reason):
        await rules_of(local).add("loop", kind, _BUILD)
    assert await rules_of(local).listed() == []


async def test_a_kind_that_only_the_log_has_is_known(local: MeshNode) -> None:
    await pushed(local)
    rules = Rules(local.store, local.jobs, local.clock, OpKinds())
    assert (await rules.add("build", _PUSHED.name, _BUILD)).op_kind == _PUSHED.name


@pytest.mark.parametrize(
    "wrong",
    [{"payload": {"op": 1}}, {"payload": [1]}, {"nonce": "x"}, {"after": ["a" * 64]}],
)
async def test_a_manifest_that_can_t_make_many_jobs_is_refused(
    local: MeshNode, wrong: dict[str, Any]
) -> None:
    with pytest.raises(BadManifest):
        await rules_of(local).add("build", _PUSHED.name, {"kind": "build", **wrong})


async def test_a_rule_is_added_once_listed_and_removed(
    local: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules_module, "MAX_RULES", 2)
    rules = rules_of(local)
    added = await rules.add("build", _PUSHED.name, _BUILD)
    await pushed(local)
    assert await rules.add("build", _PUSHED.name, _BUILD) == added
    await local.store.write(Script(op=adding("build", added.definition)))  # another node did so, too
    with pytest.raises(BadValue, match="rule build exists already with another definition"):
        await rules.add("build", _PUSHED.name, {"kind": "other"})
    with pytest.raises(BadValue, match="a rule must compare at most 8 fields, got 9"):
        await rules.add("wide", _PUSHED.name, _BUILD, {str(number): 1 for number in range(9)})
    await rules.add("second", "BreakLock", _BUILD)
    with pytest.raises(BadValue, match="a mesh has at most 2 rules"):
        await rules.add("third", "BreakLock", _BUILD)
    assert len(await rules.fire()) == 1  # for the op between the two times that it was added
    await rules.remove("build")
    await pushed(local)
    assert await rules.fire() == []
    with pytest.raises(NotKnown, match="there is no rule build"):
        await rules.remove("build")
    await rules.add("build", _PUSHED.name, _BUILD)
    await keep(local)
    assert len(await scheduled(local)) == 1  # not for the op while it was not there
