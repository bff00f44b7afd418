"""Every action that a grant can name: refused without one, done by one, and named in the log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.support.nodes.shared_mesh import assert_whole
from tests.support.oplog.tampering import NOTE
from vox_mesh import acting_as
from vox_mesh.errors import BadValue, NotGranted
from vox_mesh.model.rhythm.budgets import Budget
from vox_mesh.node import MeshNode
from vox_mesh.oplog.export import export_log, verify_export
from vox_mesh.oplog.grants.permit import sql_for_agent, sql_without_grants
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Script

BUDGET: Final = Budget.of_document({"max_bu": 5})
CRON: Final = ("0 3 * * *", {"kind": "notes"})
COMMAND: Final = ("0 3 * * *", {"command": ["git", "gc"], "timeout": 0})


class Deed(NamedTuple):
    """What an agent does, by which capability, and the kind of its op."""

    line: str
    op: str
    do: Callable[[MeshNode], Awaitable[Any]]


async def break_one(node: MeshNode) -> None:
    await node.locks.break_lock("task:1", "it hangs")


DEEDS: Final = [
    Deed("lock.break on task:*", "BreakLock", break_one),
    Deed("cron.add", "AddCron", lambda node: node.crons.add("nightly", *CRON)),
    Deed("cron.remove", "RemoveCron", lambda node: node.crons.remove("nightly")),
    Deed("rule.add", "AddRule", lambda node: node.rules.add("notify", "BreakLock", {"kind": "notes"})),
    Deed("rule.remove", "RemoveRule", lambda node: node.rules.remove("notify")),
    Deed("kind.set", "SetKind", lambda node: node.job_kinds.pause("notes")),
    Deed("node.drain", "DrainNode", lambda node: node.job_kinds.drain("owner")),
    Deed("budget.set", "SetBudget", lambda node: node.rhythm.budgets.set("agent:ann", BUDGET)),
    Deed("tempo.set", "DeclareIncident", lambda node: node.rhythm.incidents.declare("fire")),
    Deed("op.append kind test.*", NOTE.name, lambda node: node.oplog.append(NOTE.name, {})),
]


@pytest.mark.parametrize(
    ("noun", "name"),
    [
        ("grants", "refuse_without_grant"),
        ("locks", "take_fast"),
        ("locks", "hand_off"),
        ("messages", "send_one"),
    ],
)
def test_an_agent_that_names_no_grant_pays_for_no_look_at_grants(noun: str, name: str) -> None:
    whole = named(noun)[name]
    assert "FROM grants" in sql_for_agent(whole, "ann", "here", "a grant")
    for agent in ("ann", "here", "person:ann"):
        short = sql_for_agent(whole, agent, "here", None)
        assert "FROM grants" not in short
        assert "FROM admitted_agents" in short
        assert ("FROM mesh_owner" in short) == (agent != "ann"), "an agent gains nothing from the owner"
        assert ("person:" in short) == (agent == "person:ann")


def test_messages_that_name_no_grant_pay_for_one_look_at_the_admitted_agents() -> None:
    whole = named("messages")["send"]
    assert "FROM grants" in whole
    short = sql_without_grants(whole)
    assert "FROM grants" not in short
    once, each = "FROM admitted_agents WHERE scope_id = ?2 AND repository_id = ?3)", "'sender_agent', '*')"
    assert 0 < short.index(once) < short.index(each)


@pytest.fixture
async def admitted(owner: MeshNode, other: MeshNode) -> MeshNode:
    """A node through which the admitted agent ann acts, which may schedule jobs."""
    other.oplog.register(NOTE)
    await owner.grants.admit("ann")
    await owner.grants.issue("ann", ["job.schedule kind other"])
    await owner.locks.acquire("task:1", agent="eve", ttl=3_600)
    return other


async def test_each_action_is_refused_without_a_grant_and_done_by_one(
    owner: MeshNode, admitted: MeshNode, tmp_path: Path
) -> None:
    for line, kind, do in DEEDS:
        with acting_as("ann"), pytest.raises(NotGranted):
            await do(admitted)
        lines = [line, "job.schedule kind notes"] if line.endswith(".add") else [line]
        grant = await owner.grants.issue("ann", lines)
        with acting_as("ann"):
            await do(admitted)
        (entry,) = await admitted.oplog.tail(1, kind=kind)
        assert (entry.agent, entry.grant, entry.accepted) == ("ann", grant.grant_id, 1), line
        await owner.grants.revoke(grant.grant_id)
    await assert_whole(owner)
    exported = tmp_path / "log.jsonl"
    await export_log(owner.oplog, *owner.store.mesh_id, exported)
    assert [each for each in verify_export(exported).chains if each.problem] == []


async def test_a_cron_needs_a_grant_for_the_jobs_that_it_will_schedule(
    owner: MeshNode, admitted: MeshNode
) -> None:
    await owner.grants.issue("ann", ["cron.add", "job.schedule"])
    with acting_as("ann"):
        with pytest.raises(NotGranted):
            await admitted.crons.add("clean", *COMMAND)
        await admitted.crons.add("nightly", *CRON)


async def test_an_agent_ends_its_own_jobs_without_a_grant_and_others_by_one(
    owner: MeshNode, admitted: MeshNode, tmp_path: Path
) -> None:
    with acting_as("ann"):
        own = await admitted.jobs.schedule("other")
        await admitted.jobs.abort(own)
    job, another = [await owner.jobs.schedule(kind) for kind in ("build", "notes")]
    with acting_as("ann"), pytest.raises(NotGranted):
        await admitted.jobs.abort(job)
    grant = await owner.grants.issue("ann", ["job.abort kind build"])
    with acting_as("ann"):
        with pytest.raises(NotGranted):
            await admitted.jobs.abort(job, another)
        await admitted.jobs.abort(job)
    entries = await admitted.oplog.tail(10, kind="AbortJob")
    assert [each.grant for each in entries] == [None, grant.grant_id]
    await assert_whole(owner)
    exported = tmp_path / "log.jsonl"
    await export_log(owner.oplog, *owner.store.mesh_id, exported)
    assert [each for each in verify_export(exported).chains if each.problem] == []


async def test_a_lock_is_not_renewed_nor_converted_without_a_grant_but_released(
    owner: MeshNode, admitted: MeshNode
) -> None:
    grant = await owner.grants.issue("ann", ["lock.acquire on file:src/**"])
    lock = await admitted.locks.acquire("file:src/a", agent="ann", ttl=3_600)
    await admitted.locks.renew(lock)
    await admitted.locks.downgrade(lock)
    await owner.grants.revoke(grant.grant_id)
    with pytest.raises(NotGranted):
        await admitted.locks.renew(lock)
    with pytest.raises(NotGranted):
        await admitted.locks.upgrade(lock)
    assert await admitted.locks.release(lock)
    held = await admitted.locks.acquire_own("sweep", 60.0)
    await owner.grants.set_strict(strict=True)
    await owner.locks.renew(held)  # the mesh itself needs none


async def test_an_agent_can_t_grant_through_the_owner_s_node(owner: MeshNode, admitted: MeshNode) -> None:
    with acting_as("ann"), pytest.raises(NotGranted):
        await owner.grants.issue("ann", ["owner"])
    with acting_as("ann"), pytest.raises(NotGranted):
        await owner.principals.tokens.issue("ann")
    with acting_as("ann"), pytest.raises(NotGranted):
        await owner.roles.route_kind("notes", None)
    await owner.grants.issue("ann", ["roles.route"])
    with acting_as("ann"):
        await owner.roles.route_kind("notes", "owner")
    await assert_whole(owner)


async def test_no_one_acts_in_the_name_of_the_mesh(admitted: MeshNode) -> None:
    with pytest.raises(BadValue, match="mesh"), acting_as("mesh"):
        pass
    with pytest.raises(BadValue, match="mesh"):
        await admitted.permits.write_op(Op(NOTE.name, "{}"), agent="mesh")


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("BreakLock", '{"key":"task:1"}'),
        ("SetKind", "{}"),
        ("AbortJob", '{"jobs":[{"job_id":"x"}]}'),
        ("ResolveConflict", "{}"),
        ("AddCron", '{"crons":{"a":["* * * * *","UTC","{\\"kind\\":\\"a\\"}","{}"]}}'),
        (NOTE.name, "{}"),
    ],
)
async def test_verifying_also_an_export_reports_each_kind_of_op_without_a_grant(
    owner: MeshNode, admitted: MeshNode, tmp_path: Path, kind: str, payload: str
) -> None:
    await admitted.store.write(Script(op=Op(kind, payload, agent="ann")))
    await owner.store.synced()
    exported = tmp_path / "log.jsonl"
    await export_log(owner.oplog, *owner.store.mesh_id, exported)
    for reports in (await owner.oplog.verify("other"), verify_export(exported, "other").chains):
        assert [each.problem for each in reports] == ["ann had no grant for it"]
