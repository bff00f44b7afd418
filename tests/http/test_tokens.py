"""Tokens: nodes with different ones can't talk, both say why, and no one ever says what the token is."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import orjson
import pytest
from pydantic import SecretStr

from tests.support.messages.relaying import (
    AGENT,
    TOKEN,
    Pair,
    address_of,
    assert_problem,
    letter,
    open_pair,
)
from tests.support.nodes.shared_mesh import SharedMesh
from vox_mesh import load_settings
from vox_mesh.errors import BadSettings, RelayFailed, RelayRefused
from vox_mesh.http import access
from vox_mesh.http.relay.client import HttpRelayClient
from vox_mesh.http.relay.endpoint import wire
from vox_mesh.http.server import relay_keys_of
from vox_mesh.mesh import Mesh
from vox_mesh.messages.relay_outbound import Peer

_OTHER: Final = "another-token-that-no-one-may-read"


async def test_nodes_with_different_tokens_leave_messages_to_the_database_and_tell_no_secret(
    shared_mesh: SharedMesh, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with (
        Mesh.open(shared_mesh.settings("ann", token=_OTHER)) as sender,
        Mesh.open(shared_mesh.settings("ben", token=TOKEN)) as receiver,
    ):
        stream = receiver.messages.receive(AGENT)
        waiting = asyncio.ensure_future(anext(stream))
        await receiver.store.synced()
        sent = await sender.messages.send(AGENT, "hello")
        async with asyncio.timeout(30):
            received = await waiting
            assert received.message_uuid == sent.message_uuid, "the database brings it all the same"
            await receiver.messages.ack(received)
        await stream.aclose()
        assert await sender.messages.directory.find_receiver(AGENT) is None
    assert "request rejected" not in caplog.text, "it is known before"
    assert TOKEN not in caplog.text
    assert _OTHER not in caplog.text


async def test_without_a_token_a_node_cannot_talk_to_one_that_has_one(village: SharedMesh) -> None:
    async with (
        Mesh.open(village.settings("ann")) as sender,
        Mesh.open(village.settings("ben", token=TOKEN)) as receiver,
    ):
        courier = HttpRelayClient("ann", None)
        try:
            with pytest.raises(RelayRefused, match="401 no token given") as raised:
                await courier.deliver(Peer("ben", address_of(receiver)), [letter(sender)], stored=True)
            assert "set VOX_MESH_TOKEN to the same value on both nodes" in raised.value.line
        finally:
            await courier.close()


async def test_tokens_are_compared_in_constant_time(
    village: SharedMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []

    class Watched:
        @staticmethod
        def compare_digest(given: bytes, known: bytes) -> bool:
            compared.append((given, known))
            return hmac.compare_digest(given, known)

    async with open_pair(village) as pair:
        monkeypatch.setattr(access, "hmac", Watched)
        for token in ("x", TOKEN[:-1], TOKEN + "x", "ü", TOKEN):
            named = pair.headers(Authorization=f"Bearer {token}").items()
            headers = [(name.encode(), value.encode()) for name, value in named]
            is_known = (await pair.client.post(pair.url, content=b"[]", headers=headers)).status_code != 401
            assert is_known == (token == TOKEN)
    assert len(compared) == 5
    assert {known for _, known in compared} == {TOKEN.encode()}


async def test_a_flood_of_strangers_does_not_fill_the_log(
    village: SharedMesh, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_pair(village) as pair:
        headers = pair.headers(Authorization="Bearer nothing")
        for _ in range(20):
            assert_problem(await pair.post([], headers), 401, "token_wrong")
        forged = letter(pair.sender)._replace(payload="0")
        for _ in range(100):
            assert_problem(await pair.bring(forged), 403, "sender_refused")
    lines = [record.getMessage() for record in caplog.records]
    assert 1 <= sum("wrong token" in line for line in lines) <= 10
    assert 1 <= sum("forged message refused" in line for line in lines) <= 10


@pytest.mark.parametrize("token", ["with space", "line\nbreak", "ünicode", "\0", "tab\t"], ids=repr)
def test_a_token_that_no_header_can_carry_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(BadSettings) as raised:
        load_settings(_env_file=None, token=SecretStr(token))
    assert raised.value.line.startswith("VOX_MESH_TOKEN: ")
    assert token not in raised.value.line


# --- what others say to our courier ----------------------------------------------------------------


@asynccontextmanager
async def _answering(answer: Callable[[bytes], bytes]) -> AsyncIterator[str]:
    """Another's server, which answers whatever it likes to the request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(request))
        await writer.drain()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def _answer(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


async def _brought(pair: Pair, answer: Callable[[bytes], bytes]) -> str:
    courier = HttpRelayClient("ann", relay_keys_of(pair.sender, TOKEN))
    async with _answering(answer) as url:
        try:
            with pytest.raises((RelayFailed, RelayRefused)) as raised:
                await courier.deliver(Peer("ben", url), [letter(pair.sender)], stored=True)
        finally:
            await courier.close()
    return raised.value.line


async def test_what_another_server_says_is_one_short_line_without_our_token(village: SharedMesh) -> None:
    def echo(request: bytes) -> bytes:
        said = request.decode() + "\x1b[31m" + "x" * 2_000
        return _answer(b"403 No", orjson.dumps({"detail": said, "hint": said + "\nerror: made up"}))

    async with open_pair(village) as pair:
        line = await _brought(pair, echo)
        assert line.startswith("403 POST /v1/a2a/deliver")
        assert TOKEN not in line
        assert line.isprintable()
        assert len(line) < 700


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"nonsense\r\n\r\n", ""),
        (_answer(b"500 No", b"[" * 10_000), "500 Internal Server Error"),
        (_answer(b"418 No", b'{"detail": 7}'), "418"),
        (_answer(b"599 No", b""), "599 unknown status"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n", "302"),
    ],
    ids=lambda value: value[:20] if isinstance(value, bytes) else None,
)
async def test_whatever_another_server_answers_is_an_error_that_can_be_reported(
    village: SharedMesh, answer: bytes, said: str
) -> None:
    async with open_pair(village) as pair:
        assert said in await _brought(pair, lambda _: answer)


async def test_an_endless_answer_is_not_read_to_the_end(village: SharedMesh) -> None:
    head = b"HTTP/1.1 409 No\r\nContent-Length: 1000000000\r\n\r\n"
    async with open_pair(village) as pair:
        line = await _brought(pair, lambda _: head + b"x" * 2**20)
        assert line.startswith("409 ")


async def test_a_trace_is_reported_in_a_header_too(village: SharedMesh) -> None:
    heads: list[bytes] = []

    def note(request: bytes) -> bytes:
        heads.append(request)
        return _answer(b"200 OK", b"{}")

    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with open_pair(village) as pair, _answering(note) as url:
        courier = HttpRelayClient("ann", relay_keys_of(pair.sender, TOKEN))
        try:
            message = letter(pair.sender, traceparent=trace)
            await courier.deliver(Peer("ben", url), [message], stored=True)
        finally:
            await courier.close()
    assert wire(message)["traceparent"] == trace
    assert f"traceparent: {trace}".encode() in heads[0]
