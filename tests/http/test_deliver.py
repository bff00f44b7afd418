"""`POST /v1/a2a/deliver`: what it takes, what it refuses and how it says so, and that twice is once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import httpx
import orjson
import pytest

from tests.support.messages.relaying import (
    AGENT,
    RECEIVER,
    SENDER,
    TOKEN,
    TRACE,
    Pair,
    assert_problem,
    letter,
    open_pair,
    rows_of,
    serving,
    signed,
    stranger_key,
    unsigned,
)
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.running.lengths import cases_in_soak
from tools.homes import MESH, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh.http.relay.endpoint import MAX_MESSAGES, NODE, PATH, RelayLimits, wire
from vox_mesh.http.requests import MAX_BODY_BYTES
from vox_mesh.mesh import Mesh
from vox_mesh.messages.relay_inbound import WINDOW_MS
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.messages.records import WIRE_FIELDS, Message
from vox_mesh.store.script import new_key

on_module_loop = pytest.mark.asyncio(loop_scope="module")


def _at(pair: Pair, ahead_ms: int) -> str:
    """A time of the sender's, so far from now."""
    return str(Hlc(pair.sender.clock.now_ms + ahead_ms, 0, SENDER))


# --- what is taken -------------------------------------------------------------------------------


@on_module_loop
async def test_one_message_is_taken_and_named_in_the_answer(pair: Pair) -> None:
    message = letter(pair.sender)
    answer = await pair.post(wire(message))
    assert answer.status_code == HTTPStatus.OK
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json() == {"message_uuids": [message.message_uuid]}


@on_module_loop
async def test_an_array_is_taken_whole_up_to_its_limit(pair: Pair) -> None:
    messages = [letter(pair.sender) for _ in range(MAX_MESSAGES)]
    answer = await pair.bring(*messages)
    assert answer.json() == {"message_uuids": [each.message_uuid for each in messages]}


@on_module_loop
@pytest.mark.parametrize(
    "payload", ['"äöü\\u0000"', "9007199254740992", "1e+30", "[[[]]]", '{"a":0.1,"ä":null}'], ids=str
)
async def test_any_canonical_json_is_taken(pair: Pair, payload: str) -> None:
    answer = await pair.bring(letter(pair.sender, payload=payload))
    assert answer.status_code == HTTPStatus.OK, answer.text


async def test_what_is_brought_reaches_the_receiver_as_it_was_sent(own_pair: Pair) -> None:
    message = letter(own_pair.sender, traceparent=TRACE, thread_id="t", priority=3)
    assert (await own_pair.bring(message, stored=False)).status_code == HTTPStatus.OK
    received = await own_pair.next_message()
    assert received[: len(WIRE_FIELDS)] == message[: len(WIRE_FIELDS)]
    assert received.traceparent == TRACE


async def test_a_message_takes_its_trace_along_the_whole_way(own_pair: Pair) -> None:
    receiving = asyncio.create_task(own_pair.next_message())
    await own_pair.sender.messages.send(AGENT, "hello", traceparent=TRACE)
    assert (await receiving).traceparent == TRACE


@on_module_loop
async def test_the_receivers_clock_is_ahead_of_what_it_took(pair: Pair) -> None:
    hlc = str(Hlc(pair.receiver.clock.now_ms + 900, 7, SENDER))
    assert (await pair.bring(letter(pair.sender, hlc=hlc))).status_code == HTTPStatus.OK
    assert str(pair.receiver.clock.tick()) > hlc


# --- what is refused -----------------------------------------------------------------------------

Change = Callable[[Pair], dict[str, Any]]

BAD_FIELDS: Final[dict[str, Change]] = {
    "an id that is none": lambda _: {"message_uuid": "not-a-ulid"},
    "a sender without a name": lambda _: {"sender_agent": ""},
    "a sender named like a role": lambda _: {"sender_agent": "role:x"},
    "a line break in a name": lambda _: {"sender_agent": "x\nerror: all is lost"},
    "a receiver that is everyone": lambda _: {"receiver_agent": "*"},
    "a thread with a NUL": lambda _: {"thread_id": "\0"},
    "a type that is too long": lambda _: {"msg_type": "x" * 129},
    "a priority that is none": lambda _: {"priority": 4},
    "a priority that is a truth": lambda _: {"priority": True},
    "no attempts": lambda _: {"max_attempts": 0},
    "an answer to no message": lambda _: {"reply_to": "x"},
    "a trace that is none": lambda _: {"traceparent": "00-xyz"},
    "a time of another author": lambda pair: {"hlc": str(Hlc(pair.sender.clock.now_ms, 0, RECEIVER))},
    "a time that is none": lambda _: {"hlc": "yesterday"},
    "a time from the future": lambda pair: {"hlc": _at(pair, 60_000)},
    "a payload that is no JSON": lambda _: {"payload": "{"},
    "a payload that is not canonical": lambda _: {"payload": '{"b":1, "a":2}'},
    "a payload nested too deeply": lambda _: {"payload": "[" * 5_000 + "]" * 5_000},
    "a payload that is too large": lambda _: {"payload": '"' + "ä" * 140_000 + '"'},
    "a node with a line break": lambda pair: {"sender_node": "a\nb", "hlc": _at(pair, 0)[:20] + "a\nb"},
}


@on_module_loop
@pytest.mark.parametrize("change", BAD_FIELDS.values(), ids=BAD_FIELDS.keys())
async def test_what_is_no_message_is_unprocessable(pair: Pair, change: Change) -> None:
    before = await rows_of(pair.receiver)
    answer = await pair.bring(letter(pair.sender, **change(pair)), stored=False)
    assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY, answer.text
    assert_problem(answer, 422, answer.json()["code"])
    assert answer.json()["code"] in ("bad_value", "bad_message")
    assert await rows_of(pair.receiver) == before


@on_module_loop
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "not_json"),
        (b"{", "not_json"),
        (b'"\xff"', "not_json"),
        (b'"\\ud800"', "not_json"),
        (b"[" * 100_000, "not_json"),
        (b"[]", "bad_count"),
        (b"[" + b"{}," * MAX_MESSAGES + b"{}]", "bad_count"),
        (b"{}", "bad_message"),
        (b"null", "bad_message"),
        (b"[[]]", "bad_message"),
        (b"{" + b",".join(b'"k%d":1' % n for n in range(100_000)) + b"}", "bad_message"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[:12]),
)
async def test_a_body_that_holds_no_messages_is_unprocessable(pair: Pair, body: bytes, code: str) -> None:
    assert_problem(await pair.post(body), 400 if code == "not_json" else 422, code)


@on_module_loop
async def test_two_messages_under_one_id_are_unprocessable(pair: Pair) -> None:
    message = letter(pair.sender)
    assert_problem(await pair.bring(message, message), 422, "doubled")


@on_module_loop
async def test_messages_of_two_nodes_in_one_request_are_unprocessable(pair: Pair) -> None:
    assert_problem(await pair.bring(letter(pair.sender), letter(pair.receiver)), 422, "bad_value")


@on_module_loop
@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Content-Type": "text/plain"}, 415, "content_type"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "content_type"),
        ({"Content-Encoding": "gzip"}, 415, "content_encoding"),
        ({NODE: "another-node"}, 421, "misdirected"),
        ({NODE: ""}, 421, "misdirected"),
        ({"Authorization": "Bearer another"}, 401, "token_wrong"),
        ({"Authorization": "Bearer"}, 401, "token_missing"),
        ({"Authorization": f"Basic {TOKEN}"}, 401, "token_missing"),
    ],
    ids=str,
)
async def test_a_request_that_is_not_for_us_or_not_json_is_refused(
    pair: Pair, headers: dict[str, str], status: int, code: str
) -> None:
    message = [wire(letter(pair.sender))]
    assert_problem(await pair.post(message, pair.headers() | headers), status, code)


@on_module_loop
async def test_without_a_token_or_a_node_nothing_is_taken(pair: Pair) -> None:
    for left_out, status, code in (("Authorization", 401, "token_missing"), (NODE, 422, "node_missing")):
        headers = pair.headers()
        del headers[left_out]
        answer = await pair.post([wire(letter(pair.sender))], headers)
        assert_problem(answer, status, code)
        assert ("WWW-Authenticate" in answer.headers) == (status == HTTPStatus.UNAUTHORIZED)


@on_module_loop
async def test_the_word_bearer_may_be_written_in_any_way(pair: Pair) -> None:
    headers = pair.headers(Authorization=f"bearer {TOKEN}")
    assert (await pair.post([wire(letter(pair.sender))], headers)).status_code == HTTPStatus.OK


@on_module_loop
async def test_a_body_that_is_too_large_is_refused(pair: Pair) -> None:
    assert_problem(await pair.post(b" " * (MAX_BODY_BYTES + 1)), 413, "too_large")


@on_module_loop
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [("GET", PATH, 405, "method_not_allowed"), ("POST", "/v1/a2a", 404, "not_found")],
)
async def test_what_is_not_served_is_a_problem_too(
    pair: Pair, method: str, path: str, status: int, code: str
) -> None:
    answer = await pair.client.request(method, pair.url.removesuffix(PATH) + path)
    assert_problem(answer, status, code)
    assert answer.headers.get("Allow") == ("POST" if status == HTTPStatus.METHOD_NOT_ALLOWED else None)


# --- who is refused ------------------------------------------------------------------------------


def _forged(pair: Pair) -> Message:
    return signed(pair.sender, unsigned(pair.sender), stranger_key())


def _changed_after_signing(pair: Pair) -> Message:
    return letter(pair.sender)._replace(payload='"something else"')


def _of_another_mesh(pair: Pair) -> Message:
    message = unsigned(pair.sender)
    return message._replace(signature=pair.sender.identity.key.sign(message.signed_text("other", "default")))


def _of_an_unknown_node(pair: Pair) -> Message:
    hlc = str(Hlc(pair.sender.clock.now_ms, 0, "mallory"))
    return letter(pair.sender, sender_node="mallory", hlc=hlc)


@on_module_loop
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize(
    "make",
    [_forged, _changed_after_signing, _of_another_mesh, _of_an_unknown_node],
    ids=lambda make: make.__name__,
)
async def test_a_message_of_anybody_else_is_refused_and_logged(
    pair: Pair, make: Callable[[Pair], Message], stored: bool, caplog: pytest.LogCaptureFixture
) -> None:
    before = await rows_of(pair.receiver)
    message = make(pair)
    assert_problem(await pair.bring(message, stored=stored), 403, "sender_refused")
    assert await rows_of(pair.receiver) == before
    assert message.sender_node in caplog.text


@on_module_loop
@pytest.mark.parametrize("stored", [True, False])
async def test_one_forged_message_refuses_all_of_its_request(pair: Pair, stored: bool) -> None:
    before = await rows_of(pair.receiver)
    good = [letter(pair.sender) for _ in range(3)]
    assert_problem(await pair.bring(*good, _forged(pair), stored=stored), 403, "sender_refused")
    assert await rows_of(pair.receiver) == before


@on_module_loop
@pytest.mark.parametrize("is_expired", [True, False], ids=["expired", "sent long ago"])
async def test_a_message_that_is_too_old_is_refused(pair: Pair, is_expired: bool) -> None:
    old: dict[str, Any] = {"hlc": _at(pair, -WINDOW_MS - 1_000)}
    if is_expired:
        old = {"expires_ms": pair.sender.clock.now_ms - 1_000}
    assert_problem(await pair.bring(letter(pair.sender, **old), stored=False), 409, "message_expired")


@on_module_loop
@pytest.mark.parametrize("stored", [True, False])
async def test_another_message_under_a_known_id_is_refused(pair: Pair, stored: bool) -> None:
    sent = await pair.sender.messages.send("unknown", "the first")
    await pair.receiver.store.synced()
    other = letter(pair.sender, message_uuid=sent.message_uuid)
    assert_problem(await pair.bring(other, stored=stored), 409, "message_taken")


@on_module_loop
async def test_another_message_under_an_id_that_was_brought_is_refused(pair: Pair) -> None:
    first = letter(pair.sender)
    assert (await pair.bring(first)).status_code == HTTPStatus.OK
    other = letter(pair.sender, message_uuid=first.message_uuid, payload='"other"')
    assert_problem(await pair.bring(other), 409, "message_taken")


@on_module_loop
async def test_the_same_words_written_again_later_are_the_same_message(pair: Pair) -> None:
    first = letter(pair.sender)
    again = letter(pair.sender, message_uuid=first.message_uuid)
    assert again.signature != first.signature
    for message in (first, again):
        assert (await pair.bring(message, stored=False)).status_code == HTTPStatus.OK


async def test_an_older_incarnation_of_the_sender_is_refused(shared_mesh: SharedMesh) -> None:
    async with open_pair(shared_mesh) as pair:
        old = letter(pair.sender)
        await pair.sender.close()
        async with Mesh.open(shared_mesh.settings(SENDER, token=TOKEN)) as again:
            await pair.receiver.store.synced()
            assert_problem(await pair.bring(old, stored=False), 409, "stale_incarnation")
            assert (await pair.bring(letter(again))).status_code == HTTPStatus.OK


# --- twice is once -------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [True, False])
async def test_the_same_request_five_times_is_one_message_delivered_once(
    own_pair: Pair, stored: bool
) -> None:
    if stored:
        message = await own_pair.sender.messages.send(AGENT, "hello")
    else:
        message = letter(own_pair.sender)
    for _ in range(5):
        assert (await own_pair.bring(message, stored=stored)).status_code == HTTPStatus.OK
    assert await rows_of(own_pair.receiver) == 1
    assert (await own_pair.next_message()).message_uuid == message.message_uuid
    assert await own_pair.receiver.messages.poll_inbox_from_db(AGENT) == []


@pytest.mark.parametrize("stored", [True, False])
async def test_a_message_that_was_acknowledged_does_not_come_again(own_pair: Pair, stored: bool) -> None:
    message = letter(own_pair.sender)
    await own_pair.bring(message, stored=False)
    await own_pair.next_message()
    assert (await own_pair.bring(message, stored=stored)).status_code == HTTPStatus.OK
    await _assert_nothing_comes(own_pair)


@pytest.mark.parametrize("stored", [True, False])
async def test_a_message_does_not_come_again_after_its_receiver_began_again(
    shared_mesh: SharedMesh, stored: bool
) -> None:
    async with open_pair(shared_mesh) as pair:
        message = letter(pair.sender)
        await pair.bring(message, stored=False)
        await pair.next_message()
        await pair.receiver.close()
        async with Mesh.open(shared_mesh.settings(RECEIVER, token=TOKEN)) as again:
            await again.store.synced()
            reborn = Pair(pair.sender, again, pair.client)
            assert (await reborn.bring(message, stored=stored)).status_code == HTTPStatus.OK
            await _assert_nothing_comes(reborn)


async def test_what_was_forgotten_is_too_old_to_be_brought_again(village: SharedMesh) -> None:
    """Otherwise a copy of it would be stored, and delivered, once more."""
    async with open_pair(village, message_retention="5s") as pair:
        message = letter(pair.sender, hlc=_at(pair, -6_000))
        assert_problem(await pair.bring(message, stored=False), 409, "message_expired")
        assert await rows_of(pair.receiver) == 0


async def _assert_nothing_comes(pair: Pair) -> None:
    """The next message that comes is a new one."""
    new = await pair.sender.messages.send(AGENT, "new")
    assert (await pair.next_message()).message_uuid == new.message_uuid
    assert await pair.receiver.messages.poll_inbox_from_db(AGENT) == []


# --- while the database is away ------------------------------------------------------------------


@pytest.mark.parametrize("case", [MESH_REPLICA, *cases_in_soak(MESH)], ids=str)
async def test_while_the_database_is_away_only_known_senders_are_taken(
    case: HomeCase, tmp_path: Any, server: Server
) -> None:
    shared_mesh = SharedMesh(case, tmp_path, server, new_key(), has_relay=True)
    async with open_pair(shared_mesh, db_deadline="3s") as pair:
        await pair.assert_serving()
        server.kill()
        try:
            assert (await pair.bring(letter(pair.sender))).status_code == HTTPStatus.OK
            answer = await pair.bring(_of_an_unknown_node(pair))
            assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE, answer.text
            assert_problem(answer, 503, answer.json()["code"])
            kept = letter(pair.sender)
            for _ in range(5):
                assert (await pair.bring(kept, stored=False)).status_code == HTTPStatus.OK
            status = await pair.receiver.store.status()
            assert status.spool is not None
            assert status.spool.depth == 1, "a copy of a message must not fill the spool"
        finally:
            server.start()
        await pair.receiver.store.drained()
        assert await rows_of(pair.receiver) == 1


async def test_a_database_that_does_not_answer_lets_no_requests_pile_up(
    tmp_path: Any, server: Server
) -> None:
    shared_mesh = SharedMesh(MESH, tmp_path, server, new_key())
    async with (
        open_pair(shared_mesh, db_deadline="3s") as pair,
        serving(pair.receiver, limits=RelayLimits(at_once=4)) as (_, url),
    ):
        server.freeze()
        try:
            unknown = orjson.dumps(wire(_of_an_unknown_node(pair)))

            async def ask() -> httpx.Response:
                return await pair.client.post(url + PATH, content=unknown, headers=pair.headers())

            answers = await asyncio.gather(*(ask() for _ in range(20)))
        finally:
            server.thaw()
        codes = [answer.json()["code"] for answer in answers]
        assert {answer.status_code for answer in answers} == {503}
        assert codes.count("overloaded") == 16
        assert all(answer.headers["Retry-After"] == "1" for answer in answers)
