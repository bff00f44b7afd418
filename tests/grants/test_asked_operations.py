"""Each operation that an agent can ask for: nothing is done before an approval, and once after it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple

import pytest
import pytest_asyncio

from tests.jobs.steps.test_waits import suspended
from tests.support.jobs.staging import brought
from tests.support.nodes.api_scene import conflict
from tests.support.nodes.shared_mesh import SharedMesh, assert_whole
from tests.support.oplog.rivals import row
from tests.support.oplog.tampering import NOTE
from tools.homes import FILE
from vox_mesh import JobContext, Mesh, OpKind, acting_as
from vox_mesh.errors import ApprovalNeeded, ApprovalPending, BadValue, Refused, Unreachable
from vox_mesh.model.base.canonical import parse
from vox_mesh.model.grants.approval import Approval, ApprovalState
from vox_mesh.model.grants.capability import ACTIONS
from vox_mesh.model.grants.needs import NEEDS
from vox_mesh.model.jobs.records import JobState
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.rhythm.budgets import Budget
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.node import MeshNode
from vox_mesh.oplog.grants import approvals
from vox_mesh.runtime.approved_operations import ASKABLE, OPERATIONS
from vox_mesh.store import new_key

pytestmark = pytest.mark.asyncio(loop_scope="module")

Do = Callable[[MeshNode], Awaitable[Any]]
CRON: Final = ("0 3 * * *", {"kind": "notes", "lease": "5m", "priority": 3})
NOT_ASKABLE: Final = {
    *("AnswerJob", "RekeyNode", "TrustScope"),
    *("AdmitNode", "AdmitAgent", "Grant", "Revoke", "SetStrict", "IssueAgentToken", "RevokeAgentToken"),
}
"""Ops that need a grant, and that no agent can ask for."""


class Nodes(NamedTuple):
    """The owner's node, another one through which an agent asks, and the grant by which it does."""

    owner: MeshNode
    other: MeshNode
    grant_id: str
    shared: SharedMesh


class Case(NamedTuple):
    """An op that an agent asks for."""

    op: str
    prepare: Callable[[Nodes], Awaitable[Do]]
    """Returns what the agent does."""
    look: Callable[[MeshNode], Awaitable[Any]]
    """Returns what is changed by it."""

    def __str__(self) -> str:
        return self.op


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nodes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Nodes]:
    """A mesh of two nodes, with an agent that asks for everything."""
    shared = SharedMesh(FILE, tmp_path_factory.mktemp("mesh"), None, new_key())
    async with Mesh.open(shared.settings("owner")) as owner, Mesh.open(shared.settings("other")) as other:
        for node in (owner, other):
            node.oplog.register(NOTE)
        await owner.grants.admit("ann")
        grant = await owner.grants.issue("ann", ["ask *"])
        yield Nodes(owner, other, grant.grant_id, shared)


def simply(do: Do) -> Callable[[Nodes], Awaitable[Do]]:
    """Nothing has to be prepared."""

    async def prepare(_: Nodes) -> Do:
        return do

    return prepare


def after(done: Do, do: Do) -> Callable[[Nodes], Awaitable[Do]]:
    """The owner does something before."""

    async def prepare(nodes: Nodes) -> Do:
        await done(nodes.owner)
        return do

    return prepare


async def abort(nodes: Nodes) -> Do:
    job = await nodes.owner.jobs.schedule("aborted")
    return lambda node: node.jobs.abort(job, reason="not needed")


async def yield_one(nodes: Nodes) -> Do:
    job = await brought(nodes.owner, JobState.RUNNING)
    assert job is not None
    return lambda node: node.jobs.yield_job(job, delay="1h", reason="try later")


async def wake(nodes: Nodes) -> Do:
    @nodes.owner.worker.handles("asleep")
    async def handle(context: JobContext) -> None:
        await context.sleep("1d")

    scheduled = await nodes.owner.jobs.schedule("asleep")
    async with nodes.owner.worker.running():
        job = await suspended(nodes.owner, scheduled.job_id)
    return lambda node: node.jobs.wakes.wake(job)


async def times(node: MeshNode) -> list[int]:
    return [each.not_before_ms for each in await node.jobs.queries.listed(limit=100)]


async def resolve(nodes: Nodes) -> Do:
    conflict_id = await conflict(nodes.owner, "a")
    return lambda node: node.conflicts.resolve(conflict_id, value={"content": "b", "tags": "x"}, reason="so")


async def remove_node(nodes: Nodes) -> Do:
    async with Mesh.open(nodes.shared.settings("gone")):
        pass
    return lambda node: node.nodes.remove("gone")


async def append(nodes: Nodes) -> Do:
    cause = await nodes.owner.oplog.append(NOTE.name, {"n": 1})
    return lambda node: node.oplog.append(NOTE.name, {"at_ms": 2}, deps=[cause.key])


async def states(node: MeshNode) -> list[tuple[str, str, int]]:
    found = await node.jobs.queries.listed(limit=100)
    return sorted((each.job_id, each.state, each.claim_token) for each in found)


async def holders(node: MeshNode) -> list[str | None]:
    return [each.holder_agent for each in await node.locks.holders(["task:1"])]


async def drains(node: MeshNode) -> list[str]:
    return sorted((await node.jobs.queries.situation()).drains)


async def members(node: MeshNode) -> list[str]:
    return [each.node_id for each in await node.nodes.all()]


async def budgets(node: MeshNode) -> list[Any]:
    return [(each.subject, each.budget) for each in await node.rhythm.budgets.show()]


async def tempos(node: MeshNode) -> list[Any]:
    plan = await node.rhythm.policies.refresh(fresh=True)
    return [(each.op_id, each.tempo.bpm, each.reason) for each in plan.entries]


async def written(node: MeshNode) -> int:
    return len(await node.oplog.tail(100, kind=NOTE.name))


async def coordinator(node: MeshNode) -> str | None:
    found = await node.roles.coordinator()
    return None if found is None else found.node_id


async def policies(node: MeshNode) -> object:
    """The policies of retention."""
    return (await node.retention.policies()).listed()


CASES: Final = [
    Case("ScheduleJob", simply(lambda node: node.jobs.schedule("asked", {"n": 1})), states),
    Case("AbortJob", abort, states),
    Case("YieldWork", yield_one, states),
    Case("WakeJobEarly", wake, times),
    Case(
        "BreakLock",
        after(
            lambda node: node.locks.acquire("task:1", agent="eve", ttl=3_600),
            lambda node: node.locks.break_lock("task:1", "stale"),
        ),
        holders,
    ),
    Case("ResolveConflict", resolve, lambda node: row(node, "a")),
    Case("AddCron", simply(lambda node: node.crons.add("asked", *CRON)), lambda node: node.crons.listed()),
    Case(
        "RemoveCron",
        after(lambda node: node.crons.add("old", *CRON), lambda node: node.crons.remove("old")),
        lambda node: node.crons.listed(),
    ),
    Case(
        "AddRule",
        simply(lambda node: node.rules.add("asked", "BreakLock", {"kind": "notes"}, {"key": "task:2"})),
        lambda node: node.rules.listed(),
    ),
    Case(
        "RemoveRule",
        after(
            lambda node: node.rules.add("old", "BreakLock", {"kind": "notes"}),
            lambda node: node.rules.remove("old"),
        ),
        lambda node: node.rules.listed(),
    ),
    Case(
        "SetKind",
        simply(lambda node: node.job_kinds.limit("slow", max_running=2, rate=5, per_ms=60_000)),
        lambda node: node.job_kinds.listed(),
    ),
    Case("DrainNode", simply(lambda node: node.job_kinds.drain("other")), drains),
    Case(
        "UndrainNode",
        after(
            lambda node: node.job_kinds.drain("owner"),
            lambda node: node.job_kinds.undrain("owner"),
        ),
        drains,
    ),
    Case("RemoveNode", remove_node, members),
    Case(
        "SetBudget",
        simply(lambda node: node.rhythm.budgets.set("agent:ann", Budget(max_bu=10))),
        budgets,
    ),
    Case(
        "RemoveBudget",
        after(
            lambda node: node.rhythm.budgets.set("agent:bob", Budget(max_bu=10)),
            lambda node: node.rhythm.budgets.remove("agent:bob"),
        ),
        budgets,
    ),
    Case("SetRetention", simply(lambda node: node.retention.set("jobs", kind="a", age_ms=5_000)), policies),
    Case(
        "SetTempo",
        simply(lambda node: node.rhythm.policies.set(TempoPolicy.built_in("east"), "ours")),
        tempos,
    ),
    Case(
        "DeclareIncident",
        simply(lambda node: node.rhythm.incidents.declare("fire")),
        lambda node: node.rhythm.incidents.current(),
    ),
    Case(
        "ClearIncident",
        after(
            lambda node: node.rhythm.incidents.declare("flood"),
            lambda node: node.rhythm.incidents.clear(),
        ),
        lambda node: node.rhythm.incidents.current(),
    ),
    Case("DesignateCoordinator", simply(lambda node: node.roles.designate_coordinator("other")), coordinator),
    Case(
        "RouteKind",
        simply(lambda node: node.roles.set_route("asked", "other")),
        lambda node: node.roles.routes(),
    ),
    Case(NOTE.name, append, written),
]


async def ask(node: MeshNode, do: Do) -> Approval:
    with acting_as("ann"), pytest.raises(ApprovalPending) as pending:
        await do(node)
    return await node.approvals.find(pending.value.approval_id)


async def by_ann(node: MeshNode, kind: str) -> list[LogEntry]:
    return [each for each in await node.oplog.tail(100, kind=kind) if each.agent == "ann" and each.accepted]


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_what_is_asked_is_done_once_after_an_approval_and_not_before(
    case: Case, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, other = nodes.owner, nodes.other
    do = await case.prepare(nodes)
    before = await case.look(owner)
    denied = await ask(other, do)
    assert (denied.state, denied.request.operation.name) == (ApprovalState.PENDING, case.op)
    await owner.approvals.deny(denied.request.approval_id)
    with monkeypatch.context() as patched:
        patched.setattr(approvals, "LIFETIME_MS", 0)
        late = await ask(other, do)
    for each in (denied, late):
        with pytest.raises(Refused, match="approval_not_open"):
            await owner.approvals.approve(each.request.approval_id)
    wanted = await ask(other, do)
    request = wanted.request
    assert await case.look(owner) == before
    assert await by_ann(owner, case.op) == []

    done = await owner.approvals.approve(request.approval_id)
    assert (done.state, done.refusal) == (ApprovalState.APPLIED, None)
    changed = await case.look(owner)
    assert changed != before
    for node in (other, owner):
        assert (await node.approvals.apply(request.approval_id)).state is ApprovalState.APPLIED
    assert await case.look(owner) == changed
    (entry,) = await by_ann(other, case.op)
    assert (entry.op_id, entry.grant, entry.node_id) == (request.applied_as, nodes.grant_id, "owner")
    assert request.operation.is_done_by(entry)
    assert {request.approval_id, done.decision_op} <= {*parse(entry.causal_deps)}
    await assert_whole(owner)


async def test_each_op_that_needs_a_grant_can_be_asked_for_or_is_known_not_to() -> None:
    assert {case.op for case in CASES} == {*OPERATIONS, NOTE.name}
    assert NEEDS.keys() - OPERATIONS.keys() == NOT_ASKABLE
    assert {*ACTIONS} - ASKABLE == {
        *("mesh.read", "lock.acquire", "message.send", "message.receive"),
        *("job.take", "job.answer", "roles.rekey"),
    }


async def test_a_grant_can_not_ask_for_what_no_approval_applies(nodes: Nodes) -> None:
    for action in ({*ACTIONS} - ASKABLE) | {"message.*"}:
        with pytest.raises(BadValue, match=rf"{action} can't be asked for"):
            await nodes.owner.grants.issue("ann", [f"ask {action}"])
    with acting_as("ann"), pytest.raises(ApprovalNeeded):  # `ask *` has it besides the others
        await nodes.owner.grants.admit("bob")


async def test_what_takes_the_owner_s_key_or_is_not_known_to_a_node_is_left_to_others(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, other = nodes.owner, nodes.other
    only_there = OpKind(f"test.{new_key()}")
    other.oplog.register(only_there)
    monkeypatch.setattr(approvals, "_GRACE_MS", -60_000)

    async def away(_: str) -> Approval:
        raise Unreachable("killed")

    for do, unable, able in (
        (lambda node: node.roles.set_route("late", "other"), other, owner),
        (lambda node: node.oplog.append(only_there.name, {"n": 1}), owner, other),
    ):
        approval_id = (await ask(other, do)).request.approval_id
        with monkeypatch.context() as patched:
            patched.setattr(owner.approvals, "apply", away)
            await owner.approvals.approve(approval_id)
        await unable.approvals.apply_due()
        assert (await owner.approvals.find(approval_id)).state is ApprovalState.APPROVED
        await able.approvals.apply_due()
        assert (await owner.approvals.find(approval_id)).state is ApprovalState.APPLIED
    await assert_whole(owner)


async def test_what_was_done_meanwhile_or_would_be_done_otherwise_is_refused(nodes: Nodes) -> None:
    owner, other = nodes.owner, nodes.other
    add = await ask(other, lambda node: node.crons.add("twice", *CRON))
    await owner.crons.add("twice", *CRON)
    await owner.rhythm.incidents.declare("first")
    clear = await ask(other, lambda node: node.rhythm.incidents.clear())
    await owner.rhythm.incidents.declare("second")
    await owner.rhythm.budgets.set("agent:eve", Budget(max_bu=1))
    remove = await ask(other, lambda node: node.rhythm.budgets.remove("agent:eve"))
    await owner.rhythm.budgets.remove("agent:eve")
    done = [await owner.approvals.approve(each.request.approval_id) for each in (add, clear, remove)]
    assert [(each.state.value, each.refusal) for each in done] == [
        ("refused", "nothing_to_do"),
        ("refused", "not_as_asked"),
        ("refused", "agent:eve has no budget"),
    ]
    await assert_whole(owner)
