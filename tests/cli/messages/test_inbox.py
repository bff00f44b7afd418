"""`vox-mesh inbox`: looking claims nothing, and only what was printed is acknowledged."""

from __future__ import annotations

import json
import signal
from typing import Any, Final

import pytest

from tests.cli.conftest import VoxCommand, assert_wrong_usage
from tests.cli.messages.test_messages import claimed, payloads, sent
from tests.cli.messages.test_send import piped
from tests.cli.node.test_nodes import interrupted, line_of
from tools.forked import Process
from tools.sqld import Server

_PATIENCE_S: Final = 60.0


@pytest.fixture
def coder(vox: VoxCommand) -> VoxCommand:
    """The commands of an agent."""
    return vox.having(VOX_AGENT_ID="coder")


def shown(process: Process) -> Any:
    """The next message that a command prints."""
    return json.loads(line_of(process))


def states(vox: VoxCommand) -> list[str]:
    """The states of all messages, the oldest first."""
    return [each["state"] for each in reversed(vox("messages", "list", "--json").document)]


def test_looking_claims_nothing_and_goes_on_after_a_position(coder: VoxCommand) -> None:
    first = sent(coder, "b", "one")
    sent(coder, "role:r", "two")
    sent(coder, "elsewhere", "three")
    sent(coder, "b", "f\x1bour", "--priority", "3")
    assert payloads(coder, "inbox", "b") == ["one", "f\x1bour"]
    assert payloads(coder.having(VOX_AGENT_ID="b"), "inbox") == ["one", "f\x1bour"]
    assert payloads(coder, "inbox", "b", "--peek", "--role", "r", "--role", "s") == ["one", "two", "f\x1bour"]
    assert payloads(coder, "inbox", "b", "--after", str(first["position"])) == ["f\x1bour"]
    assert payloads(coder, "inbox", "b", "--limit", "1") == ["one"]
    assert {*states(coder)} == {"stored"}
    heading, *lines = coder("inbox", "b").out.splitlines()
    assert heading.split()[:4] == ["position", "message_uuid", "from", "to"]
    assert lines[1].endswith("f?our")
    assert coder("inbox", "unknown").out == "none\n"


def test_what_was_printed_is_acknowledged(coder: VoxCommand) -> None:
    for number in range(3):
        sent(coder, "b", str(number))
    assert payloads(coder, "inbox", "b", "--ack", "--limit", "2") == ["0", "1"]
    assert states(coder) == ["acked", "acked", "stored"]
    assert coder("inbox", "b", "--ack").out.splitlines()[1].endswith("2")
    assert payloads(coder, "inbox", "b", "--ack") == []


@pytest.mark.parametrize("more", [(), ("--follow", "--json")], ids=" ".join)
def test_what_could_not_be_printed_is_not_acknowledged_and_free_at_once(
    coder: VoxCommand, more: tuple[str, ...]
) -> None:
    sent(coder, "b", "hello")
    with coder.launch("inbox", "b", "--ack", *more) as command:
        command.stdout.close()
        assert command.wait(timeout=_PATIENCE_S) == 141
    assert states(coder) == ["stored"]
    assert payloads(coder, "inbox", "b", "--ack") == ["hello"]


def test_following_shows_each_message_once_until_ctrl_c(coder: VoxCommand, server: Server) -> None:
    coder = coder.at(server)
    sent(coder, "b", "before")
    with coder.running("inbox", "b", "--follow", "--json") as following:
        assert shown(following)["payload"] == "before"
        sent(coder, "b", '{"after": 1}')
        sent(coder, "c", "not ours")
        assert shown(following)["payload"] == {"after": 1}
        sent(coder, "b", "last")
        assert shown(following)["payload"] == "last"
        assert interrupted(following) == (130, "")
    assert {*states(coder)} == {"stored"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_following_acknowledges_in_order_and_leaves_nothing_claimed(
    coder: VoxCommand, number: signal.Signals
) -> None:
    for index in range(5):
        sent(coder, "b", str(index))
    with coder.running("inbox", "b", "--follow", "--ack", "--json") as following:
        assert [shown(following)["payload"] for _ in range(5)] == [str(index) for index in range(5)]
        sent(coder, "b", "new")
        assert shown(following)["payload"] == "new"
        following.send_signal(number)
        following.communicate(timeout=_PATIENCE_S)
        assert following.returncode == 128 + number
    assert states(coder)[:5] == ["acked"] * 5
    assert states(coder)[5] in ("acked", "stored")


def test_following_claims_a_senders_next_message_when_the_last_is_settled(coder: VoxCommand) -> None:
    sent(coder, "b", "one")
    sent(coder, "b", "two")
    sent(coder, "b", "of another", "--from", "other")
    with coder.running("inbox", "b", "--follow", "--claim", "--json", "--limit", "3") as following:
        first, others = shown(following), shown(following)
        assert (first["payload"], others["payload"]) == ("one", "of another")
        assert claimed(coder, "b") == []
        coder("messages", "ack", first["message_uuid"], "--claim", first["claim_owner"])
        assert shown(following)["payload"] == "two"
        following.communicate(timeout=_PATIENCE_S)
        assert following.returncode == 0
    assert states(coder) == ["acked", "delivered", "delivered"]


# --- a command for each --------------------------------------------------------------------------


def test_a_command_gets_the_body_and_the_fields_of_each_message_in_turn(coder: VoxCommand) -> None:
    one = sent(coder, "role:r", "text\nas it is", "--thread", "t")
    two = sent(coder, "b", '{"b": [1], "a": null}', "--from", "other", "--priority", "2")
    script = 'cat; echo "|$VOX_MSG_MESSAGE_UUID|$VOX_MSG_SENDER_AGENT|$VOX_MSG_THREAD_ID|$VOX_AGENT_ID"'
    inherited = coder.having(VOX_MSG_THREAD_ID="of another")
    ended = inherited("inbox", "b", "--role", "r", "--exec", script)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        f'{{"a":null,"b":[1]}}\n|{two["message_uuid"]}|other||b\n'
        f"text\nas it is|{one['message_uuid']}|coder|t|b\n"
    )
    assert states(coder) == ["acked", "acked"]


def test_a_command_that_fails_gives_its_message_back_and_the_others_go_on(coder: VoxCommand) -> None:
    failing = sent(coder, "b", "bad", "--max-attempts", "1")
    sent(coder, "b", "good")
    sent(coder, "b", "good too", "--from", "other")
    ended = coder("inbox", "b", "--exec", "read -r body; case $body in bad) kill -9 $$;; esac")
    assert ended.code == 1
    assert f"message rejected: message={failing['message_uuid']}" in ended.err
    assert states(coder) == ["dead", "acked", "acked"]
    (dead,) = coder("messages", "dead", "--json").document
    assert dead["ended_reason"] == "command exited with 137 (SIGKILL)"


def test_a_body_of_the_largest_size_reaches_the_command(coder: VoxCommand) -> None:
    large = json.dumps(["x" * 262_000])
    assert piped(coder, large.encode(), "send", "b", "-").code == 0
    assert coder("inbox", "b", "--exec", "cat >got").code == 0
    assert json.loads((coder.folder / "got").read_text()) == json.loads(large)


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("inbox b --ack --claim", "--ack and --claim can't be combined"),
        ("inbox b --peek --exec true", "--peek and --exec can't be combined"),
        ("inbox b --ack --after 3", "--after can be combined with --peek only"),
        ("inbox b --exec true --json", "--json and --exec can't be combined"),
        ("inbox b --limit 0", "--limit"),
        ("messages ack 01", "--claim"),
        ("messages list --state spooled", "--state"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_why(
    command: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_wrong_usage(command, fault, capsys)


@pytest.mark.parametrize("command", ["inbox role:r", "inbox b --role *", "inbox b --ack --lease 0s"])
def test_what_is_no_inbox_or_lease_ends_with_2(vox: VoxCommand, command: str) -> None:
    ended = vox(*command.split())
    assert (ended.code, ended.error != "") == (2, True)
