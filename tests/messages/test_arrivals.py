"""Arrivals: what the relay brought is handed out only while the database can't be asked, and then once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest

from tests.support.messages.messaging import PATIENCE_S, bodies, change, found, next_of, settled, take, write
from tests.support.oplog.authoring import RestartableNodes
from vox_mesh import Message, Outcome, Script
from vox_mesh.errors import DatabaseUnavailable, NotHolder, Unreachable
from vox_mesh.messages.claims import is_relayed
from vox_mesh.model.messages.records import MessageState
from vox_mesh.node import MeshNode
from vox_mesh.store.write.breaker import Breaker

_TRIES = 10_000


class Away:
    """A node whose database can be away."""

    def __init__(self, scene: RestartableNodes, node: MeshNode) -> None:
        self._gate = scene.gate
        self.node = node

    async def leased_loop(self, count: int, at_once: int = 256) -> AsyncGenerator[Message, None]:
        """A loop that has received this many messages as z, with a lease of that inbox."""
        loop = self.node.messages.receive("z", at_once=at_once)
        await take(self.node, loop, count)
        await settled(self.node)
        await self.node.messages.lease_inboxes()
        assert self.node.messages._leases.until("z") is not None
        return loop

    def begin(self) -> None:
        """Nothing gets through from now on."""
        self._gate.before.extend(Unreachable("it is away") for _ in range(_TRIES))

    async def end(self) -> None:
        """It is back, and has all that had to wait."""
        self._gate.before.clear()
        async with asyncio.timeout(PATIENCE_S):
            while self.node.store.is_spooling:
                await self.node.store.drained()


@pytest.fixture
async def away(there: RestartableNodes, tmp_path: Path) -> AsyncIterator[Away]:
    """A node with a spool and a breaker."""
    breaker = Breaker(time.monotonic, reset_timeout_s=0.02)
    async with there.node("r", spool=tmp_path / "spool.db", breaker=breaker) as node:
        await node.run_once()
        yield Away(there, node)


async def test_while_the_database_is_away_arrival_is_the_claim_and_the_ack_waits(
    away: Away, sent: list[Message]
) -> None:
    messages = away.node.messages
    loop = await away.leased_loop(len(sent))
    away.begin()
    more = [await messages.send("z", body, sender="a") for body in ("late", "later")]
    assert [each.state for each in more] == [MessageState.SPOOLED] * 2
    messages.relay_buffer.add(more)
    for body in ("late", "later"):
        message = await next_of(loop)
        assert (message.body, message.delivery_attempts) == (body, 1)
        assert is_relayed(message)
        await messages.ack(message)
    await away.end()
    assert [(await found(away.node, each)).state for each in more] == [MessageState.ACKED] * 2
    after = await messages.send("z", "after", sender="a")
    assert (await next_of(loop)).message_uuid == after.message_uuid  # and those not once more
    await loop.aclose()
    await settled(away.node)


async def test_one_that_is_worked_on_when_the_database_comes_back_is_not_handed_out_again(
    away: Away, sent: list[Message]
) -> None:
    messages = away.node.messages
    loop = await away.leased_loop(len(sent))
    asking = asyncio.create_task(next_of(loop))
    await settled(away.node)
    away.begin()
    late = sent[0]._replace(message_uuid="01ARZ3NDEKTSV4RRFFQ69G5FAV", payload='"late"')
    signature = away.node.identity.key.sign(late.signed_text(*away.node.store.mesh_id))
    late = late._replace(signature=signature)
    messages.relay_buffer.add([late])
    message = await asking
    assert is_relayed(message)
    await away.end()
    asking = asyncio.create_task(next_of(loop))
    await messages.ack(message)
    after = await messages.send("z", "after", sender="a")
    assert (await asking).message_uuid == after.message_uuid
    await loop.aclose()
    await settled(away.node)


# --- the lease of an inbox ----------------------------------------------------------------------------


async def _brought(away: Away, *bodies: str) -> list[Message]:
    """Messages that were sent while the database was away, each by another sender, and brought here."""
    sent = [await away.node.messages.send("z", body, sender=body) for body in bodies]
    away.node.messages.relay_buffer.add(sent)
    return sent


async def _until_unanswered(node: MeshNode, times: int = 3) -> None:
    """Wait until all consumers of a node have asked so often without an answer."""
    async with asyncio.timeout(PATIENCE_S):
        while any(each._unanswered < times for each in node.messages._consumers):  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.001)


async def test_consumers_of_one_node_never_share_a_relayed_message(away: Away, sent: list[Message]) -> None:
    messages = away.node.messages
    loops = [await away.leased_loop(len(sent), at_once=1), messages.receive("z", at_once=1)]
    asking = [asyncio.create_task(next_of(loop)) for loop in loops]
    await settled(away.node)
    away.begin()
    await _brought(away, "x", "y")
    taken = [await each for each in asking]
    assert sorted(bodies(taken)) == ["x", "y"]
    for message in taken:
        assert not await messages.ack(message)  # it is in the spool
    await away.end()
    assert {(await found(away.node, each)).state for each in taken} == {MessageState.ACKED}
    for loop in loops:
        await loop.aclose()


async def test_while_others_receive_too_relayed_messages_wait_for_the_database(
    away: Away, there: RestartableNodes, sent: list[Message]
) -> None:
    messages = away.node.messages
    loop = await away.leased_loop(len(sent))
    async with there.node("other") as other:
        await other.run_once()
        assert await other.messages.poll_inbox_from_db("z") == []
        await settled(other)
        messages._leases._asked_at = float("-inf")
        await messages.lease_inboxes()
        assert messages._leases.until("z") is None
        asking = asyncio.create_task(next_of(loop))
        await settled(away.node)
        away.begin()
        (message,) = await _brought(away, "x")
        await _until_unanswered(away.node)
        assert not asking.done()
        await away.end()
        assert (await asking).message_uuid == message.message_uuid
        assert not is_relayed(asking.result())
        assert await messages.ack(asking.result(), durable=True)
    await loop.aclose()


async def test_a_leased_inbox_is_claimed_by_its_holder_alone_until_the_lease_ends(
    away: Away, there: RestartableNodes, sent: list[Message]
) -> None:
    loop = await away.leased_loop(len(sent))
    async with there.node("other") as other:
        await other.run_once()
        await other.messages.send("z", "x", sender="a")
        assert await other.messages.poll_inbox_from_db("z") == []
        assert await other.messages.inbox("z") == []
        await write(other, "UPDATE a2a_receivers SET lease_until_ms = 1 WHERE scope_id = ?1 AND ?2 = ?2")
        assert bodies(await other.messages.poll_inbox_from_db("z")) == ["x"]
    await loop.aclose()


async def test_a_lease_is_released_when_its_holder_receives_no_more(
    away: Away, there: RestartableNodes, sent: list[Message]
) -> None:
    loop = await away.leased_loop(len(sent))
    await loop.aclose()
    await settled(away.node)
    async with there.node("other") as other:
        await other.run_once()
        await other.messages.send("z", "x", sender="a")
        assert bodies(await other.messages.poll_inbox_from_db("z")) == ["x"]


async def test_an_ack_of_a_relayed_message_that_another_has_acked_is_refused(
    away: Away, sent: list[Message]
) -> None:
    messages = away.node.messages
    loop = await away.leased_loop(len(sent))
    asking = asyncio.create_task(next_of(loop))
    await settled(away.node)
    away.begin()
    await _brought(away, "x")
    message = await asking
    assert is_relayed(message)
    await away.end()
    await change(away.node, [message], state="acked", acknowledged=1, ended_ms=1, claim_owner="another")
    with pytest.raises(NotHolder):
        await messages.ack(message)
    assert (await found(away.node, message)).claim_owner == "another"
    await loop.aclose()


async def test_a_relayed_message_in_hand_is_claimed_for_its_holder_when_the_database_is_back(
    away: Away, sent: list[Message]
) -> None:
    messages = away.node.messages
    loop = await away.leased_loop(len(sent))
    asking = asyncio.create_task(next_of(loop))
    await settled(away.node)
    away.begin()
    await _brought(away, "x")
    message = await asking
    await away.end()
    await messages.send("z", "behind", sender="x")
    assert await messages.poll_inbox_from_db("z") == []  # it is in hand, and what comes after it waits
    await settled(away.node)
    claimed = await found(away.node, message)
    assert claimed.state == MessageState.DELIVERED
    assert await messages.ack(message)
    assert (await found(away.node, message)).claim_owner == claimed.claim_owner
    assert bodies(await messages.poll_inbox_from_db("z")) == ["behind"]
    with pytest.raises(NotHolder):
        await messages.ack(message)
    await loop.aclose()


async def test_an_ack_in_the_spool_keeps_a_relayed_message_from_being_claimed_again(
    away: Away, sent: list[Message]
) -> None:
    messages = away.node.messages
    loop = await away.leased_loop(len(sent))
    message = await messages.send("z", "x", sender="x")
    messages.relay_buffer.mark_done(message)  # its ack is in the spool
    assert await messages.poll_inbox_from_db("z") == []
    await settled(away.node)
    assert (await found(away.node, message)).state == MessageState.ACKED
    await loop.aclose()


@pytest.mark.parametrize("by_loop", [True, False], ids=["a loop", "a single claim"])
async def test_an_ack_in_the_spool_is_repeated_though_the_next_message_of_the_pair_is_in_hand(
    away: Away, sent: list[Message], by_loop: bool
) -> None:
    messages = away.node.messages
    loop = await away.leased_loop(len(sent))
    asking = asyncio.create_task(next_of(loop))
    await settled(away.node)
    first = await messages.send("z", "first", sender="x")
    handled = await asking
    asking = asyncio.create_task(next_of(loop))
    away.begin()
    assert not await messages.ack(handled)
    (second,) = await _brought(away, "x")
    assert is_relayed(await asking)
    await away.end()
    # The lease was over before the spool was replayed.
    await change(away.node, [first], state="stored", acknowledged=0, ended_ms=None, claim_until_ms=1)
    await messages.send("z", "other", sender="y")
    claimed = [await next_of(loop)] if by_loop else await messages.poll_inbox_from_db("z")
    assert bodies(claimed) == ["other"]
    await settled(away.node)
    assert (await found(away.node, second)).state == MessageState.DELIVERED
    assert (await found(away.node, first)).state == MessageState.ACKED
    await loop.aclose()


async def test_one_relayed_message_that_is_lost_does_not_keep_the_others_from_being_acked(
    away: Away, sent: list[Message]
) -> None:
    messages = away.node.messages
    loop = await away.leased_loop(len(sent))
    asking = asyncio.create_task(next_of(loop))
    await settled(away.node)
    away.begin()
    await _brought(away, "x")
    lost = await asking
    await away.end()
    messages.relay_buffer.holds.end(lost)
    await messages.send("y", "mine")
    (mine,) = await messages.poll_inbox_from_db("y")
    with pytest.raises(NotHolder):
        await messages.ack(lost, mine)
    assert (await found(away.node, mine)).state == MessageState.ACKED
    await loop.aclose()


async def test_a_pair_waits_for_a_relayed_message_whose_hold_was_extended(
    away: Away, sent: list[Message]
) -> None:
    messages = away.node.messages
    loop = await away.leased_loop(len(sent))
    asking = asyncio.create_task(next_of(loop))
    await settled(away.node)
    away.begin()
    await _brought(away, "x")
    message = await asking
    (consumer,) = messages._consumers
    held, _ = consumer._busy[message.pair]
    consumer._busy[message.pair] = held, 0.0  # that was the end of the lease when it was handed out
    assert consumer.has_pair(message.pair)
    messages.relay_buffer.holds.end(message)
    assert not consumer.has_pair(message.pair)
    await loop.aclose()


async def test_a_lease_under_which_something_was_just_handed_out_is_not_released(
    away: Away, there: RestartableNodes, sent: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = away.node.messages
    loop = await away.leased_loop(len(sent))
    async with there.node("other") as other:
        await other.run_once()
        assert await other.messages.poll_inbox_from_db("z") == []
        await settled(other)
        held = sent[0]._replace(claim_owner="arrival:r#1:x")
        write_to_store = away.node.store.write

        async def answered_late(script: Script, *, timeout: float | None = None) -> Outcome:
            outcome = await write_to_store(script, timeout=timeout)
            if not messages.relay_buffer.holds.receivers():
                messages.relay_buffer.holds.begin(held, *[messages._monotonic() + 59] * 2)
            return outcome

        monkeypatch.setattr(away.node.store, "write", answered_late)
        await messages.lease_inboxes()
        assert messages._leases.until("z") is None
        await other.messages.send("z", "x", sender="a")
        assert await other.messages.poll_inbox_from_db("z") == []  # until the lease ends
    await loop.aclose()


async def test_an_inbox_that_is_left_while_its_lease_is_renewed_is_not_leased(
    away: Away, sent: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = away.node.messages
    loop = await away.leased_loop(len(sent))
    write_to_store = away.node.store.write

    async def answered_late(script: Script, *, timeout: float | None = None) -> Outcome:
        outcome = await write_to_store(script, timeout=timeout)
        monkeypatch.undo()
        await messages._leases.leave(["z"])
        return outcome

    messages._leases._asked_at = float("-inf")
    monkeypatch.setattr(away.node.store, "write", answered_late)
    await messages.lease_inboxes()
    assert messages._leases.until("z") is None
    await loop.aclose()


async def test_after_a_rollback_no_lease_from_before_counts(away: Away, sent: list[Message]) -> None:
    loop = await away.leased_loop(len(sent))
    away.node.start_rejoin()
    assert away.node.messages._leases.until("z") is None
    await away.node.messages.lease_inboxes()
    assert away.node.messages._leases.until("z") is not None
    await loop.aclose()


async def test_a_node_that_stops_releases_relayed_messages_in_hand_and_the_lease_of_their_inbox(
    away: Away, there: RestartableNodes, sent: list[Message]
) -> None:
    messages = away.node.messages
    loop = await away.leased_loop(len(sent))
    asking = asyncio.create_task(next_of(loop))
    await settled(away.node)
    away.begin()
    await _brought(away, "x", "y")
    first = await asking
    assert is_relayed(await next_of(loop))
    await away.end()
    await messages.poll_inbox_from_db("z", limit=1)  # one of them is claimed for its holder
    assert (await found(away.node, first)).state == MessageState.DELIVERED
    await messages.close()
    async with there.node("other") as other:
        await other.run_once()
        assert sorted(bodies(await other.messages.poll_inbox_from_db("z"))) == ["x", "y"]
    await loop.aclose()


async def test_no_lease_outlasts_a_machine_that_was_suspended(
    away: Away, sent: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = await away.leased_loop(len(sent))
    awake = away.node.clock.started
    monkeypatch.setattr(away.node.clock, "started", lambda: awake() + 60)  # the other clock stood still
    assert away.node.messages._leases.until("z") is None
    await loop.aclose()


async def test_an_ack_of_a_message_of_another_process_is_not_spooled_after_its_lease(away: Away) -> None:
    messages = away.node.messages
    await messages.send("y", "x")
    (claimed,) = await messages.poll_inbox_from_db("y")
    messages.hand_over(claimed)  # as the HTTP API does
    await change(away.node, [claimed], claim_until_ms=1)
    late = await found(away.node, claimed)
    away.begin()
    with pytest.raises(DatabaseUnavailable):
        await messages.ack(late)
    assert not away.node.store.is_spooling
