"""The relay buffer: what it keeps, in which order it hands it out, and for whom it is held."""

from __future__ import annotations

from tests.support.messages.messaging import bodies
from tests.support.nodes.clocks import Clock
from vox_mesh import Message
from vox_mesh.messages.relay_buffer import MAX_KEPT, RelayBuffer


class CountingListener:
    """A client that counts how often there was a message."""

    def __init__(self) -> None:
        self.times = 0

    def nudge(self, message_uuid: str | None = None) -> None:
        """There is a message."""
        self.times += 1

    def has_pair(self, pair: tuple[str, str]) -> bool:
        """It has none."""
        return False


def receiving(clock: Clock | None = None) -> tuple[RelayBuffer, CountingListener]:
    """Arrivals where someone receives as z."""
    arrivals, nudged = RelayBuffer(Clock() if clock is None else clock), CountingListener()
    arrivals.join(["z"], nudged)
    return arrivals, nudged


async def test_what_is_brought_waits_in_the_order_in_which_to_hand_it_out(sent: list[Message]) -> None:
    arrivals, nudged = receiving()
    arrivals.add(list(reversed(sent)))
    assert nudged.times == 3
    assert bodies(arrivals.deliverable(["z"], set(), nudged)) == ["a0", "b0", "a1"]
    assert arrivals.deliverable(["y"], set(), nudged) == []


async def test_what_no_one_receives_here_is_not_kept(sent: list[Message]) -> None:
    arrivals = RelayBuffer(Clock())
    arrivals.add(sent)
    assert arrivals._kept == {}
    arrivals, nudged = receiving()
    arrivals.add(sent)
    arrivals.leave(["z"], nudged)
    assert arrivals._kept == {}
    assert arrivals.names == []


async def test_brought_twice_it_is_kept_once_and_handed_out_once(sent: list[Message]) -> None:
    arrivals, nudged = receiving()
    arrivals.add(sent)
    arrivals.add(sent)
    assert len(arrivals._kept) == 3
    arrivals.mark_handed_out(sent[0])
    arrivals.add(sent)
    assert bodies(arrivals.deliverable(["z"], set(), nudged)) == ["b0", "a1"]
    arrivals.mark_done(sent[0])
    arrivals.add(sent)
    assert arrivals.is_done(sent[0])
    assert "a0" not in bodies(arrivals.deliverable(["z"], set(), nudged))


async def test_what_was_claimed_from_the_database_is_dropped(sent: list[Message]) -> None:
    arrivals, nudged = receiving()
    arrivals.add(sent)
    arrivals.drop_claimed(sent[:2])
    assert bodies(arrivals.deliverable(["z"], set(), nudged)) == ["a1"]


async def test_nothing_overtakes_what_was_not_seen_here(sent: list[Message]) -> None:
    first, other, third = sent
    fourth = third._replace(message_uuid="4", payload='"a2"', hlc=third.hlc + "~", after=third.message_uuid)
    third = third._replace(after=first.message_uuid)
    arrivals, nudged = receiving()
    arrivals.add([other, third, fourth])
    assert bodies(arrivals.deliverable(["z"], set(), nudged)) == ["b0"]
    assert bodies(arrivals.deliverable(["z"], {first.message_uuid}, nudged)) == ["b0", "a1", "a2"]
    arrivals.mark_handed_out(first)
    assert bodies(arrivals.deliverable(["z"], set(), nudged)) == ["b0", "a1", "a2"]
    arrivals.mark_not_done(first)  # it was given back, and comes again
    assert bodies(arrivals.deliverable(["z"], set(), nudged)) == ["b0"]


async def test_one_given_back_holds_back_its_pair_until_its_time_comes(sent: list[Message]) -> None:
    clock = Clock()
    arrivals, nudged = receiving(clock)
    arrivals.add(sent)
    arrivals.mark_handed_out(sent[0])
    arrivals.reject(sent[0], 5)
    assert bodies(arrivals.deliverable(["z"], set(), nudged)) == ["b0"]
    clock.now += 5
    assert bodies(arrivals.deliverable(["z"], set(), nudged)) == ["a0", "b0", "a1"]


async def test_no_more_is_kept_than_fits(sent: list[Message]) -> None:
    arrivals, nudged = receiving()
    many = [sent[0]._replace(message_uuid=str(number)) for number in range(MAX_KEPT + 10)]
    arrivals.add(many)
    assert len(arrivals._kept) == MAX_KEPT
    arrivals.leave(["z"], nudged)
    arrivals.join(["z"], nudged)
    large = [
        each._replace(payload="x" * 256 * 1024, message_uuid=f"l{number}") for number, each in enumerate(many)
    ]
    arrivals.add(large)
    assert len(arrivals._kept) == 64
    for message in many:
        arrivals.reject(message, 1_000)  # of what is not kept, nothing is remembered
    assert len(arrivals._retry_at) == 0


async def test_the_memory_of_what_was_handed_out_is_bounded(sent: list[Message]) -> None:
    arrivals, _ = receiving()
    for number in range(20_000):
        arrivals.mark_handed_out(sent[0]._replace(message_uuid=str(number)))
    assert len(arrivals._seen) <= 16_384


# --- holds ---------------------------------------------------------------------------------------


async def test_a_hold_that_a_claim_covers_lasts_as_long_as_the_claim_is_renewed(sent: list[Message]) -> None:
    clock = Clock()
    holds = RelayBuffer(clock).holds
    message = sent[0]._replace(claim_owner="arrival:r#1:x")
    holds.begin(message, clock.now + 120, clock.now + 59)
    holds.cover([message._replace(claim_owner="r#1:y")], clock.now + 120, but=())
    clock.now += 100
    assert holds.renew(message, clock.now + 120, None)  # another node receives: the inbox is not leased
    clock.now += 100
    assert holds.find(message) is not None


async def test_no_message_overtakes_one_whose_hold_has_lapsed(sent: list[Message]) -> None:
    clock = Clock()
    arrivals, nudged = receiving(clock)
    arrivals.add(sent)
    first = sent[0]._replace(claim_owner="arrival:r#1:x")
    arrivals.mark_handed_out(first)
    arrivals.holds.begin(first, clock.now + 15, clock.now + 60)
    assert bodies(arrivals.deliverable(["z"], set(), nudged)) == ["b0", "a1"]
    clock.now += 15
    assert bodies(arrivals.deliverable(["z"], set(), nudged)) == ["a0", "b0", "a1"]
