"""Arrivals: what the relay brought is handed out only while the database can't be asked, and then once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest

from tests.support.authoring import Scene
from tests.support.clocks import Clock
from tests.support.messaging import PATIENCE_S, bodies, found, next_of, settled, take
from vox_mesh import Message
from vox_mesh.errors import Unreachable
from vox_mesh.messages.arrivals import MAX_KEPT, Arrivals
from vox_mesh.messages.claims import is_brought
from vox_mesh.model.messages import MessageState
from vox_mesh.node import MeshNode
from vox_mesh.store.breaker import Breaker

_TRIES = 10_000


class Nudged:
    """Somebody who counts how often there was a message."""

    def __init__(self) -> None:
        self.times = 0

    def nudge(self, message_uuid: str | None = None) -> None:
        """There is a message."""
        self.times += 1

    def has_pair(self, pair: tuple[str, str]) -> bool:
        """It has none."""
        return False


@pytest.fixture
async def sent(local: MeshNode) -> list[Message]:
    """Messages to z, two by a and one by b."""
    return [await local.bus.send("z", body, sender=body[0]) for body in ("a0", "b0", "a1")]


def receiving(clock: Clock | None = None) -> tuple[Arrivals, Nudged]:
    """Arrivals where somebody receives as z."""
    arrivals, nudged = Arrivals(Clock() if clock is None else clock), Nudged()
    arrivals.join(["z"], nudged)
    return arrivals, nudged


async def test_what_is_brought_waits_in_the_order_in_which_to_hand_it_out(sent: list[Message]) -> None:
    arrivals, nudged = receiving()
    arrivals.bring(list(reversed(sent)))
    assert nudged.times == 3
    assert bodies(arrivals.waiting(["z"], set(), nudged)) == ["a0", "b0", "a1"]
    assert arrivals.waiting(["y"], set(), nudged) == []


async def test_what_nobody_receives_here_is_not_kept(sent: list[Message]) -> None:
    arrivals = Arrivals(Clock())
    arrivals.bring(sent)
    assert arrivals._kept == {}
    arrivals, nudged = receiving()
    arrivals.bring(sent)
    arrivals.leave(["z"], nudged)
    assert arrivals._kept == {}
    assert arrivals.names == []


async def test_brought_twice_it_is_kept_once_and_handed_out_once(sent: list[Message]) -> None:
    arrivals, nudged = receiving()
    arrivals.bring(sent)
    arrivals.bring(sent)
    assert len(arrivals._kept) == 3
    arrivals.handed_out(sent[0])
    arrivals.bring(sent)
    assert bodies(arrivals.waiting(["z"], set(), nudged)) == ["b0", "a1"]
    arrivals.done(sent[0])
    arrivals.bring(sent)
    assert arrivals.is_done(sent[0])
    assert "a0" not in bodies(arrivals.waiting(["z"], set(), nudged))


async def test_what_was_claimed_from_the_database_is_dropped(sent: list[Message]) -> None:
    arrivals, nudged = receiving()
    arrivals.bring(sent)
    arrivals.found(sent[:2])
    assert bodies(arrivals.waiting(["z"], set(), nudged)) == ["a1"]


async def test_nothing_overtakes_what_was_not_seen_here(sent: list[Message]) -> None:
    first, other, third = sent
    fourth = third._replace(message_uuid="4", payload='"a2"', hlc=third.hlc + "~", after=third.message_uuid)
    third = third._replace(after=first.message_uuid)
    arrivals, nudged = receiving()
    arrivals.bring([other, third, fourth])
    assert bodies(arrivals.waiting(["z"], set(), nudged)) == ["b0"]
    assert bodies(arrivals.waiting(["z"], {first.message_uuid}, nudged)) == ["b0", "a1", "a2"]
    arrivals.handed_out(first)
    assert bodies(arrivals.waiting(["z"], set(), nudged)) == ["b0", "a1", "a2"]
    arrivals.not_done(first)  # it was given back, and comes again
    assert bodies(arrivals.waiting(["z"], set(), nudged)) == ["b0"]


async def test_one_given_back_holds_back_its_pair_until_its_time_comes(sent: list[Message]) -> None:
    clock = Clock()
    arrivals, nudged = receiving(clock)
    arrivals.bring(sent)
    arrivals.handed_out(sent[0])
    arrivals.give_back(sent[0], 5)
    assert bodies(arrivals.waiting(["z"], set(), nudged)) == ["b0"]
    clock.now += 5
    assert bodies(arrivals.waiting(["z"], set(), nudged)) == ["a0", "b0", "a1"]


async def test_no_more_is_kept_than_fits(sent: list[Message]) -> None:
    arrivals, nudged = receiving()
    many = [sent[0]._replace(message_uuid=str(number)) for number in range(MAX_KEPT + 10)]
    arrivals.bring(many)
    assert len(arrivals._kept) == MAX_KEPT
    arrivals.leave(["z"], nudged)
    arrivals.join(["z"], nudged)
    large = [
        each._replace(payload="x" * 256 * 1024, message_uuid=f"l{number}") for number, each in enumerate(many)
    ]
    arrivals.bring(large)
    assert len(arrivals._kept) == 64
    for message in many:
        arrivals.give_back(message, 1_000)  # of what is not kept, nothing is remembered
    assert len(arrivals._waiting) == 0


async def test_the_memory_of_what_was_handed_out_is_bounded(sent: list[Message]) -> None:
    arrivals, _ = receiving()
    for number in range(20_000):
        arrivals.handed_out(sent[0]._replace(message_uuid=str(number)))
    assert len(arrivals._seen) <= 16_384


# --- while the database is away ---------------------------------------------------------------------


class Away:
    """A node whose database can be away."""

    def __init__(self, scene: Scene, node: MeshNode) -> None:
        self._gate = scene.gate
        self.node = node

    async def leased_loop(self, count: int) -> AsyncGenerator[Message, None]:
        """A loop that has received so many messages as z, with a lease of that inbox."""
        loop = self.node.bus.receive("z")
        await take(self.node, loop, count)
        await settled(self.node)
        await self.node.bus.lease_inboxes()
        assert self.node.bus._leases.until("z") is not None
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
async def away(there: Scene, tmp_path: Path) -> AsyncIterator[Away]:
    """A node with a spool and a breaker."""
    breaker = Breaker(time.monotonic, rest_s=0.02)
    async with there.node("r", spool=tmp_path / "spool.db", breaker=breaker) as node:
        await node.run_once()
        yield Away(there, node)


async def test_while_the_database_is_away_arrival_is_the_claim_and_the_ack_waits(
    away: Away, sent: list[Message]
) -> None:
    bus = away.node.bus
    loop = await away.leased_loop(len(sent))
    away.begin()
    more = [await bus.send("z", body, sender="a") for body in ("late", "later")]
    assert [each.state for each in more] == [MessageState.SPOOLED] * 2
    bus.arrivals.bring(more)
    for body in ("late", "later"):
        message = await next_of(loop)
        assert (message.body, message.delivery_attempts) == (body, 1)
        assert is_brought(message)
        await bus.ack(message)
    await away.end()
    assert [(await found(away.node, each)).state for each in more] == [MessageState.ACKED] * 2
    after = await bus.send("z", "after", sender="a")
    assert (await next_of(loop)).message_uuid == after.message_uuid  # and those not once more
    await loop.aclose()
    await settled(away.node)


async def test_one_that_is_worked_on_when_the_database_comes_back_is_not_handed_out_again(
    away: Away, sent: list[Message]
) -> None:
    bus = away.node.bus
    loop = await away.leased_loop(len(sent))
    asking = asyncio.create_task(next_of(loop))
    await settled(away.node)
    away.begin()
    late = sent[0]._replace(message_uuid="01ARZ3NDEKTSV4RRFFQ69G5FAV", payload='"late"')
    signature = away.node.identity.key.sign(late.signed_text(*away.node.store.tenant[:2]))
    late = late._replace(signature=signature)
    bus.arrivals.bring([late])
    message = await asking
    assert is_brought(message)
    await away.end()
    asking = asyncio.create_task(next_of(loop))
    await bus.ack(message)
    after = await bus.send("z", "after", sender="a")
    assert (await asking).message_uuid == after.message_uuid
    await loop.aclose()
    await settled(away.node)
