"""Messages are pruned by age and number, and not while something needs them."""

from __future__ import annotations

from tests.support.messages.messaging import bodies, change, found
from vox_mesh import Message
from vox_mesh.node import MeshNode

_DAY_MS = 86_400_000


async def prune(node: MeshNode) -> dict[str, tuple[int, int]]:
    """Prune all that is due, which is what was planned: how much of each subject went, and was needed."""
    await node.store.synced()
    planned = await node.retention.preview()
    done = await node.retention.prune_all()
    assert planned == done
    await node.store.synced()
    return {each.subject: (each.pruned, each.needed) for each in done if each.pruned or each.needed}


async def ended(node: MeshNode, ago_ms: int, *messages: Message) -> None:
    """Have these have ended so long ago."""
    await change(node, messages, ended_ms=await node.nodes.now_ms() - ago_ms)


async def test_what_was_acknowledged_is_pruned_after_its_time_and_not_before(node: MeshNode) -> None:
    sent = [await node.messages.send("z", number, sender="a") for number in range(4)]
    await node.messages.ack(*await node.messages.inbox("z"))
    await ended(node, _DAY_MS + 1, *sent[:2])
    await ended(node, _DAY_MS - 60_000, *sent[2:])
    await prune(node)
    assert bodies(await node.messages.queries.listed()) == [3, 2]


async def test_dead_letters_are_kept_for_longer(node: MeshNode) -> None:
    dead = [await node.messages.send("z", number, sender=f"s{number}", max_attempts=1) for number in range(2)]
    await node.messages.send("y", 2, sender="a")
    for held in await node.messages.inbox("z"):
        await node.messages.nack(held)
    await ended(node, 2 * _DAY_MS, dead[0])
    await ended(node, 30 * _DAY_MS + 1, dead[1])
    await prune(node)
    assert bodies(await node.messages.queries.listed()) == [2, 0]


async def test_no_position_is_ever_given_out_twice(node: MeshNode) -> None:
    sent = [await node.messages.send("z", number, sender="a") for number in range(3)]
    last = (await found(node, sent[-1])).position
    await node.messages.ack(*await node.messages.inbox("z"))
    await ended(node, 2 * _DAY_MS, *sent)
    await prune(node)
    after = await node.messages.send("z", "after", sender="a")
    assert (await found(node, after)).position > last
    assert bodies(await node.messages.queries.peek(["z"], after=last)) == ["after"]
    await prune(node)
    assert bodies(await node.messages.queries.listed()) == ["after"]


async def test_a_thread_stays_while_a_message_of_it_can_be_delivered(node: MeshNode) -> None:
    first = await node.messages.send("z", "question", sender="a", thread="t")
    await node.messages.ack(*await node.messages.inbox("z"))
    await node.messages.send("a", "answer", sender="z", thread="t")
    await ended(node, 2 * _DAY_MS, first)
    assert await prune(node) == {"messages": (0, 1)}
    await node.messages.ack(*await node.messages.inbox("a"))
    assert await prune(node) == {"messages": (1, 0)}


async def test_a_message_stays_while_its_answer_can_be_delivered(node: MeshNode) -> None:
    first = await node.messages.send("z", "question", sender="a")
    await node.messages.ack(*await node.messages.inbox("z"))
    await node.messages.send("a", "answer", sender="z", reply_to=first.message_uuid)
    await ended(node, 2 * _DAY_MS, first)
    assert await prune(node) == {"messages": (0, 1)}


async def test_a_policy_bounds_the_messages_of_a_type(node: MeshNode) -> None:
    for number in range(4):
        await node.messages.send("z", number, sender="a", msg_type="event")
        await node.messages.send("z", 10 + number, sender="a")
    await node.messages.ack(*await node.messages.inbox("z", limit=100))
    await node.messages.send("z", "open", sender="a")
    await node.retention.set("messages", kind="event", age_ms=None, max_rows=1)
    assert await prune(node) == {"messages": (3, 0)}
    assert bodies(await node.messages.queries.listed()) == ["open", 13, 3, 12, 11, 10]
