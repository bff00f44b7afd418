"""The outbox: what it brings where, when it gives up, and that nothing overtakes what was left behind."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import pytest

from tests.support.messages.messaging import PATIENCE_S, bodies, change
from tests.support.nodes.clocks import Clock
from tests.support.oplog.authoring import RestartableNodes
from vox_mesh import Auto, Local, Message, Remote
from vox_mesh.errors import RelayFailed, RelayRefused
from vox_mesh.messages.relay_outbound import Outbox, Peer, Route
from vox_mesh.node import MeshNode
from vox_mesh.store.script import new_key

_FAR = "http://127.0.0.1:1"
_HOUR_S = 3_600.0


class Trip(NamedTuple):
    """What was to be brought in one go."""

    node_id: str
    said: list[object]
    stored: bool


class ScriptedCourier:
    """Brings nothing anywhere; each trip ends as configured, in this order, and then well."""

    def __init__(self) -> None:
        self.trips: list[Trip] = []
        self.after: dict[str, str | None] = {}
        self.ends: deque[Exception | None] = deque()
        self.refused: set[object] = set()
        self.is_closed = False
        self.follows = False
        self.is_under_way = asyncio.Event()
        self._may_go = asyncio.Event()
        self._may_go.set()

    @property
    def is_held(self) -> bool:
        """Whether trips take until they are released."""
        return not self._may_go.is_set()

    def hold(self) -> None:
        """Have trips take until they are released."""
        self._may_go.clear()
        self.is_under_way.clear()

    def release(self) -> None:
        """Let them end."""
        self._may_go.set()

    async def deliver(self, peer: Peer, messages: Sequence[Message], *, stored: bool) -> bool:
        """Make the trip."""
        said = bodies(messages)
        self.trips.append(Trip(peer.node_id, said, stored))
        self.after |= {message.message_uuid: message.after for message in messages}
        self.is_under_way.set()
        await self._may_go.wait()
        end = self.ends.popleft() if self.ends else None
        if end is not None:
            raise end
        if self.refused.intersection(said):
            raise RelayRefused("not that one")
        return self.follows

    async def close(self) -> None:
        """End."""
        self.is_closed = True


class Post:
    """An outbox of a real node, where everything that leaves it goes by the scripted courier."""

    def __init__(self, node: MeshNode, clock: Clock, *, spooling: bool = False) -> None:
        self.node = node
        self.clock = clock
        self.courier = ScriptedCourier()
        self.pauses: list[float] = []
        self.outbox = Outbox(
            self.courier,
            node.messages.directory,
            node.messages.relay_buffer,
            monotonic=clock,
            spooling=spooling,
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.now += seconds

    async def message(self, body: object, to: str = "z") -> Message:
        """A message that is stored, and was offered to no one."""
        return await self.node.messages.send(to, body, sender="a")

    async def offer(self, *said: object, stored: bool = True, to: str = "z", route: Route = Auto) -> None:
        """Offer messages, one after another, and wait until all that can be brought now is."""
        for message in [await self.message(body, to) for body in said]:
            self.outbox.offer(message, stored=stored, route=route)
        await self.idle()

    async def idle(self) -> None:
        """Wait until nothing is under way that does not wait for the courier."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                lanes = () if self.courier.is_held else self.outbox._queues.values()
                tasks = (self.outbox._resolving, *(lane.task for lane in lanes))
                under_way = [task for task in tasks if task and not task.done()]
                if not under_way:
                    break
                await asyncio.wait(under_way)
            if self.courier.is_held:
                await self.courier.is_under_way.wait()

    @property
    def brought(self) -> list[list[object]]:
        """What was said on each trip."""
        return [trip.said for trip in self.courier.trips]


@pytest.fixture
async def post(there: RestartableNodes, local: MeshNode) -> AsyncIterator[Post]:
    """The outbox of one node, and another node at which z and y receive."""
    async with there.node("far") as far:
        local.messages.directory.token_id = "shared"
        far.presence.announce(_FAR, "shared")
        await far.run_once()
        await far.messages.announce(["z", "y"])
        post = Post(local, Clock())
        yield post
        post.courier.release()
        await post.outbox.close()
        assert post.courier.is_closed


async def test_a_message_is_brought_to_the_node_where_it_is_received(post: Post) -> None:
    await post.offer("one")
    await post.offer("two", stored=False)
    assert post.courier.trips == [Trip("far", ["one"], True), Trip("far", ["two"], False)]
    assert post.outbox.counts == {"brought": 2}


async def test_a_message_for_nowhere_or_by_the_database_alone_is_not_brought(post: Post) -> None:
    await post.offer("for an unknown agent", to="unknown")
    await post.offer("local", route=Local)
    await post.offer("nowhere", route=Remote("http://127.0.0.1:2"))
    assert post.brought == []
    await post.offer("there", to="unknown", route=Remote(_FAR))
    assert post.brought == [["there"]]


async def test_it_is_tried_three_times_with_longer_pauses_then_the_node_is_left_alone_for_a_while(
    post: Post,
) -> None:
    post.courier.ends.extend(RelayFailed("no answer") for _ in range(3))
    await post.offer("given up")
    assert post.brought == [["given up"]] * 3
    assert post.pauses == [0.5, 1.0]
    await post.offer("left alone")
    assert len(post.courier.trips) == 3
    post.clock.now += 2.0
    await post.offer("brought again")
    assert post.brought[3:] == [["brought again"]]
    assert post.outbox.counts == {"given_up": 1, "skipped": 1, "brought": 1}


async def test_an_exception_of_a_library_is_a_failed_delivery_and_the_others_are_brought(post: Post) -> None:
    fault = AttributeError("'NoneType' object has no attribute 'getpeername'")
    post.courier.ends.extend([fault, None])
    post.courier.hold()
    await post.offer("first")
    for body in ("second", "third"):
        post.outbox.offer(await post.message(body), stored=True)
    post.courier.release()
    await post.idle()
    assert post.brought == [["first"], ["first"], ["second", "third"]]
    assert post.outbox.counts == {"brought": 3}
    assert post.outbox._faults.counts == {"relay": 1}


async def test_where_a_receiver_is_may_fail_to_be_found_and_the_next_message_is_brought(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(_: str) -> Peer | None:
        raise AttributeError("from a library")

    with monkeypatch.context() as broken:
        broken.setattr(post.node.messages.directory, "find_receiver", lost)
        await post.offer("left to be found")
    await post.offer("brought")
    assert post.brought == [["brought"]]
    assert post.outbox.counts == {"skipped": 1, "brought": 1}


async def test_one_that_fails_and_then_succeeds_is_brought_once(post: Post) -> None:
    post.courier.ends.extend([RelayFailed("no answer"), None])
    await post.offer("at last")
    assert post.pauses == [0.5]
    assert post.outbox.counts == {"brought": 1}


async def test_who_is_behind_leaves_what_is_stored_to_be_found(post: Post) -> None:
    post.courier.hold()
    await post.offer(*range(100))
    post.courier.release()
    await post.idle()
    counts = post.outbox.counts
    assert counts["brought"] + counts["skipped"] == 100
    assert counts["skipped"] > 80
    said = [each for trip in post.brought for each in trip]
    assert said == sorted(said, key=lambda each: int(str(each)))


async def test_what_is_in_the_spool_is_brought_however_many_there_are(post: Post) -> None:
    post.courier.hold()
    await post.offer(*range(100), stored=False)
    post.courier.release()
    await post.idle()
    assert [each for trip in post.brought for each in trip] == list(range(100))
    assert all(len(trip) <= 64 for trip in post.brought)


async def test_what_is_stored_and_what_is_not_never_go_together(post: Post) -> None:
    post.courier.hold()
    await post.offer("stored")
    await post.offer(1, 2, stored=False)
    post.courier.release()
    await post.idle()
    assert [(trip.said, trip.stored) for trip in post.courier.trips] == [(["stored"], True), ([1, 2], False)]


async def test_large_messages_go_in_several_trips(post: Post) -> None:
    post.courier.hold()
    await post.offer(*["x" * 200_000] * 5, stored=False)
    post.courier.release()
    await post.idle()
    assert max(sum(len(str(each)) for each in trip) for trip in post.brought) <= 512 * 1024
    assert sum(len(trip) for trip in post.brought) == 5


async def test_of_what_is_refused_together_each_is_brought_by_itself(post: Post) -> None:
    post.courier.hold()
    await post.offer("under way", stored=False)
    post.courier.refused = {"bad"}
    await post.offer("good", to="y", stored=False)
    await post.offer("bad", stored=False)
    await post.offer("better", to="y", stored=False)
    post.courier.release()
    await post.idle()
    assert post.brought[1:] == [["good", "bad", "better"], ["good"], ["bad"], ["better"]]
    assert post.outbox.counts == {"brought": 3, "refused": 1}
    assert post.pauses == []  # what is refused is not tried again


async def test_nothing_in_the_spool_overtakes_one_that_was_refused(post: Post) -> None:
    post.courier.hold()
    await post.offer("under way", stored=False)
    post.courier.refused = {"bad"}
    await post.offer("bad", "behind it", stored=False)
    post.courier.release()
    await post.idle()
    await post.offer("later", stored=False)
    taken = [trip for trip in post.brought if "bad" not in trip]
    assert taken == [["under way"]]
    assert post.outbox.counts == {"brought": 1, "refused": 1, "skipped": 2}


async def test_nothing_in_the_spool_overtakes_one_that_was_refused_alone(post: Post) -> None:
    post.courier.hold()
    post.courier.refused = {"bad"}
    await post.offer("bad", stored=False)
    await post.offer("behind it", stored=False)
    post.courier.release()
    await post.idle()
    assert ["behind it"] not in post.brought


async def test_nothing_in_the_spool_overtakes_one_that_could_not_be_brought(post: Post) -> None:
    post.courier.ends.extend(RelayFailed("no answer") for _ in range(3))
    await post.offer("given up", stored=False)
    post.clock.now += 10
    await post.offer("overtaking", stored=False)
    await post.offer("of another receiver", to="y", stored=False)
    assert post.brought[3:] == [["of another receiver"]]
    await post.offer("stored")  # so all that was in the spool is
    await post.offer("free", stored=False)
    assert post.brought[4:] == [["stored"], ["free"]]


async def test_each_message_tells_which_one_was_sent_before_it_in_its_pair_brought_or_not(post: Post) -> None:
    first, second, other, third = [
        await post.message(body, to) for body, to in ((1, "z"), (2, "z"), (3, "y"), (4, "z"))
    ]
    for message, ending in ((first, None), (second, RelayFailed("no answer")), (other, None), (third, None)):
        if ending is not None:
            post.courier.ends.extend([ending] * 3)
        post.clock.now += 10
        post.outbox.offer(message, stored=True)
        await post.idle()
    assert post.courier.after == {
        first.message_uuid: None,
        second.message_uuid: first.message_uuid,
        other.message_uuid: None,
        third.message_uuid: second.message_uuid,
    }


async def test_a_message_that_may_be_stored_is_not_overtaken_by_the_next_one(
    there: RestartableNodes, post: Post
) -> None:
    messages, key = post.node.messages, new_key()
    messages.relay_by(post.outbox)
    await messages.send("z", 1, sender="a")
    there.gate.hold()
    doubtful = asyncio.create_task(messages.send("z", 2, sender="a", key=key))
    await there.gate.arrival()
    doubtful.cancel()
    there.gate.release()
    await asyncio.wait([doubtful])
    assert doubtful.cancelled()
    third = await messages.send("z", 3, sender="a")
    await post.idle()
    assert post.courier.after[third.message_uuid] == key


async def test_what_an_earlier_process_left_in_the_spool_is_not_overtaken(post: Post) -> None:
    later = Post(post.node, post.clock, spooling=True)
    await later.offer("overtaking", stored=False)
    assert later.brought == []
    await later.offer("stored")
    await later.offer("free", stored=False)
    assert later.brought == [["stored"], ["free"]]
    await later.outbox.close()


async def test_a_message_for_someone_here_is_brought_without_a_courier(post: Post) -> None:
    receiving = post.node.messages.receive("here")
    post.node.messages.relay_by(post.outbox)
    asking = asyncio.create_task(anext(receiving))
    await post.offer("hear", to="here")
    async with asyncio.timeout(PATIENCE_S):
        assert (await asking).body == "hear"
    assert post.brought == []
    await receiving.aclose()


async def test_sending_never_waits_for_the_courier(post: Post) -> None:
    post.node.messages.relay_by(post.outbox)
    post.courier.hold()
    async with asyncio.timeout(PATIENCE_S):
        for number in range(20):
            await post.node.messages.send("z", number, sender="a")
    assert len(await post.node.messages.queries.peek(["z"])) == 20


# --- nodes that follow the commits -------------------------------------------------------------------


async def test_what_a_node_that_follows_the_commits_has_claimed_is_not_relayed_to_it(post: Post) -> None:
    post.courier.follows = True
    await post.offer("first")
    found = await post.message("found")
    await change(post.node, [found], claim_until_ms=2**52)
    post.outbox.offer(found, stored=True)
    await post.offer("not found")
    assert post.brought == [["first"], ["not found"]]
    assert post.outbox.counts["skipped"] == 1
    assert post.pauses, "it was given no time to find them"


async def test_what_is_not_stored_is_relayed_at_once_to_a_node_that_follows_the_commits(post: Post) -> None:
    post.courier.follows = True
    await post.offer("first")
    await post.offer("spooled", stored=False)
    assert post.brought == [["first"], ["spooled"]]
    assert post.pauses == []


async def test_a_node_that_no_longer_follows_the_commits_is_relayed_to_at_once(post: Post) -> None:
    post.courier.follows = True
    await post.offer("first")
    post.courier.follows = False
    post.clock.now += _HOUR_S
    await post.offer("second")
    await post.offer("third")
    assert post.brought == [["first"], ["second"], ["third"]]
    assert post.pauses == []


async def test_where_all_nodes_follow_the_commits_nothing_that_is_stored_is_relayed(post: Post) -> None:
    outbox = Outbox(
        post.courier,
        post.node.messages.directory,
        post.node.messages.relay_buffer,
        monotonic=post.clock,
        spooling=False,
        is_followed=True,
    )
    outbox.offer(await post.message("stored"), stored=True)
    outbox.offer(await post.message("to that node"), stored=True, route=Remote(_FAR))
    post.outbox = outbox
    await post.idle()
    assert post.brought == [["to that node"]]
