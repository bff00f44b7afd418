"""Sending messages and taking jobs by grants: checked in the transaction, on all paths."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.nodes.shared_mesh import assert_whole
from vox_mesh import acting_as
from vox_mesh.errors import BadValue, NotGranted, RateExceeded, TooManyOpen
from vox_mesh.jobs.work.reports import Report, ReportedOutcome
from vox_mesh.model.base.reserved import MESH_AGENT
from vox_mesh.model.grants.capability import TAKE, Act
from vox_mesh.model.jobs.records import JobState
from vox_mesh.model.messages.records import Message
from vox_mesh.node import MeshNode
from vox_mesh.oplog.export import export_log, verify_export

DONE: Final = Report(ReportedOutcome.SUCCEEDED)
Send = Callable[[MeshNode, Message], Awaitable[Any]]
SENDS: Final[dict[str, Send]] = {
    "send": lambda node, _: node.messages.send("bob", 1, sender="ann"),
    "key": lambda node, got: node.messages.send("bob", 1, sender="ann", key=got.message_uuid),
    "role": lambda node, _: node.messages.send("role:qa", 1, sender="ann"),
    "broadcast": lambda node, _: node.messages.broadcast(1, sender="ann"),
    "reply": lambda node, got: node.messages.reply(got, 1),
    "help": lambda node, _: node.rhythm.help.ask("bob", 1, sender="ann"),
    "relayed": lambda node, got: node.messages.store_relayed(
        got._replace(sender_agent="ann", receiver_agent="bob", message_uuid=got.message_uuid[::-1])
    ),
}


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
async def test_an_agent_sends_by_its_grant_until_it_is_revoked(
    owner: MeshNode, other: MeshNode, send: Send
) -> None:
    got = await other.messages.send("ann", 1, sender="bob")
    await owner.grants.admit("ann")
    await owner.grants.issue("ann", ["message.send to cid", "mesh.read"])
    with pytest.raises(NotGranted):
        await send(other, got)
    grant = await owner.grants.issue("ann", ["message.send"])
    assert (await other.grants.check("ann", "message.send to bob")).grant_id == grant.grant_id
    await owner.grants.revoke(grant.grant_id)
    with pytest.raises(NotGranted):
        await send(other, got)
    assert await other.messages.queries.listed(sender="ann") == []


async def test_of_messages_that_are_stored_together_only_those_with_a_grant_are(
    owner: MeshNode, other: MeshNode
) -> None:
    async def send_all(node: MeshNode) -> set[str]:
        """Send from each of them at once, and return who was not refused."""
        senders = ["ann", "bob", node.messages.node_id, "person:cid", "dan"]
        sending = (node.messages.send("z", 1, sender=sender) for sender in senders)
        sent = await asyncio.gather(*sending, return_exceptions=True)
        assert all(isinstance(each, Message | NotGranted) for each in sent), sent
        allowed = {each.sender_agent for each in sent if isinstance(each, Message)}
        stored = await node.messages.inbox("z", limit=16)
        assert {each.sender_agent for each in stored} == allowed
        await node.messages.ack(*stored)
        return allowed

    assert await send_all(other) == {"ann", "bob", "other", "person:cid", "dan"}
    await owner.grants.admit("ann")
    await owner.grants.admit("bob")
    await owner.grants.issue("bob", ["message.send to z"])
    assert await send_all(other) == {"bob", "other", "person:cid", "dan"}
    await owner.grants.set_strict(strict=True)
    assert await send_all(owner) == {"bob", "owner", "person:cid"}


async def test_no_agent_sends_or_acts_as_the_mesh(owner: MeshNode) -> None:
    with pytest.raises(BadValue, match="must not be 'mesh'"):
        await owner.messages.send("bob", 1, sender=MESH_AGENT)
    with pytest.raises(BadValue, match="must not be 'mesh'"), acting_as(MESH_AGENT):
        pass


async def test_a_dead_letter_is_retried_by_whom_may_send_it(owner: MeshNode, other: MeshNode) -> None:
    sent = await other.messages.send("bob", 1, sender="eve", max_attempts=1)
    (claimed,) = await other.messages.inbox("bob")
    await other.messages.nack(claimed)
    await owner.grants.admit("ann")
    with acting_as("ann"), pytest.raises(NotGranted):
        await other.messages.queries.retry(sent.message_uuid)
    await owner.grants.issue("ann", ["message.send to bob"])
    with acting_as("ann"):
        await other.messages.queries.retry(sent.message_uuid)
    assert len(await other.messages.inbox("bob")) == 1


# --- taking -------------------------------------------------------------------------------------


async def test_an_agent_takes_what_its_grant_names_and_renews_until_it_is_revoked(
    owner: MeshNode, other: MeshNode
) -> None:
    for kind in ("a", "b", "b"):
        await other.jobs.schedule(kind)
    await owner.grants.admit("ann")
    with pytest.raises(NotGranted, match="not_granted"):
        await owner.work.take("ann")
    grant = await owner.grants.issue("ann", ["job.take kind b"])
    with pytest.raises(NotGranted):
        await owner.work.take("ann", ["a"], wait=60)
    first, second = await owner.work.take("ann", count=3)
    assert {first.job.kind, second.job.kind} == {"b"}
    await owner.work.renew(first.job, first.claim_token)
    await owner.grants.revoke(grant.grant_id)
    with pytest.raises(NotGranted):
        await owner.work.renew(first.job, first.claim_token)
    # They were taken while it was granted.
    await owner.work.report(second.job, second.claim_token, DONE)
    ended = await owner.work.report(first.job, first.claim_token, DONE)
    assert ended.state == JobState.SUCCEEDED
    (entry,) = await owner.oplog.tail(kind="CompleteJob", limit=1)
    assert f'"grant":"{grant.grant_id}"' in entry.payload
    await assert_whole(owner)


async def test_a_claim_by_a_grant_that_was_revoked_is_refused(owner: MeshNode, other: MeshNode) -> None:
    await owner.grants.admit("ann")
    grant = await owner.grants.issue("ann", ["job.take"])
    job = await other.jobs.schedule("a")
    permit = await owner.permits.permit("ann", lambda: [Act(TAKE, "a")])
    await owner.grants.revoke(grant.grant_id)
    item = {"job_id": job.job_id, "claim_token": 1}
    for claim in (
        owner.jobs.transitions.take([item], [item], 60_000, permit=permit)[0],
        owner.jobs.transitions.claim([item], 60_000, permit=permit),
    ):
        with pytest.raises(NotGranted):
            await owner.store.write(claim)
    assert (await owner.jobs.find(job.job_id)).state == JobState.PENDING


@pytest.mark.parametrize(
    ("line", "kind", "problem"),
    [
        (None, "a", "ann had no grant for it"),
        ("job.schedule", "a", "its grant {} does not allow `job.take kind a`"),
        ("job.take kind b", "a", "its grant {} does not allow `job.take kind a`"),
        ("job.take kind b", "b", ""),
        ("job.take", "a", ""),
    ],
)
async def test_verifying_also_an_export_reports_what_was_taken_without_a_grant(
    owner: MeshNode, other: MeshNode, tmp_path: Path, line: str | None, kind: str, problem: str
) -> None:
    await owner.grants.admit("ann")
    grant_id = None if line is None else (await owner.grants.issue("ann", [line])).grant_id
    job = await owner.jobs.schedule(kind)
    item = {"job_id": job.job_id, "claim_token": 1, "last_token": 0}
    unchecked = other.permits.by("ann", grant_id)._replace(mesh=None)
    await other.store.write(other.jobs.transitions.take([item], [item], 60_000, permit=unchecked)[0])
    await owner.store.synced()
    exported = tmp_path / "log.jsonl"
    await export_log(owner.oplog, *owner.store.mesh_id, exported)
    for reports in (await owner.oplog.verify("other"), verify_export(exported, "other").chains):
        assert [each.problem or "" for each in reports] == [problem.format(grant_id)]


async def test_jobs_are_taken_as_often_and_as_many_as_the_grant_allows(
    owner: MeshNode, other: MeshNode
) -> None:
    await owner.grants.admit("bob")
    await owner.grants.issue("bob", ["job.take rate 2/1d open 1"])
    for number in range(3):
        await other.jobs.schedule("b", number)
    await owner.store.synced()
    for _ in range(2):
        (taken,) = await owner.work.take("bob", ["b"], count=2)
        with pytest.raises(TooManyOpen):
            await owner.work.take("bob", ["b"])
        await owner.work.report(taken.job, taken.claim_token, DONE)
    with pytest.raises(RateExceeded):
        await owner.work.take("bob", ["b"], wait=60)
