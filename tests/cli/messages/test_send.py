"""`vox-mesh send`: what is said is what is stored, once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any, Final

import pytest

from tests.cli.conftest import Ended, VoxCommand, assert_wrong_usage, running_node
from tools.sqld import free_port
from vox_mesh.model.messages.records import MAX_PAYLOAD_BYTES
from vox_mesh.store.script import new_key

_PATIENCE_S: Final = 60.0
_TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_COLUMNS: Final = {
    *("message_uuid", "sender_agent", "receiver_agent", "msg_type", "payload", "priority", "thread_id"),
    *("correlation_id", "reply_to", "expires_ms", "ack_by_ms", "max_attempts", "hlc", "sender_node"),
    *("sender_incarnation", "created_at", "state", "acknowledged", "claim_owner", "claim_until_ms"),
    *("delivery_attempts", "ended_reason", "position"),
}
_COMMANDS: Final = (
    *("send b hello", "inbox b", "inbox b --follow", "inbox b --ack", "inbox b --claim"),
    *("inbox b --follow --exec true", "messages list", "messages show 01", "messages dead"),
    *("messages retry 01", "messages overdue", "messages threads", "messages ack 01 --claim c"),
    "messages nack 01 --claim c",
)


@pytest.fixture
def coder(vox: VoxCommand) -> VoxCommand:
    """The commands of an agent."""
    return vox.having(VOX_AGENT_ID="coder")


def piped(vox: VoxCommand, data: bytes, *arguments: str) -> Ended:
    """Run a command that reads this from stdin."""
    ended = subprocess.run(
        [sys.executable, "-m", "vox_mesh.cli", *arguments],
        cwd=vox.folder,
        env=vox.environment,
        input=data,
        capture_output=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


def test_what_is_said_of_a_message_is_stored_with_it(coder: VoxCommand) -> None:
    said = ("--type", "review", "--priority", "3", "--thread", "t", "--correlation", "c", "--ttl", "1h")
    more = ("--ack-within", "5m", "--max-attempts", "2", "--key", (key := new_key()), "--json")
    sent = coder.having(TRACEPARENT=_TRACE)("send", "role:reviewers", '{"pr": 42}', *said, *more).document
    assert {*sent} >= _COLUMNS
    assert (sent["message_uuid"], sent["sender_agent"], sent["receiver_agent"]) == (
        *(key, "coder", "role:reviewers"),
    )
    assert (sent["payload"], sent["msg_type"], sent["priority"]) == ({"pr": 42}, "review", 3)
    assert (sent["thread_id"], sent["correlation_id"], sent["max_attempts"]) == ("t", "c", 2)
    assert sent["expires_ms"] - sent["ack_by_ms"] == 3_300_000
    assert (sent["state"], sent["acknowledged"], sent["position"]) == ("stored", False, 1)
    assert sent["traceparent"] == _TRACE
    assert coder("messages", "show", key, "--json").document == sent
    assert sent["hlc"].endswith(f"-{sent['sender_node']}/cli")
    lines = coder.having(TRACEPARENT="nonsense")("send", "b", "hello", "-v").out.splitlines()
    assert ["payload", "hello"] in [line.split() for line in lines]
    assert coder("inbox", "b", "--json").document[0]["traceparent"] is None


@pytest.mark.parametrize(
    ("words", "payload"),
    [
        ((' [1, {"a": null}]\n',), [1, {"a": None}]),
        (('{"a": 1}', "--text"), '{"a": 1}'),
        (("[not json]",), "[not json]"),
        (("42",), "42"),
        (("",), ""),
    ],
)
def test_only_json_objects_and_arrays_are_sent_as_such(
    coder: VoxCommand, words: tuple[str, ...], payload: Any
) -> None:
    assert coder("send", "b", *words, "--json").document["payload"] == payload


def test_a_body_from_stdin_is_taken_unchanged_or_refused_in_one_line(coder: VoxCommand) -> None:
    text = "two\nlines, ünd\tmore\n"
    assert piped(coder, text.encode(), "send", "b", "-", "--json").document["payload"] == text
    spaced = b"[" + b" " * (MAX_PAYLOAD_BYTES + 1) + b"]"
    assert piped(coder, spaced, "send", "b", "-", "--json").document["payload"] == []
    for data, fault in ((b"\xff\xfe", "must be UTF-8"), (b"x" * (4 * MAX_PAYLOAD_BYTES + 1), "at most")):
        refused = piped(coder, data, "send", "b", "-")
        assert (refused.code, fault in refused.error) == (2, True)
    assert len(coder("inbox", "b", "--json").document) == 2


def test_under_one_key_it_is_one_message_and_another_one_is_refused(coder: VoxCommand) -> None:
    key = ("--key", new_key(), "--json")
    first = coder("send", "b", "hello", *key).document
    assert coder("send", "b", "hello", *key).document == first
    other = coder("send", "b", "something else", *key)
    assert (other.code, "another message" in other.error) == (1, True)
    assert coder("inbox", "b", "--json").document == [first]


def test_an_answer_is_in_the_thread_of_what_it_answers(coder: VoxCommand) -> None:
    asked = coder("send", "b", "how?", "--correlation", "c", "--json").document
    beginning = asked["message_uuid"][:14].lower()
    answer = coder("send", "coder", "so", "--agent", "b", "--reply-to", beginning, "--json").document
    assert (answer["reply_to"], answer["thread_id"]) == (asked["message_uuid"], asked["message_uuid"])
    assert (answer["sender_agent"], answer["correlation_id"]) == ("b", "c")
    forgotten = new_key()
    assert coder("send", "b", "x", "--reply-to", forgotten, "--json").document["reply_to"] == forgotten
    unknown = coder("send", "b", "x", "--reply-to", "7ZZ")
    assert (unknown.code, "message 7ZZ not found" in unknown.error) == (1, True)


# --- waiting for the acknowledgement -------------------------------------------------------------


@pytest.mark.parametrize(("command", "code", "state"), [("true", 0, "acked"), ("false", 1, "dead")])
async def test_it_waits_until_the_message_is_acknowledged_or_dead(
    coder: VoxCommand, command: str, code: int, state: str
) -> None:
    coder("db", "init")
    waiting = ("send", "b", "hello", "--wait-ack", "60s", "--max-attempts", "1", "--json")
    receiving = ("inbox", "b", "--follow", "--limit", "1", "--exec", command)
    sent, _ = await asyncio.gather(asyncio.to_thread(coder, *waiting), asyncio.to_thread(coder, *receiving))
    assert (sent.code, sent.document["state"], sent.document["acknowledged"]) == (code, state, code == 0)
    assert sent.document["ack_by_ms"] is not None


def test_it_ends_with_1_if_no_one_acknowledges_in_time(coder: VoxCommand) -> None:
    sent = coder("send", "b", "hello", "--wait-ack", "100ms", "--json")
    assert (sent.code, sent.document["acknowledged"]) == (1, False)
    assert [each["payload"] for each in coder("messages", "overdue", "--json").document] == ["hello"]


def test_everyone_gets_a_message_of_their_own(coder: VoxCommand) -> None:
    alone = coder("send", "*", "hello", "--json")
    assert (alone.code, alone.document, "no other agent known" in alone.err) == (1, [], True)
    with running_node(coder, VOX_AGENT_ID="planner"):
        (sent,) = coder("send", "*", "hello", "--json").document
        assert (sent["receiver_agent"], sent["correlation_id"] is not None) == ("planner", True)
        assert coder("send", "*", "hello", "--from", "planner").code == 1
    assert [each["message_uuid"] for each in coder("inbox", "planner", "--json").document] == [
        sent["message_uuid"]
    ]


# --- what it refuses -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("send b", "BODY"),
        ("send b x --priority 4", "0<=x<=3"),
        ("send b x --ttl soon", "'soon' is not a duration"),
        ("send b x --max-attempts 0", "1<=x<=1000"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_why(
    command: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_wrong_usage(command, fault, capsys)


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("send b x", "pass --from NAME or set VOX_AGENT_ID"),
        ("send role: x --from a", "agent name must be"),
        ("send b x --from *", "agent name must be"),
        ("send b x --from a --key 17", "must be a ULID"),
        ("send * x --from a --key 01J00000000000000000000000", "--key can't be combined"),
        ("send b x --from a --ttl 0s", "ttl must be more than 0"),
        ("send b x --from a --type \x07", "message type must be"),
        ("send b [9007199254740993] --from a", "canonical JSON"),
    ],
)
def test_what_can_not_be_sent_so_ends_with_2_and_says_why(vox: VoxCommand, command: str, fault: str) -> None:
    ended = vox(*command.split(" "))
    assert (ended.code, fault in ended.error) == (2, True)


def _assert_all_end(vox: VoxCommand, commands: tuple[str, ...], code: int, fault: str) -> None:
    for command in commands:
        ended = vox(*command.split())
        assert (ended.code, fault in ended.error) == (code, True), command


def test_on_the_memory_home_messages_would_reach_no_one(memory: VoxCommand) -> None:
    _assert_all_end(memory.having(VOX_AGENT_ID="coder"), _COMMANDS, 2, "vox-mesh init")


def test_with_the_database_away_it_ends_with_3(coder: VoxCommand) -> None:
    away = coder.having(VOX_DB_URL=f"http://127.0.0.1:{free_port()}")
    _assert_all_end(
        away, ("send b hello", "inbox b --follow --exec true", "messages list"), 3, "can't be reached"
    )
