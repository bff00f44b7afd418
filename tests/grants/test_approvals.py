"""Approvals: agents ask, people decide, and what is approved is done once, exactly as it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import pytest

from tests.support.nodes.shared_mesh import assert_whole
from vox_mesh import acting_as
from vox_mesh.errors import ApprovalPending, MeshError, NotAuthentic, NotKnown, Refused, Unreachable
from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.grants.approval import Approval, ApprovalState
from vox_mesh.model.grants.grant import Grant
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.rhythm.budgets import Budget
from vox_mesh.node import MeshNode
from vox_mesh.store.script import Op, Script, Statement

ANN: Final = SigningKey(b"a" * 32)
PUSH: Final = Manifest.of(command=["git", "push"], timeout=0)


async def ask(node: MeshNode, agent: str = "ann", manifest: Manifest = PUSH) -> str:
    """Ask for a job, and return the id of the approval."""
    with acting_as(agent), pytest.raises(ApprovalPending) as pending:
        await node.jobs.schedule_all([manifest])
    return pending.value.approval_id


async def admit(owner: MeshNode, *lines: str, agent: str = "ann", delegations: int = 0) -> Grant:
    await owner.grants.admit(agent, ANN.public if agent == "ann" else None)
    return await owner.grants.issue(agent, lines or ["ask job.*"], delegations=delegations)


async def scheduled(node: MeshNode) -> list[LogEntry]:
    """The ops that scheduled jobs."""
    return [each for each in await node.oplog.tail(kind="ScheduleJob") if each.accepted]


async def test_what_is_approved_is_done_exactly_as_it_was_asked(owner: MeshNode, other: MeshNode) -> None:
    grant = await admit(owner)
    approval_id = await ask(other)
    assert await other.jobs.queries.listed(limit=10) == []
    (asked,) = await owner.approvals.listed()
    request = asked.request
    assert (asked.state, request.agent, request.grant_id) == (ApprovalState.PENDING, "ann", grant.grant_id)
    assert [str(act) for act in request.acts()] == ["job.exec program git args push env ''"]
    waiting = asyncio.create_task(other.approvals.wait(approval_id, timeout=60))
    done = await owner.approvals.approve(approval_id, "go on")
    assert (done.state, done.decided_by, done.reason) == (ApprovalState.APPLIED, "owner", "go on")
    assert await waiting == done
    (entry,) = await scheduled(other)
    assert (entry.op_id, entry.agent, entry.grant) == (request.applied_as, "ann", grant.grant_id)
    assert {approval_id, done.decision_op} <= {*parse(entry.causal_deps)}
    (job,) = await owner.jobs.queries.listed(limit=10)
    assert done.jobs == [job.job_id]
    assert await owner.jobs.authorship.is_scheduled(job)
    assert await other.approvals.listed() == []
    await assert_whole(owner)


async def approve_only(node: MeshNode, approval_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Approve, as a process does that is killed before it applies it."""

    async def away(_: str) -> Approval:
        raise Unreachable("killed")

    with monkeypatch.context() as patched:
        patched.setattr(node.approvals, "apply", away)
        assert (await node.approvals.approve(approval_id)).state is ApprovalState.APPROVED


async def plant(node: MeshNode, change: str) -> None:
    """Change all rows of approvals as a hostile writer does."""
    of_mesh = "WHERE scope_id = ? AND repository_id = ?"
    await node.store.write(Script(Statement(f"UPDATE approvals SET {change} {of_mesh}", node.store.mesh_id)))


async def test_there_is_a_limit_of_open_approvals(
    owner: MeshNode, other: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admit(owner)
    monkeypatch.setattr("vox_mesh.oplog.grants.approvals.MAX_OPEN_OF_AGENT", 2)
    first, _ = await ask(other), await ask(other)
    with acting_as("ann"), pytest.raises(Refused, match="too_many_approvals"):
        await other.jobs.schedule_all([PUSH])
    await owner.approvals.deny(first)
    await ask(other)
    assert len(await other.approvals.listed()) == 2
    found = await other.approvals.listed(every=True, limit=2)
    found += await other.approvals.listed(every=True, limit=2, after=found[-1].request.approval_id)
    assert [each.state for each in found] == ["pending", "pending", "denied"]


async def test_another_node_applies_what_was_approved_once_however_many_try(
    owner: MeshNode, other: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admit(owner)
    approval_id = await ask(other)
    await approve_only(owner, approval_id, monkeypatch)
    await other.approvals.apply_due()  # the process that approved it has some time
    assert await scheduled(owner) == []
    monkeypatch.setattr("vox_mesh.oplog.grants.approvals._GRACE_MS", -60_000)
    await asyncio.gather(*(node.approvals.apply_due() for node in (owner, other) for _ in range(3)))
    for node in (owner, other):
        assert (await node.approvals.find(approval_id)).state is ApprovalState.APPLIED
    await plant(owner, "state = 'approved'")  # it was applied all the same
    for node in (other, owner):
        assert (await node.approvals.apply(approval_id)).state is ApprovalState.APPLIED
    assert len(await scheduled(owner)) == 1
    await assert_whole(owner)


async def test_what_is_approved_is_not_done_when_the_grant_was_revoked_since(
    owner: MeshNode, other: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = await admit(owner)
    approval_id = await ask(other)
    await approve_only(owner, approval_id, monkeypatch)
    await owner.grants.revoke(grant.grant_id)
    done = await other.approvals.apply(approval_id)
    assert (done.state, done.refusal) == (ApprovalState.REFUSED, "not_granted")
    await owner.grants.issue("ann", ["ask job.*"])
    assert await owner.approvals.apply(approval_id) == await owner.approvals.wait(approval_id) == done
    assert await scheduled(owner) == []
    await assert_whole(owner)


async def test_what_has_expired_is_neither_approved_nor_applied(
    owner: MeshNode, other: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admit(owner)
    approved = await ask(other)
    await approve_only(owner, approved, monkeypatch)
    await plant(owner, "expires_ms = 1")  # between the last look and the commit
    assert (await other.approvals.apply(approved)).refusal == "approval_not_open"
    monkeypatch.setattr("vox_mesh.oplog.grants.approvals.LIFETIME_MS", 0)
    late = await ask(other)
    assert (await other.approvals.wait(late, timeout=60)).state is ApprovalState.EXPIRED
    with pytest.raises(Refused, match="approval_not_open"):
        await owner.approvals.approve(late)
    await plant(owner, f"expires_ms = {2**53}")  # when it expires is signed
    with suppress(Refused):
        await owner.approvals.approve(late)
    assert (await owner.approvals.apply(late)).state is ApprovalState.EXPIRED
    assert await scheduled(owner) == []


async def test_what_is_denied_is_not_done(owner: MeshNode, other: MeshNode) -> None:
    await admit(owner)
    approval_id, withdrawn = await ask(other), await ask(other)
    denied = await owner.approvals.deny(approval_id, "not now")
    with acting_as("ann"):
        await other.approvals.deny(withdrawn)
    assert (denied.state, denied.reason) == (ApprovalState.DENIED, "not now")
    for each in (approval_id, withdrawn):
        with pytest.raises(Refused, match="approval_not_open"):
            await owner.approvals.approve(each)
        assert (await other.approvals.wait(each)).state is ApprovalState.DENIED
    await plant(owner, "state = 'approved'")
    assert (await other.approvals.apply(approval_id)).state is ApprovalState.DENIED
    assert await scheduled(owner) == []
    await assert_whole(owner)


async def test_only_the_owner_and_those_who_may_do_it_themselves_approve(
    owner: MeshNode, other: MeshNode
) -> None:
    grant = await admit(owner, "ask job.exec", "job.schedule", delegations=1)
    await admit(owner, "ask job.*", agent="bob")
    await admit(owner, "job.schedule", agent="cid")
    await owner.grants.admit("dan")
    await owner.grants.delegate(grant.grant_id, "dan", ["job.schedule"], key=ANN)
    await admit(owner, "operator", agent="eve")
    approval_id = await ask(other)
    agents = ("ann", "bob", "cid", "dan", "zoe", "other", "owner")
    for agent in agents:
        reason = "own_request" if agent == "ann" else "not_an_approver"
        with acting_as(agent), pytest.raises(Refused, match=reason):
            await other.approvals.approve(approval_id)
    refused = await other.oplog.tail(kind="Approve")
    assert {each.agent for each in refused if not each.accepted} == {
        *["ann", "bob", "cid", "dan", "zoe", "other", "owner"]
    }
    with acting_as("eve"):
        done = await other.approvals.approve(approval_id)
    assert (done.state, done.decided_by) == (ApprovalState.APPLIED, "eve")
    note = await ask(other, "bob", Manifest.of(kind="notes"))
    with acting_as("dan"):  # its grant is from ann, who does not ask here
        assert (await other.approvals.approve(note)).state is ApprovalState.APPLIED
    mine = await ask(other, "bob", Manifest.of(kind="notes"))
    with acting_as("ann"):
        await other.approvals.approve(mine)
    assert len(await scheduled(owner)) == 3
    await assert_whole(owner)


async def test_a_coder_asks_for_breaking_locks_aborting_jobs_and_setting_budgets(
    owner: MeshNode, other: MeshNode
) -> None:
    await admit(owner, "coder")
    held = [await owner.locks.acquire(key, agent="eve") for key in ("task:1", "task:2")]
    job = await owner.jobs.schedule("notes")
    asked: dict[str, str] = {}
    with acting_as("ann"):
        works: dict[str, Callable[[], Awaitable[object]]] = {
            "break": lambda: other.locks.break_lock("task:1", "stale"),
            "changed": lambda: other.locks.break_lock("task:2", "stale"),
            "abort": lambda: other.jobs.abort(job, reason="not needed"),
            "budget": lambda: other.rhythm.budgets.set("agent:ann", Budget(max_bu=10)),
        }
        for name, work in works.items():
            with pytest.raises(ApprovalPending) as pending:
                await work()
            asked[name] = pending.value.approval_id
            with pytest.raises(ApprovalPending) as again:  # asking again is no other request
                await work()
            assert again.value.approval_id == asked[name]
    await owner.locks.release(held[1])
    await owner.locks.acquire("task:2", agent="bob")
    done = {name: await owner.approvals.approve(each) for name, each in asked.items()}
    assert {name: each.state.value for name, each in done.items()} == {
        "break": "applied",
        "changed": "refused",
        "abort": "applied",
        "budget": "applied",
    }
    assert done["changed"].refusal == "not_as_asked"
    assert [(each.lock_key, each.holder_agent) for each in await owner.locks.holders()] == [("task:2", "bob")]
    assert (await owner.jobs.find(job)).state == "aborted"
    assert (await owner.rhythm.budgets.show("agent:ann"))[0].budget.max_bu == 10
    await assert_whole(owner)


async def test_what_is_applied_counts_for_the_rate_of_the_grant(owner: MeshNode, other: MeshNode) -> None:
    await admit(owner, "ask job.exec rate 1/1h")
    first, second = await ask(other), await ask(other)
    assert (await owner.approvals.approve(first)).state is ApprovalState.APPLIED
    done = await owner.approvals.approve(second)
    assert (done.state, done.refusal) == (ApprovalState.REFUSED, "rate_exceeded")


# --- hostile writers ----------------------------------------------------------------------------


async def test_a_planted_row_applies_nothing(owner: MeshNode, other: MeshNode) -> None:
    await admit(owner)
    done, waiting = await ask(other), await ask(other)
    approved = await owner.approvals.approve(done)
    copy = """INSERT INTO approvals
        SELECT ?1, ?2, '01J9ZD5V4T7K2M3N4P5Q6R7S8T', agent_id, digest, expires_ms, 'approved', decision_op, 1
        FROM approvals WHERE scope_id = ?1 AND repository_id = ?2 AND state = 'applied'"""
    await owner.store.write(Script(Statement(copy, owner.store.mesh_id)))
    # The approval of another request, and no approval.
    for op_id in (approved.decision_op, waiting, done):
        await plant(owner, f"state = 'approved', decided_ms = 1, decision_op = '{op_id}'")
        await other.approvals.apply_due()
        assert (await other.approvals.find(waiting)).state is ApprovalState.PENDING
    with pytest.raises(NotAuthentic):
        await owner.approvals.approve("01J9ZD5V4T7K2M3N4P5Q6R7S8T")
    with pytest.raises(NotKnown):
        await owner.approvals.find("01J9ZD5V4T7K2M3N4P5Q6R7S8V")
    assert [each.request.approval_id for each in await other.approvals.listed()] == [waiting]
    assert len(await scheduled(owner)) == 1


async def test_an_approval_of_other_arguments_or_of_the_asking_agent_does_not_count(
    owner: MeshNode, other: MeshNode
) -> None:
    await admit(owner)
    approval_id = await ask(other)
    digest = (await other.approvals.find(approval_id)).request.operation.digest
    forged = {
        "other arguments": ("owner", owner, "0" * 64),
        "its own": ("ann", owner, digest),
        "not by the owner": ("other", other, digest),
        "in the owner's name": ("owner", other, digest),
    }
    for agent, node, claimed in forged.values():
        payload = canonical({"approval": approval_id, "digest": claimed, "reason": ""})
        script = Script(op=Op("Approve", payload, signed=True, agent=agent))
        await node.store.write(script)
        await plant(owner, f"state = 'approved', decided_ms = 1, decision_op = '{script.key}'")
        await other.approvals.apply_due()
        assert (await owner.approvals.find(approval_id)).state is ApprovalState.PENDING
    assert await scheduled(owner) == []


async def test_verifying_reports_what_was_done_without_its_approval_or_twice(
    owner: MeshNode, other: MeshNode
) -> None:
    grant = await admit(owner)
    done = await owner.approvals.approve(await ask(other))
    denied = await ask(other)
    await owner.approvals.deny(denied)
    request = (await other.approvals.find(denied)).request
    await assert_whole(owner)
    permit = other.permits.by("ann", grant.grant_id)
    for key in (None, request.applied_as):
        for kind, arguments, _ in (done.request.operation, request.operation):
            with suppress(MeshError):
                await other.store.write(permit.script(op=Op(kind, arguments), key=key))
    reports = {each.node_id: each.problem for each in await owner.oplog.verify()}
    assert "no approval names it" in str(reports["other"])
