"""The rules of messages themselves: their order, what is signed, and what is no message."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vox_mesh.errors import BadValue
from vox_mesh.model.messages.records import (
    MAX_PAYLOAD_BYTES,
    WIRE_FIELDS,
    WRITTEN,
    Message,
    checked_agent,
    checked_id,
    checked_priority,
    checked_receiver,
    checked_trace,
    checked_word,
    in_turn,
    inbox_names,
    payload_of,
)

_MESSAGE = Message(
    message_uuid="01ARZ3NDEKTSV4RRFFQ69G5FAV",
    sender_agent="a",
    receiver_agent="z",
    msg_type="message",
    payload='{"a":1}',
    priority=1,
    thread_id=None,
    correlation_id=None,
    reply_to=None,
    expires_ms=None,
    ack_by_ms=None,
    max_attempts=10,
    hlc="1700000000000-00000-node",
    sender_node="node",
    sender_incarnation=1,
    traceparent=None,
)


def message(number: int, sender: str, priority: int) -> Message:
    """The message with this number."""
    return _MESSAGE._replace(
        message_uuid=str(number),
        sender_agent=sender,
        priority=priority,
        hlc=f"{1_700_000_000_000 + number:013}-00000-node",
    )


some_messages = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=12).flatmap(
    lambda drawn: st.permutations([message(number, *each) for number, each in enumerate(drawn)])
)


@given(some_messages)
def test_in_turn_each_pairs_come_by_time_and_the_most_urgent_first_of_them_next(
    messages: list[Message],
) -> None:
    ordered = in_turn(messages)
    assert sorted(ordered) == sorted(messages)
    left = sorted(messages, key=lambda each: each.hlc)
    for each in ordered:
        heads = {other.pair: other for other in reversed(left)}
        assert heads[each.pair] == each
        assert each.urgency == min(head.urgency for head in heads.values())
        left.remove(each)


def _changed(field: str) -> Message:
    values: dict[str, Any] = {field: "another"}
    return _MESSAGE._replace(**values)


@pytest.mark.parametrize("field", WIRE_FIELDS[:WRITTEN])
def test_all_that_the_sender_wrote_is_signed(field: str) -> None:
    assert _changed(field).signed_text("s", "r") != _MESSAGE.signed_text("s", "r")


@pytest.mark.parametrize("field", Message._fields[WRITTEN:])
def test_what_became_of_it_is_not_signed(field: str) -> None:
    assert _changed(field).signed_text("s", "r") == _MESSAGE.signed_text("s", "r")


def test_the_mesh_that_it_belongs_to_is_signed() -> None:
    texts = [_MESSAGE.signed_text(*mesh) for mesh in (("s", "r"), ("s", "x"), ("x", "r"), ("sr", ""))]
    assert len(set(texts)) == 4


def test_no_value_can_be_taken_for_another_field() -> None:
    one = _MESSAGE._replace(thread_id="x", correlation_id=None)
    other = _MESSAGE._replace(thread_id=None, correlation_id="x")
    assert one.signed_text("", "") != other.signed_text("", "")


def test_an_answer_belongs_to_the_thread_or_begins_one() -> None:
    assert _MESSAGE.thread == _MESSAGE.message_uuid
    assert _MESSAGE._replace(thread_id="t").thread == "t"


@pytest.mark.parametrize(
    ("body", "text"),
    [({"b": 1, "a": [1.0, "ä"]}, '{"a":[1,"ä"],"b":1}'), ("", '""'), (None, "null"), (1e21, "1e+21")],
    ids=str,
)
def test_a_body_has_one_text(body: Any, text: str) -> None:
    assert payload_of(body) == text
    assert _MESSAGE._replace(payload=text).body == body


def test_the_size_of_a_body_is_counted_in_bytes() -> None:
    assert payload_of("x" * 10, 12)
    for body in ("x" * 11, "ä" * 6):
        with pytest.raises(BadValue, match="at most 12"):
            payload_of(body, 12)
    assert len(payload_of("x" * (MAX_PAYLOAD_BYTES - 2))) == MAX_PAYLOAD_BYTES


@pytest.mark.parametrize("name", ["a", "Roles", "agent 7", "ä", "x" * 128, "rolex", "a*b"])
def test_a_name_is_any_short_printable_text(name: str) -> None:
    assert checked_agent(name) == name
    assert checked_receiver(name) == name
    assert checked_receiver(f"role:{name}") == f"role:{name}"
    assert inbox_names(name, [name]) == [name, f"role:{name}"]


@pytest.mark.parametrize("name", ["", " ", "a ", "\ta", "a\x00", "x" * 129, "*", "role:a", "\u2028"])
def test_what_would_mean_something_else_is_no_name(name: str) -> None:
    with pytest.raises(BadValue):
        checked_agent(name)
    with pytest.raises(BadValue):
        checked_receiver(f"role:{name}")


@pytest.mark.parametrize(
    "check",
    [
        lambda: checked_word("thread", "a\nb"),
        lambda: checked_word("thread", ""),
        lambda: checked_word("thread", "x" * 129),
        lambda: checked_id("01ARZ3NDEKTSV4RRFFQ69G5FA"),
        lambda: checked_id("01arz3ndektsv4rrffq69g5fav"),
        lambda: checked_priority(-1),
        lambda: checked_priority(4),
        lambda: checked_trace(f"00-{'AB' * 16}-{'cd' * 8}-01"),
        lambda: checked_trace(f"00-{'ab' * 16}-{'cd' * 8}-01\n"),
    ],
)
def test_what_is_out_of_bounds_is_refused(check: Any) -> None:
    with pytest.raises(BadValue):
        check()
