"""Grants: issued by the owner, delegated by agents, revoked at once, and all of it in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from tests.support.nodes.shared_mesh import assert_whole
from vox_mesh import Mesh, acting_as
from vox_mesh.errors import ApprovalNeeded, ApprovalPending, BadValue, NotGranted, NotKnown, Refused
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.grants.capability import Act
from vox_mesh.model.grants.grant import Grant
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.oplog.verification import DELEGATE
from vox_mesh.node import MeshNode
from vox_mesh.oplog.grants.permit import Permit
from vox_mesh.store.script import Op, Script, Statement, guard, new_key

ANN: Final = SigningKey(b"a" * 32)
BOB: Final = SigningKey(b"b" * 32)


async def test_a_grant_is_delegated_narrower_and_revoked_with_its_delegations(
    owner: MeshNode, other: MeshNode
) -> None:
    for name, key in (("ann", ANN), ("bob", BOB), ("cid", None)):
        await owner.grants.admit(name, None if key is None else key.public)
    lines = ["lock.acquire on file:src/**", "message.send"]
    first = await owner.grants.issue("ann", lines, lasts="8h", delegations=2)
    web = ["lock.acquire on file:src/web/**"]
    second = await other.grants.delegate(first.grant_id, "bob", web, key=ANN, delegations=1)
    third = await other.grants.delegate(second.grant_id, "cid", web, key=BOB)
    assert second.terms.until_ms == first.terms.until_ms
    for agent, path, grant in (("ann", "a", first), ("bob", "web/a", second), ("cid", "web/a", third)):
        decision = await other.grants.check(agent, f"lock.acquire on file:src/{path}")
        assert decision[:2] == (True, grant.grant_id)
    assert not (await other.grants.check("bob", "lock.acquire on file:src/a")).is_allowed
    assert not (await other.grants.check("bob", "message.send to ann")).is_allowed
    with pytest.raises(BadValue, match="is wider than in its parent"):
        await other.grants.delegate(second.grant_id, "cid", lines, key=BOB)
    with pytest.raises(BadValue, match="not issued by bob"):
        await other.grants.delegate(second.grant_id, "cid", web, key=ANN)
    with pytest.raises(BadValue, match="not issued by cid"):
        await other.grants.delegate(third.grant_id, "ann", web, key=BOB)
    await owner.grants.revoke(second.grant_id)
    assert [each.grant for each in await other.grants.in_force()] == [first]
    assert not (await other.grants.check("cid", "lock.acquire on file:src/web/a")).is_allowed
    assert (await other.grants.find(third.grant_id)).is_revoked
    with pytest.raises(Refused, match="grant_not_delegable"):
        await other.grants.delegate(second.grant_id, "cid", web, key=BOB, delegations=0)
    with pytest.raises(Refused, match="grant_not_in_force") as raised:
        await owner.grants.revoke(second.grant_id)
    assert raised.value.hint == "run `vox-mesh grant list` to see the grants in force"
    for node in (owner, other):
        await assert_whole(node)


async def test_a_replaced_key_delegates_nothing_any_more(owner: MeshNode, other: MeshNode) -> None:
    await owner.grants.admit("eve")
    await owner.grants.admit("ann", ANN.public)
    lines = ["lock.acquire on file:src/**"]
    parent = await owner.grants.issue("ann", lines, delegations=1)
    await owner.grants.admit("ann", BOB.public)
    with pytest.raises(BadValue, match="ann was admitted with another key since"):
        await other.grants.delegate(parent.grant_id, "eve", lines, key=ANN)
    stolen = Grant(new_key(), ANN.public, "eve", None, parent.grant_id, parent.terms._replace(delegations=0))
    signed = stolen.sign(ANN, other.store.writer_id.scope_id)
    await other.grants._record(DELEGATE, stolen, signed, guard("1", refusal="never"))  # unchecked
    assert not (await owner.grants.check("eve", "lock.acquire on file:src/a")).is_allowed


Saying = Callable[[Mesh], Awaitable[Any]]
SAYINGS: Final[dict[str, Saying]] = {
    "admit": lambda mesh: mesh.grants.admit("eve"),
    "issue": lambda mesh: mesh.grants.issue("ann", ["owner"]),
    "revoke": lambda mesh: mesh.grants.revoke("01J00000000000000000000000"),
    "strict": lambda mesh: mesh.grants.set_strict(strict=False),
}


@pytest.mark.parametrize("say", SAYINGS.values(), ids=SAYINGS)
async def test_only_the_owner_admits_grants_and_revokes(
    owner: MeshNode, other: MeshNode, say: Saying
) -> None:
    await owner.grants.admit("ann")
    with pytest.raises(Refused, match="not_the_owner"):
        await say(other)
    history = await owner.grants.history()
    assert [each.agent for each in history.admitted] == ["ann"]
    assert history.records == []
    await assert_whole(other)


async def test_no_more_agents_are_admitted_than_there_may_be(
    owner: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vox_mesh.oplog.grants.grants.MAX_AGENTS", 1)
    await owner.grants.set_strict(strict=True)
    await owner.grants.admit("ann")
    await owner.grants.admit("ann", ANN.public)
    with pytest.raises(Refused, match="too_many_agents"):
        await owner.grants.admit("bob")


async def test_an_agent_that_is_not_known_is_granted_nothing(owner: MeshNode) -> None:
    with pytest.raises(NotKnown, match="not admitted"):
        await owner.grants.issue("ann", ["worker"])
    with pytest.raises(NotKnown, match="not found"):
        await owner.grants.find("01J00000000000000000000000")
    with pytest.raises(BadValue, match="public key must be"):
        await owner.grants.admit("ann", "me")


# --- locks --------------------------------------------------------------------------------------


async def test_an_admitted_agent_acquires_what_its_grant_names_until_it_is_revoked(
    owner: MeshNode, other: MeshNode
) -> None:
    for path in ("a", "b"):  # also in a process that has served the agent before
        await other.locks.release(await other.locks.acquire(f"file:src/{path}", agent="ann"))
    await owner.grants.admit("ann")
    with pytest.raises(NotGranted):
        await other.locks.acquire("file:src/a", agent="ann")
    grant = await owner.grants.issue("ann", ["lock.acquire on file:src/**"])
    keys: list[str | list[str]] = ["file:src/a", ["file:src/a", "file:src/b"], "file:src/c/**"]
    for key in keys:
        await other.locks.release(await other.locks.acquire(key, agent="ann"))
    await other.locks.release(await other.locks.acquire("file:src/a", agent="ann", shared=True))
    for refused in ("file:doc/a", ["file:src/a", "task:1"], "file:**"):
        with pytest.raises(NotGranted):
            await other.locks.acquire(refused, agent="ann")
    await owner.grants.revoke(grant.grant_id)
    for key in keys:
        with pytest.raises(NotGranted):
            await other.locks.acquire(key, agent="ann")
    assert await other.locks.holders() == []
    await other.locks.acquire("file:doc/a", agent="eve")  # was never admitted


async def test_in_strict_mode_only_the_owner_s_node_acts_without_a_grant(
    owner: MeshNode, other: MeshNode
) -> None:
    await owner.grants.admit_node("other", other.identity.key.public)
    await owner.grants.set_strict(strict=True)
    for agent in ("eve", "owner", None):
        with pytest.raises(NotGranted):
            await other.locks.acquire("task:1", agent=agent)
    with pytest.raises(NotGranted):
        await owner.locks.acquire("task:1", agent="eve")
    await owner.locks.release(await owner.locks.acquire("task:1"))
    await other.locks.acquire_own("sweep", 1.0)
    await owner.grants.set_strict(strict=False)
    await other.locks.acquire("task:1", agent="eve")


async def outcome(awaited: Awaitable[object]) -> object:
    """What came of it, or why nothing did."""
    try:
        return await awaited
    except Refused as refused:
        return refused


async def test_a_waiter_whose_grant_is_revoked_is_not_served(owner: MeshNode, other: MeshNode) -> None:
    await owner.grants.admit("ann")
    grant = await owner.grants.issue("ann", ["lock.acquire"])
    held = await other.locks.acquire("task:1", agent="eve")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(outcome(other.locks.acquire("task:1", agent="ann", wait=60)))
        async for holders in other.locks.watch():
            if holders[0].waiting:
                break
        await owner.grants.revoke(grant.grant_id)
        await other.locks.release(held)
    assert isinstance(waiting.result(), NotGranted)
    assert await other.locks.holders() == []


# --- jobs, and what the log says of them --------------------------------------------------------


async def test_jobs_are_scheduled_by_grants_and_the_log_names_them(owner: MeshNode, other: MeshNode) -> None:
    with acting_as("ann"):
        await other.jobs.schedule("notes.web")
    await owner.grants.admit("ann")
    grant = await owner.grants.issue(
        "ann", ["job.schedule kind notes.*", "job.exec program git args 'log **' env CI"]
    )
    with acting_as("ann"):
        await other.jobs.schedule("notes.web")
        log = Manifest.of(command=["git", "log", "-1"], timeout=0, env={"CI": "1"})
        await other.jobs.schedule_all([log])
        for refused in (
            Manifest.of(kind="build"),
            Manifest.of(command=["git", "push"], timeout=0),
            Manifest.of(command=["git", "log"], timeout=0, env={"GIT_DIR": "/"}),
        ):
            with pytest.raises(NotGranted):
                await other.jobs.schedule_all([refused])
    await owner.grants.revoke(grant.grant_id)
    with acting_as("ann"), pytest.raises(NotGranted):
        await other.jobs.schedule("notes.web")
    entries = await other.oplog.tail(kind="ScheduleJob", agent="ann")
    assert [each.grant for each in entries if each.accepted] == [None, grant.grant_id, grant.grant_id]
    assert {each.reason for each in entries if not each.accepted} <= {NotGranted.code}
    await assert_whole(owner)


async def test_what_a_grant_allows_after_approval_only_is_asked_for_unless_another_allows_it(
    owner: MeshNode, other: MeshNode
) -> None:
    await owner.grants.admit("ann")
    grant = await owner.grants.issue("ann", ["ask lock.*", "ask job.exec", "job.schedule"])
    command = Manifest.of(command=["git", "push"], timeout=0)
    with acting_as("ann"), pytest.raises(ApprovalPending) as pending:
        await other.jobs.schedule_all([command, Manifest.of(kind="notes")])
    request = (await other.approvals.find(pending.value.approval_id)).request
    acts = ["job.exec program git args push env ''", "job.schedule kind notes"]
    assert (request.grant_id, list(map(str, request.acts()))) == (grant.grant_id, acts)
    with pytest.raises(ApprovalNeeded) as refused:  # no node can hold a lock for an agent that has gone on
        await other.locks.acquire("task:1", agent="ann")
    assert (refused.value.agent, refused.value.grant_id) == ("ann", grant.grant_id)
    await owner.grants.issue("ann", ["job.exec", "job.schedule"])  # one without approval goes first
    with acting_as("ann"):
        await other.jobs.schedule_all([command, Manifest.of(kind="notes")])


async def test_a_permit_that_is_out_of_date_is_looked_for_again_once(
    owner: MeshNode, other: MeshNode
) -> None:
    permits = other.permits
    found: list[str | None] = []

    async def use(permit: Permit) -> None:
        found.append(permit.grant_id)
        if len(found) == 1:  # between the permit and the write
            await owner.grants.admit("ann")
            grants.append((await owner.grants.issue("ann", ["job.schedule"])).grant_id)
        await other.store.write(permit.script(op=Op("Note", "{}")))

    grants: list[str] = []
    acts = [Act("job.schedule", "notes")]
    await permits.attempt(lambda: acts, use, agent="ann")
    assert found == [None, *grants]
    await owner.grants.revoke(grants[0])
    with pytest.raises(NotGranted):  # by the database, and then by the log
        await permits.attempt(lambda: acts, use, agent="ann")
    assert found == [None, grants[0], grants[0]]
    planted = Statement("INSERT INTO admitted_agents VALUES (?, ?, 'eve', NULL, '')", owner.store.mesh_id)
    await owner.store.write(Script(planted))
    with pytest.raises(NotGranted):  # only the row says that it needs a grant, and the log does not
        await permits.attempt(lambda: acts, use, agent="eve")


async def test_verifying_reports_what_was_done_without_a_grant(owner: MeshNode, other: MeshNode) -> None:
    await owner.grants.admit("ann")
    grant = await owner.grants.issue("ann", ["job.schedule kind notes.*"])
    await assert_whole(owner)

    def item(kind: str) -> dict[str, Any]:
        return other.jobs.item(Manifest.of(kind=kind), new_key())

    async def problem(kind: str, grant_id: str | None) -> str | None:
        """The first problem after a client that checks nothing has scheduled a job."""
        script = other.jobs.transitions.schedule([item(kind)])
        assert script.op is not None
        script.op = script.op._replace(agent="ann", grant=grant_id)
        await other.store.write(script)
        (report,) = await owner.oplog.verify("other")
        return report.problem

    assert await problem("notes.web", grant.grant_id) is None
    await owner.grants.revoke(grant.grant_id)
    assert await problem("notes.web", grant.grant_id) == f"its grant {grant.grant_id} was not in force"
