"""`vox-mesh messages`: what became of each message, and what can be done about it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import VoxCommand
from vox_mesh.store.script import new_key


@pytest.fixture
def coder(vox: VoxCommand) -> VoxCommand:
    """The commands of an agent."""
    return vox.having(VOX_AGENT_ID="coder")


def sent(vox: VoxCommand, to: str, body: str, *more: str) -> Any:
    """Send a message; its record."""
    return vox("send", to, body, *more, "--json").document


def claimed(vox: VoxCommand, agent: str, *more: str) -> list[Any]:
    """Claim what waits for an agent."""
    found: list[Any] = vox("inbox", agent, "--claim", *more, "--json").document
    return found


def payloads(vox: VoxCommand, *arguments: str) -> list[Any]:
    """The bodies that a command lists."""
    return [each["payload"] for each in vox(*arguments, "--json").document]


def test_messages_are_listed_by_state_sender_receiver_thread_and_position(coder: VoxCommand) -> None:
    assert coder("messages", "list").out == "none\n"
    first = sent(coder, "b", "one", "--thread", "t")
    second = sent(coder, "c", "two", "--from", "other", "--thread", "t")
    sent(coder, "role:r", "three")
    coder("inbox", "c", "--ack")
    listing = ("messages", "list")
    assert payloads(coder, *listing) == ["three", "two", "one"]
    assert payloads(coder, *listing, "--state", "acked") == ["two"]
    assert payloads(coder, *listing, "--from", "coder", "--to", "b") == ["one"]
    assert payloads(coder, *listing, "--to", "role:r") == ["three"]
    assert payloads(coder, *listing, "--thread", "t", "--limit", "1") == ["two"]
    assert payloads(coder, *listing, "--before", str(second["position"])) == ["one"]
    (thread,) = coder("messages", "threads", "--json").document
    assert (thread["thread_id"], thread["messages"], thread["open"]) == ("t", 2, 1)
    assert thread["began_at"] == first["created_at"]
    heading, line = (each.split() for each in coder("messages", "threads").out.splitlines())
    assert (heading, line[:3]) == (["thread_id", "messages", "open", "began_at", "last_at"], ["t", "2", "1"])


def test_a_message_is_shown_in_full_by_the_beginning_of_its_id(coder: VoxCommand) -> None:
    key = new_key()
    sent(coder, "b", "line one\n\x1b[31mline two" + "x" * 100, "--key", key)
    sent(coder, "b", "other", "--key", key[:-1] + ("0" if key[-1] != "0" else "1"))
    (claim,) = claimed(coder, "b", "--limit", "1")
    shown = coder("messages", "show", key.lower()).out.splitlines()
    assert ["claim_owner", claim["claim_owner"]] in [line.split() for line in shown]
    assert shown[-2:] == ["line one", "?[31mline two" + "x" * 100]
    (short,) = (each for each in coder("messages", "list").out.splitlines() if key in each)
    assert short.endswith("…")
    several = coder("messages", "show", key[:-1])
    assert (several.code, "is ambiguous" in several.error) == (2, True)
    for unknown in ("7ZZ", ""):
        ended = coder("messages", "show", unknown)
        assert (ended.code, "not found" in ended.error) == (1, True)


def test_a_claim_is_settled_by_anyone_who_knows_its_name_and_by_no_one_else(coder: VoxCommand) -> None:
    one, two = sent(coder, "b", "one"), sent(coder, "b", "two")
    held = claimed(coder, "b")
    assert [each["message_uuid"] for each in held] == [one["message_uuid"], two["message_uuid"]]
    owner = held[0]["claim_owner"]
    assert owner.startswith(f"{one['sender_node']}/cli:")
    assert claimed(coder, "b") == []  # also after the first command has ended
    for stranger in ("another", f"arrival:{one['message_uuid']}"):
        for verb in ("ack", "nack"):
            refused = coder("messages", verb, one["message_uuid"], "--claim", stranger)
            assert (refused.code, "not held under this claim" in refused.error) == (1, True)
    (acked,) = coder("messages", "ack", one["message_uuid"], "--claim", owner, "--json").document
    assert (acked["state"], acked["acknowledged"]) == ("acked", True)
    assert coder("messages", "ack", one["message_uuid"], "--claim", owner).code == 0  # said twice
    again = ("messages", "nack", two["message_uuid"], "--claim", owner, "--retry-in", "0s")
    assert coder(*again, "--json").document["state"] == "stored"
    (back,) = claimed(coder, "b")
    assert (back["payload"], back["claim_owner"] != owner) == ("two", True)
    assert coder("messages", "ack", two["message_uuid"], "--claim", owner).code == 1
    assert coder("messages", "ack", two["message_uuid"], "--claim", back["claim_owner"]).code == 0


def test_a_dead_letter_says_why_it_died_and_can_be_sent_again(coder: VoxCommand) -> None:
    message = sent(coder, "b", "hello", "--max-attempts", "1")
    key = message["message_uuid"]
    (held,) = claimed(coder, "b")
    why = ("--reason", "the build\tis red")
    dead = coder("messages", "nack", key[:20], "--claim", held["claim_owner"], *why, "--json").document
    assert (dead["state"], dead["ended_reason"]) == ("dead", "the build\tis red")
    assert coder("messages", "dead", "--json").document == [dead]
    assert "the build is red" in coder("messages", "dead").out
    assert claimed(coder, "b") == []
    (retried,) = coder("messages", "retry", key, "--json").document
    assert (retried["state"], retried["delivery_attempts"]) == ("stored", 0)
    not_dead = coder("messages", "retry", key)
    assert (not_dead.code, "not found" in not_dead.error) == (1, True)
    assert payloads(coder, "inbox", "b", "--ack") == ["hello"]
    assert coder("messages", "dead").out == "none\n"


def test_what_was_to_be_acknowledged_by_now_is_overdue_until_it_is(coder: VoxCommand) -> None:
    sent(coder, "b", "later", "--ack-within", "1h")
    sent(coder, "b", "late", "--ack-within", "1ms")
    assert payloads(coder, "messages", "overdue") == ["late"]
    coder("inbox", "b", "--ack")
    assert payloads(coder, "messages", "overdue") == []
