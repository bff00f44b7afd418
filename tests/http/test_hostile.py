"""Hostile requests: whatever is sent, nothing breaks, nothing is written, and nothing grows."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import tracemalloc
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.messages.relaying import (
    Pair,
    assert_problem,
    letter,
    rows_of,
    serving,
    signed,
    stranger_key,
    unsigned,
)
from tests.support.nodes.clocks import Clock
from tests.support.running.lengths import SOAK, only_at_full_length
from vox_mesh.errors import SenderRefused
from vox_mesh.http.limits import RateLimiter
from vox_mesh.http.problems import Problem
from vox_mesh.http.relay.endpoint import FROM, MAX_MESSAGES, NODE, STORED, RelayLimits, wire
from vox_mesh.messages.relay_inbound import Reception
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.messages.records import WIRE_FIELDS, Message
from vox_mesh.observability.throttled_logger import ThrottledLogger

pytestmark = pytest.mark.asyncio(loop_scope="module")

REQUESTS: Final = 2_000 if SOAK else 40
"""Generated requests, of each kind and on each home."""

FORGED: Final = 2_000 if SOAK else 40
_FORGED_BYTES: Final = 100_000
_MAX_GROWTH_BYTES: Final = _FORGED_BYTES * FORGED // 5
_MAX_RESIDENT_GROWTH: Final = 128 * 2**20

_LIMITS: Final = settings(
    max_examples=REQUESTS,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

# --- what is generated ---------------------------------------------------------------------------

_TEXTS: Final = st.one_of(
    st.text(max_size=40),
    st.text(st.characters(categories=["Cs", "Cc", "Zl", "Zp"]), max_size=5),
    st.sampled_from(["", "\0", "*", "role:", "role:*", "mesh", "x" * 129, "\ud800", "ed25519:" + "0" * 128]),
    st.sampled_from(["9999999999999-99999-ann", "0000000000000-00000-ann", "\u0660" * 13 + "-00000-ann"]),
)
_NUMBERS: Final = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**53, 2**63, 2**64, -1, 0, 10**400]),
    st.floats(),
)
_LEAVES: Final = st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS)
_VALUES: Final = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_TEXTS, inner, max_size=4)),
    max_leaves=12,
)
_DEEP: Final = st.integers(1, 3_000).map(lambda depth: "[" * depth + "]" * depth)
_PAYLOADS: Final = st.one_of(_TEXTS, _DEEP, _VALUES.map(json.dumps))
_CHANGES: Final = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(WIRE_FIELDS), _VALUES),
        st.tuples(st.just("payload"), _PAYLOADS),
        st.tuples(_TEXTS, _LEAVES),
    ),
    min_size=1,
    max_size=3,
)
_LEFT_OUT: Final = st.lists(st.sampled_from(WIRE_FIELDS), max_size=2)
_SPOILED: Final = st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), max_size=3)
_HEADERS: Final = st.dictionaries(
    st.sampled_from([NODE, FROM, STORED, "Content-Type", "Content-Encoding", "Expect", "Upgrade", "X-Other"]),
    st.one_of(
        st.sampled_from(["application/json; charset=utf-16", "gzip", "100-continue", "websocket", "0", "1"]),
        st.text(st.characters(min_codepoint=33, max_codepoint=255, exclude_characters="\x7f"), max_size=30),
    ),
    max_size=2,
)


def _resigned(pair: Pair, fields: dict[str, Any]) -> dict[str, Any]:
    """Signed by the sender, if it can be, so that not only the signature is checked."""
    try:
        message = Message(**{name: fields[name] for name in WIRE_FIELDS})
        return wire(signed(pair.sender, message))
    except (KeyError, TypeError, ValueError):
        return fields


async def _assert_harmless(pair: Pair, body: bytes, headers: dict[str, str]) -> int:
    """Unless it was taken, it wrote nothing; and it was no failure of ours."""
    before = await rows_of(pair.receiver)
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    answer = await pair.client.post(pair.url, content=body, headers=encoded)
    status = answer.status_code
    assert status < HTTPStatus.INTERNAL_SERVER_ERROR, answer.text
    if status != HTTPStatus.OK:
        assert_problem(answer, status, answer.json()["code"])
        assert await rows_of(pair.receiver) == before
    return status


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.soak
@_LIMITS
@given(
    changes=_CHANGES,
    left_out=_LEFT_OUT,
    is_signed=st.booleans(),
    is_array=st.booleans(),
    is_stored=st.booleans(),
)
async def test_a_message_with_anything_in_it_is_refused_or_its_senders_own(
    pair: Pair,
    changes: list[tuple[str, Any]],
    left_out: list[str],
    is_signed: bool,
    is_array: bool,
    is_stored: bool,
) -> None:
    original = wire(letter(pair.sender))
    fields = original | dict(changes)
    for name in left_out:
        fields.pop(name, None)
    if is_signed:
        fields = _resigned(pair, fields)
    body = json.dumps([fields] if is_array else fields).encode()
    status = await _assert_harmless(pair, body, pair.headers(stored=is_stored))
    if status == HTTPStatus.OK and not is_signed:
        assert {name: fields.get(name) for name in WIRE_FIELDS} == {
            name: original[name] for name in WIRE_FIELDS
        }


@pytest.mark.soak
@_LIMITS
@given(spoiled=_SPOILED, headers=_HEADERS, cut=st.integers(0, 2_000), more=st.binary(max_size=20))
async def test_bytes_that_were_spoiled_on_the_way_are_harmless(
    pair: Pair, spoiled: list[tuple[int, int]], headers: dict[str, str], cut: int, more: bytes
) -> None:
    original = json.dumps(wire(letter(pair.sender))).encode()
    body = bytearray(original[: len(original) - cut % 7] + more)
    for at, byte in spoiled:
        body[at % len(body)] = byte
    await _assert_harmless(pair, bytes(body), pair.headers(stored=False) | headers)


@pytest.mark.soak
@_LIMITS
@given(body=st.one_of(st.binary(max_size=200), _VALUES.map(lambda value: json.dumps(value).encode())))
async def test_a_body_of_anything_is_refused(pair: Pair, body: bytes) -> None:
    assert await _assert_harmless(pair, body, pair.headers(stored=False)) != HTTPStatus.OK


async def test_after_all_of_that_a_good_request_is_answered(pair: Pair) -> None:
    await pair.assert_serving()


# --- what it costs -------------------------------------------------------------------------------


@pytest.mark.soak
@only_at_full_length
async def test_refused_requests_leave_nothing_in_memory(neighbours: Pair) -> None:
    names = iter(range(10 * FORGED))

    async def refused() -> None:
        stranger = f"stranger-{next(names)}"
        hlc = str(Hlc(neighbours.sender.clock.now_ms, 0, stranger))
        payload = '"' + "x" * _FORGED_BYTES + '"'
        unknown = letter(neighbours.sender, sender_node=stranger, hlc=hlc, payload=payload)
        forged = signed(neighbours.sender, unsigned(neighbours.sender), stranger_key())
        for message in (unknown, forged):
            answer = await neighbours.post([wire(message)], neighbours.headers() | {FROM: stranger})
            assert_problem(answer, 403, "sender_refused")

    for _ in range(FORGED // 3):
        await refused()
    gc.collect()
    resident = _resident_bytes()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(FORGED):
            await refused()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < _MAX_GROWTH_BYTES
    assert _resident_bytes() - resident < _MAX_RESIDENT_GROWTH


def _resident_bytes() -> int:
    """Where the system tells."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1_024


async def test_strangers_make_the_database_work_once_a_second_for_each_name(
    neighbours: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    read = neighbours.receiver.store.read

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        return await read(*args, **options)

    reception = Reception(neighbours.receiver.store, neighbours.receiver.messages, neighbours.receiver.clock)
    hlc = str(Hlc(neighbours.sender.clock.now_ms, 0, "unknown"))
    unknown = letter(neighbours.sender, sender_node="unknown", hlc=hlc)
    forged = signed(neighbours.sender, unsigned(neighbours.sender), stranger_key())
    assert await neighbours.receiver.messages.verifier.is_known(forged.sender_node)
    monkeypatch.setattr(neighbours.receiver.store, "read", counted)
    began = asyncio.get_running_loop().time()
    for _ in range(50):
        for message in (unknown, forged):
            with pytest.raises(SenderRefused, match=r"no key is known|not signed"):
                await reception.take([message], stored=False)
    seconds = 1 + int(asyncio.get_running_loop().time() - began)
    assert asked <= (2 * 2 + 1) * seconds  # and once a second whether keys were replaced


async def test_a_message_that_is_brought_again_costs_no_one_anything(
    neighbours: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    nudged: list[list[Message]] = []
    monkeypatch.setattr(neighbours.receiver.messages.relay_buffer, "add", nudged.append)
    messages = [letter(neighbours.sender) for _ in range(MAX_MESSAGES)]
    for _ in range(10):
        assert (await neighbours.bring(*messages, stored=True)).status_code == HTTPStatus.OK
    assert nudged == [messages]


async def test_what_is_said_sparingly_says_how_often_it_was_not(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    say = ThrottledLogger(logging.getLogger("vox_mesh.test"), clock)
    for number in range(25):
        say(logging.WARNING, "it happened to %s", number)
    clock.now += 60
    say(logging.WARNING, "it happened to %s", "the last")
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:-1] == [f"it happened to {number}" for number in range(10)]
    assert lines[-1] == "it happened to the last (and 15 more like it, before)"


# --- too often -----------------------------------------------------------------------------------


async def test_a_peer_that_asks_too_often_is_notified_and_another_is_not(neighbours: Pair) -> None:
    async with serving(neighbours.receiver, limits=RelayLimits(per_second=5)) as (_, url):
        address = url + neighbours.url[-len("/v1/a2a/deliver") :]
        headers = neighbours.headers()
        answers = [await neighbours.client.post(address, content=b"[]", headers=headers) for _ in range(30)]
        statuses = [answer.status_code for answer in answers]
        assert statuses[:10] == [422] * 10
        assert statuses.count(429) >= 5
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert_problem(refused, 429, "too_many_requests")
        assert refused.headers["Retry-After"] == "1"
        other = await neighbours.client.post(address, content=b"[]", headers=headers | {FROM: "carl"})
        assert other.status_code == 422


def _is_refused(rates: RateLimiter, address: str, name: str) -> bool:
    try:
        rates.check(address, name)
    except Problem as problem:
        return problem.status == HTTPStatus.TOO_MANY_REQUESTS
    return False


async def test_who_waits_may_ask_again() -> None:
    clock = Clock()
    rates = RateLimiter(10, clock)
    assert [_is_refused(rates, "1.2.3.4", "a") for _ in range(21)] == [False] * 20 + [True]
    clock.now += 0.1
    assert [_is_refused(rates, "1.2.3.4", "a") for _ in range(2)] == [False, True]


async def test_another_name_for_each_request_does_not_help() -> None:
    rates = RateLimiter(10, Clock())
    refused = [_is_refused(rates, "1.2.3.4", str(number)) for number in range(200)]
    assert refused == [False] * 80 + [True] * 120
    assert not _is_refused(rates, "5.6.7.8", "a")


async def test_who_is_refused_takes_nothing_from_others_at_its_address() -> None:
    rates = RateLimiter(10, Clock())
    for _ in range(10_000):
        _is_refused(rates, "1.2.3.4", "loud")
    assert not _is_refused(rates, "1.2.3.4", "quiet")


async def test_very_many_peers_do_not_fill_the_memory() -> None:
    rates = RateLimiter(10, Clock())
    for number in range(5_000):
        _is_refused(rates, f"10.0.{number // 256}.{number % 256}", "x")
    assert len(rates._of_peers._left) == len(rates._of_addresses._left) == 1_024
