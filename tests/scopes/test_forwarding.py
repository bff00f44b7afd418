"""Messages between scopes: stored once where they are received, or dead letters where they were sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.scopes.conftest import SCOPES, settle
from tools.sqld import Server
from vox_mesh import Settings
from vox_mesh.cli.node.served_scopes import forwarder_of, open_nodes
from vox_mesh.errors import BadValue
from vox_mesh.messages.forwarder import ARRIVALS_MS, Forwarder
from vox_mesh.messages.outbound import SQL
from vox_mesh.messages.scripts import send_script
from vox_mesh.model.messages.records import Message
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.runtime.scopes import settings_of_scopes
from vox_mesh.store.script import Script, Statement, new_key


class Pair:
    """Two scopes that trust each other, and what forwards between them when a test says so."""

    def __init__(self, west: MeshNode, east: MeshNode, known: Sequence[str] = SCOPES[:2]) -> None:
        self.west, self.east = west, east
        self.monotonic = 0.0
        injected = Dependencies(monotonic=lambda: self.monotonic)
        self.to_east: Forwarder = forwarder_of(west, [west, east], known, injected)
        self.to_west: Forwarder = forwarder_of(east, [west, east], known, injected)

    async def trust(self) -> None:
        """Let each send to the other."""
        await self.east.roles.trust_scope("west", await self.west.ownership.key())
        await self.west.roles.trust_scope("east", await self.east.ownership.key())

    async def state(self, message: Message) -> tuple[str, str | None]:
        """The state of a message where it was sent, and why it is a dead letter."""
        found = await self.west.messages.queries.get(message.message_uuid)
        return found.state, found.ended_reason


@asynccontextmanager
async def _pair(settings: Settings, *, is_trusting: bool = True) -> AsyncIterator[Pair]:
    async with open_nodes(settings_of_scopes(settings, SCOPES[:2])) as (west, east):
        for mesh in (west, east):
            await mesh.supervisor.stop("forwarder")  # the test says when
        await settle(west, east)
        pair = Pair(west, east)
        if is_trusting:
            await pair.trust()
        yield pair


@pytest.fixture
async def pair(on_files: Settings) -> AsyncIterator[Pair]:
    """Two scopes in files."""
    async with _pair(on_files) as pair:
        yield pair


async def _received(mesh: MeshNode, agent: str) -> list[Message]:
    """Receive and acknowledge all that waits for an agent."""
    found = await mesh.messages.poll_inbox_from_db(agent)
    if found:
        await mesh.messages.ack(*found)
    return found


async def test_a_message_to_another_server_is_received_and_answered(on_servers: Settings) -> None:
    async with open_nodes(settings_of_scopes(on_servers, SCOPES)) as meshes:
        west, _, north, _ = meshes
        await settle(west, north)
        await north.roles.trust_scope("west", await west.ownership.key())
        await west.roles.trust_scope("north", await north.ownership.key())
        sent = await west.messages.send("ben@north", {"build": 7}, sender="ann", priority=3, thread="t")
        async for message in north.messages.receive("ben"):
            assert (message.sender_agent, message.body) == ("ann@west", {"build": 7})
            assert (message.message_uuid, message.priority) == (sent.message_uuid, 3)
            await north.messages.reply(message, "green")
            await north.messages.ack(message)
            break
        async for answer in west.messages.receive("ann"):
            assert (answer.sender_agent, answer.body, answer.reply_to) == (
                "ben@north",
                "green",
                sent.message_uuid,
            )
            await west.messages.ack(answer)
            break
        assert await west.messages.wait_for_ack(sent, 10)


async def test_a_scope_that_is_not_trusted_is_refused(on_files: Settings) -> None:
    async with _pair(on_files, is_trusting=False) as pair:
        first = await pair.west.messages.send("ben@east", 1, sender="ann")
        assert await pair.to_east.run_once() == 0
        assert await pair.state(first) == ("dead", "refused by scope east: not trusted")
        await pair.east.roles.trust_scope("west", pair.east.identity.key.public)  # not that of west's owner
        other = await pair.west.messages.send("ben@east", 2, sender="ann")
        await pair.to_east.run_once()
        assert "another owner than the trusted one" in ((await pair.state(other))[1] or "")
        assert await _received(pair.east, "ben") == []


async def test_trust_that_is_withdrawn_meanwhile_counts(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = await pair.west.messages.send("ben@east", 1, sender="ann")
    learn = pair.east.messages.queries.learn_time

    async def withdraw() -> None:  # after the trust was read, before the message is stored
        monkeypatch.setattr(pair.east.messages.queries, "learn_time", learn)
        await pair.east.roles.trust_scope("west", None)

    monkeypatch.setattr(pair.east.messages.queries, "learn_time", withdraw)
    assert await pair.to_east.run_once() == 0
    assert (await pair.state(sent))[0] == "stored"
    pair.monotonic += 60
    await pair.to_east.run_once()
    assert await pair.state(sent) == ("dead", "refused by scope east: not trusted")
    assert await _received(pair.east, "ben") == []


async def test_planted_trust_has_no_effect(on_files: Settings) -> None:
    async with _pair(on_files, is_trusting=False) as pair:
        key = await pair.west.ownership.key()
        planted = (
            "INSERT INTO agent_oplog (scope_id, repository_id, node_id, seq, op_id, kind, hlc, causal_deps,"
            " payload, prev, hash, signature, accepted) SELECT scope_id, repository_id, node_id, 9999,"
            " '01ARZ3NDEKTSV4RRFFQ69G5FAV', 'TrustScope', '9' || substr(hlc, 2), '[]',"
            " json_object('owner_key', ?1, 'scope', 'west'), hash, hash, signature, 1"
            " FROM agent_oplog WHERE kind = 'InitialiseMesh'"
        )
        await pair.east.store.write(Script(Statement(planted, (key,))))
        sent = await pair.west.messages.send("ben@east", 1, sender="ann")
        await pair.to_east.run_once()
        assert await pair.state(sent) == ("dead", "refused by scope east: not trusted")


async def test_an_unknown_scope_is_refused_or_becomes_a_dead_letter(pair: Pair) -> None:
    with pytest.raises(BadValue, match="scope 'mars' of recipient 'ben@mars' not found"):
        await pair.west.messages.send("ben@mars", 1, sender="ann")
    with pytest.raises(BadValue, match="is in this scope"):
        await pair.west.messages.send("ben@west", 1, sender="ann")
    pair.west.messages.scopes = ()  # as in a process without the directory
    lost = await pair.west.messages.send("ben@mars", 1, sender="ann")
    circular = await pair.west.messages.send("ben@west", 1, sender="ann")
    passed_on = await pair.west.messages.send("ben@west@east", 1, sender="ann")
    await pair.to_east.run_once()
    assert await pair.state(lost) == ("dead", "no scope mars in the directory of this node")
    assert await pair.state(circular) == ("dead", "sent to its own scope: send it to ben")
    assert await pair.state(passed_on) == (
        "dead",
        "scope east does not pass messages on: send it to ben@west",
    )


async def test_what_a_hostile_node_has_signed_is_refused_and_blocks_nothing(pair: Pair) -> None:
    sender = pair.west.messages._sender
    bad = await pair.west.messages.send("ben@east", 0, sender="ann")
    await pair.west.store.write(Script(Statement("DELETE FROM a2a_messages")))
    for wrong in (bad._replace(reply_to="x"), bad._replace(payload='{"b": 1}'), bad._replace(msg_type="\n")):
        unsigned = wrong._replace(hlc=str(pair.west.clock.tick(pair.west.clock.now_ms)))
        unsigned = unsigned._replace(message_uuid=new_key(), receiver_agent="eve@east")
        signed = await sender.signing.sign(unsigned, pair.west.identity.key)
        await pair.west.store.write(send_script(signed, None))
    await pair.west.messages.send("ben@east", 1, sender="ann")
    assert await pair.to_east.run_once() == 1
    reasons = "SELECT ended_reason FROM a2a_messages WHERE state = 'dead' AND receiver_agent = 'eve@east'"
    found = [str(row[0]) for row in await pair.west.store.read(reasons, fresh=True)]
    assert len(found) == 3
    assert all(reason.startswith("refused by scope east: ") for reason in found)
    assert [message.body for message in await _received(pair.east, "ben")] == [1]


async def test_messages_of_a_sender_arrive_in_order(pair: Pair) -> None:
    for number in range(150):
        await pair.west.messages.send("ben@east", number, sender="ann")
    assert await pair.to_east.run_once() == 150
    found: list[Message] = []
    while some := await _received(pair.east, "ben"):
        found += some
    assert [message.body for message in found] == list(range(150))
    assert {message.sender_agent for message in found} == {"ann@west"}


async def test_a_message_that_is_offered_again_is_received_once(pair: Pair) -> None:
    sent = await pair.west.messages.send("ben@east", 1, sender="ann")
    claims = pair.west.messages.claims
    (claimed,) = await claims.claim(["ben@east"], claims.new_name(), lease_s=60)
    inbox = pair.to_east._inboxes["east"]
    key, now_ms = await pair.west.ownership.key(), pair.west.clock.now_ms
    assert [each.fate for each in await inbox.take("west", key, [claimed], now_ms)] == ["stored"]
    assert [message.body for message in await _received(pair.east, "ben")] == [1]
    # Long afterwards: the row is pruned there, and the acknowledgement here was lost.
    gone = Statement("DELETE FROM a2a_messages WHERE message_uuid = ?1", (sent.message_uuid,))
    await pair.east.store.write(Script(gone))
    await claims.release([claimed], {claimed.message_uuid})
    assert await pair.to_east.run_once() == 1
    assert (await pair.state(sent))[0] == "acked"
    assert await _received(pair.east, "ben") == []


async def test_arrivals_are_forgotten_after_a_month(pair: Pair) -> None:
    await pair.west.messages.send("ben@east", 1, sender="ann")
    await pair.to_east.run_once()
    count = "SELECT count(*) FROM scope_arrivals"
    pair.to_west._forget_at = 0.0
    await pair.to_west.run_once()
    assert (await pair.east.store.read(count)).value == 1
    older = Statement("UPDATE scope_arrivals SET arrived_ms = arrived_ms - ?1", (ARRIVALS_MS + 1_000,))
    await pair.east.store.write(Script(older))
    pair.to_west._forget_at = 0.0
    await pair.to_west.run_once()
    assert (await pair.east.store.read(count)).value == 0


async def test_all_old_arrivals_are_forgotten_in_turns(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vox_mesh.messages.forwarder._FORGET_BATCH", 2)
    monkeypatch.setattr("vox_mesh.messages.forwarder._FORGET_BATCHES", 3)
    many = Statement(
        "INSERT INTO scope_arrivals (scope_id, repository_id, origin, message_uuid, arrived_ms)"
        " SELECT ?1, ?2, 'west', value, 1 FROM json_each('[1, 2, 3, 4, 5, 6, 7, 8, 9]')",
        pair.east.store.mesh_id,
    )
    await pair.east.store.write(Script(many))
    left = []
    for _ in range(2):
        await pair.to_west.run_once()
        left.append((await pair.east.store.read("SELECT count(*) FROM scope_arrivals", fresh=True)).value)
    assert left == [3, 0]


async def test_no_local_agent_sends_as_one_of_a_scope(pair: Pair) -> None:
    for sender in ("ann@west", "ann@east"):
        with pytest.raises(BadValue, match="the name of a scope"):
            await pair.east.messages.send("ben", 1, sender=sender)
    await pair.east.messages.send("ben", 2, sender="ann@example.org")
    assert [each.sender_agent for each in await _received(pair.east, "ben")] == ["ann@example.org"]


async def test_a_notice_that_no_scope_takes_keeps_no_message_from_ending(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, keeper = pair.east.messages, pair.east._message_maintenance
    await pair.east.supervisor.stop("message-maintenance")
    expired = await messages.send("ben", 1, sender="ann", ttl="1h")
    late = [
        await messages.send("ben", 2, sender=sender, ack_within="1h") for sender in ("ann@nowhere", "ann")
    ]
    forwarded = await pair.west.messages.send("ben@east", 3, sender="ann", ack_within="1h")
    await pair.to_east.run_once()
    monkeypatch.setattr("vox_mesh.messages.outbound.MAX_OPEN", 0)  # as if too many waited for west
    await pair.east.store.write(
        Script(
            Statement("UPDATE a2a_messages SET ack_by_ms = 1 WHERE ack_by_ms IS NOT NULL"),
            Statement("UPDATE a2a_messages SET expires_ms = 1 WHERE expires_ms IS NOT NULL"),
        )
    )
    assert {each.message_uuid for each in await messages.queries.overdue(unnotified=True)} == {
        *(each.message_uuid for each in late),
        forwarded.message_uuid,
    }
    await keeper.run_once()
    assert (await messages.queries.get(expired.message_uuid)).state == "expired"
    assert [each.msg_type for each in await _received(pair.east, "ann")] == ["mesh.overdue"]
    assert await messages.queries.overdue(unnotified=True) == []


async def test_a_full_inbox_keeps_messages_waiting(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vox_mesh.messages.scope_inbox.MAX_OPEN", 2)
    for number in range(3):
        await pair.west.messages.send("ben@east", number, sender="ann")
    assert await pair.to_east.run_once() == 2
    assert [message.body for message in await _received(pair.east, "ben")] == [0, 1]
    assert (await pair.west.store.read(SQL["count_outbound"], (*pair.west.store.mesh_id, None, 9))).value == 1


async def test_messages_wait_for_a_server_that_is_away(
    on_servers: Settings, servers: dict[str, Server]
) -> None:
    hurried = on_servers.model_copy(update={"db_deadline": 1.0, "db_request_timeout": 0.5})
    async with _pair(hurried) as pair:
        servers["east"].freeze()
        try:
            sent = [await pair.west.messages.send("ben@east", number, sender="ann") for number in range(3)]
            assert await pair.to_east.run_once() == 0
            waiting = [await pair.west.messages.queries.get(each.message_uuid) for each in sent]
            assert [(each.state, each.delivery_attempts) for each in waiting] == [("stored", 0)] * 3
        finally:
            servers["east"].thaw()
        await pair.east.store.read("SELECT 1", fresh=True, timeout=30)
        pair.monotonic += 60
        assert await pair.to_east.run_once() == 3
        assert [message.body for message in await _received(pair.east, "ben")] == [0, 1, 2]
