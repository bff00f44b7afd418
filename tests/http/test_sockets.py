"""Bare connections: slow, split, lying, flooding ones. No one hangs, nothing leaks, others are served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import orjson
import pytest
import pytest_asyncio

from tests.support.messages.relaying import Pair, Wire, letter, raw_request, rows_of, serving, until
from vox_mesh.http.connections import Patience
from vox_mesh.http.relay.endpoint import RelayLimits, wire
from vox_mesh.http.service import Service

pytestmark = pytest.mark.asyncio(loop_scope="module")

_SHORT: Final = Patience(first_s=0.3, kept_s=0.6, look_s=0.05, connections=512)
_ROOM: Final = 8


def _good(pair: Pair) -> bytes:
    return orjson.dumps(wire(letter(pair.sender)))


@pytest_asyncio.fixture(loop_scope="module")
async def hurried(neighbours: Pair) -> AsyncIterator[tuple[Service, int]]:
    """A service that has little patience, and its port."""
    async with serving(neighbours.receiver, patience=_SHORT, limits=RelayLimits(read_s=0.3)) as (
        service,
        url,
    ):
        yield service, int(url.rpartition(":")[2])


async def _until_alone(service: Service) -> None:
    """Wait until no connection is left."""
    await until(lambda: not service.connections.open_connections)


# --- slow ones -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [b"", b"P", b"POST /v1/a2a/deliver HTTP/1.1\r\nHost: x\r\nX-Slow: "],
    ids=["nothing", "a letter", "half"],
)
async def test_who_connects_and_asks_nothing_is_hung_up_on(hurried: tuple[Service, int], said: bytes) -> None:
    service, port = hurried
    async with Wire(port) as bare:
        await bare.send(said)
        assert await bare.to_the_end() == b""
    await _until_alone(service)


async def test_who_drips_headers_forever_is_hung_up_on(hurried: tuple[Service, int]) -> None:
    service, port = hurried
    async with Wire(port) as bare:
        await bare.send(b"POST /v1/a2a/deliver HTTP/1.1\r\n")
        dripping = asyncio.create_task(_drip(bare, b"X-Slow: 1\r\n"))
        try:
            await bare.to_the_end()
        finally:
            dripping.cancel()
    await _until_alone(service)


async def test_who_drips_headers_after_a_good_request_is_hung_up_on_too(
    neighbours: Pair, hurried: tuple[Service, int]
) -> None:
    service, port = hurried
    async with Wire(port) as bare:
        await bare.send(raw_request(neighbours.headers(), _good(neighbours)))
        assert (await bare.answer())[0] == 200
        await bare.send(b"POST /v1/a2a/deliver HTTP/1.1\r\n")
        dripping = asyncio.create_task(_drip(bare, b"X-Slow: 1\r\n"))
        try:
            await bare.to_the_end()
        finally:
            dripping.cancel()
    await _until_alone(service)


async def _drip(bare: Wire, drop: bytes) -> None:
    for _ in range(100):
        await bare.send(drop)
        await asyncio.sleep(0.05)


async def test_a_body_that_does_not_come_is_not_waited_for(
    neighbours: Pair, hurried: tuple[Service, int]
) -> None:
    service, port = hurried
    async with Wire(port) as bare:
        body = _good(neighbours)
        await bare.send(raw_request(neighbours.headers(), body[:10], Content_Length=str(len(body))))
        status, problem = await bare.answer()
        assert (status, orjson.loads(problem)["code"]) == (408, "too_slow")
        assert await bare.to_the_end() == b""
    await _until_alone(service)


async def test_who_does_not_take_the_answers_is_hung_up_on(
    neighbours: Pair, hurried: tuple[Service, int]
) -> None:
    service, port = hurried
    request = raw_request(neighbours.headers(), b"[]")
    async with Wire(port) as bare:
        bare.writer.transport.pause_reading()  # type: ignore[attr-defined]
        flooding = asyncio.create_task(bare.send(request * 20_000))
        try:
            await _until_alone(service)
        finally:
            flooding.cancel()
            await asyncio.gather(flooding, return_exceptions=True)


# --- split, lying and malformed ones -------------------------------------------------------------


async def test_a_request_in_single_bytes_is_a_request(neighbours: Pair) -> None:
    async with Wire(neighbours.port) as bare:
        for byte in raw_request(neighbours.headers(), _good(neighbours)):
            await bare.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await bare.answer())[0] == 200


async def test_a_body_in_chunks_is_a_body(neighbours: Pair) -> None:
    body = _good(neighbours)
    chunks = b"".join(b"%x\r\n%s\r\n" % (1, body[at : at + 1]) for at in range(len(body))) + b"0\r\n\r\n"
    async with Wire(neighbours.port) as bare:
        await bare.send(
            raw_request(neighbours.headers(), chunks, Content_Length=None, Transfer_Encoding="chunked")
        )
        assert (await bare.answer())[0] == 200


async def test_pipelined_requests_are_answered_in_turn(neighbours: Pair) -> None:
    good, bad = raw_request(neighbours.headers(), _good(neighbours)), raw_request(neighbours.headers(), b"[]")
    async with Wire(neighbours.port) as bare:
        await bare.send((good + bad) * 20)
        assert [(await bare.answer())[0] for _ in range(40)] == [200, 422] * 20


_LINE: Final = b"POST /v1/a2a/deliver HTTP/1.1\r\nHost: x\r\n"
MALFORMED: Final = {
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "NULs": b"\0" * 1_000 + b"\r\n\r\n",
    "no method": b" / HTTP/1.1\r\n\r\n",
    "another protocol": b"POST / HTTP/9.9\r\n\r\n",
    "a header without a name": _LINE + b": x\r\n\r\n",
    "a header with a NUL": _LINE + b"X: a\0b\r\n\r\n",
    "a line that is too long": b"POST /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
    "a header that is too long": _LINE + b"X: " + b"x" * 20_000 + b"\r\n\r\n",
    "very many headers": _LINE + b"".join(b"X-%d: 1\r\n" % n for n in range(5_000)) + b"\r\n",
    "a negative length": _LINE + b"Content-Length: -1\r\n\r\n",
    "a length that is a word": _LINE + b"Content-Length: ten\r\n\r\n",
    "two lengths": _LINE + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length and chunks": _LINE + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a huge length": _LINE + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n",
}


@pytest.mark.parametrize("said", MALFORMED.values(), ids=MALFORMED.keys())
async def test_what_is_no_http_is_answered_with_a_problem_and_hung_up_on(
    neighbours: Pair, hurried: tuple[Service, int], said: bytes
) -> None:
    service, port = hurried
    async with Wire(port) as bare:
        await bare.send(said)
        answer = await bare.to_the_end()
    status = int(answer.split()[1])
    assert 400 <= status < 500, answer
    assert b"application/problem+json" in answer
    await _until_alone(service)
    await neighbours.assert_serving()


async def test_a_flood_of_what_is_no_http_does_not_fill_the_log(
    neighbours: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    for _ in range(100):
        async with Wire(neighbours.port) as bare:
            await bare.send(MALFORMED["two lengths"])
            await bare.to_the_end()
    assert 1 <= sum("malformed request" in record.getMessage() for record in caplog.records) <= 10
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


@pytest.mark.parametrize("lie", [-40, 40], ids=["shorter", "longer"])
async def test_a_length_that_lies_hurts_no_one_else(
    neighbours: Pair, hurried: tuple[Service, int], lie: int
) -> None:
    service, port = hurried
    before = await rows_of(neighbours.receiver)
    body = _good(neighbours)
    async with Wire(port) as bare:
        await bare.send(
            raw_request(neighbours.headers(stored=False), body, Content_Length=str(len(body) + lie))
        )
        answer = await bare.to_the_end()
    assert answer.split()[1] in (b"400", b"422", b"408")
    await _until_alone(service)
    assert await rows_of(neighbours.receiver) == before
    await neighbours.assert_serving()


@pytest.mark.parametrize("size", [b"2", b"zz", b"-1", b"ffffffffffffffffff"], ids=repr)
async def test_chunks_of_a_wrong_size_hurt_no_one_else(
    neighbours: Pair, hurried: tuple[Service, int], size: bytes
) -> None:
    service, port = hurried
    chunks = size + b"\r\n" + _good(neighbours) + b"\r\n0\r\n\r\n"
    headers = neighbours.headers()
    async with Wire(port) as bare:
        await bare.send(raw_request(headers, chunks, Content_Length=None, Transfer_Encoding="chunked"))
        answer = await bare.to_the_end()
    assert 400 <= int(answer.split()[1]) < 500, answer
    await _until_alone(service)
    await neighbours.assert_serving()


async def test_who_leaves_in_the_middle_leaves_nothing(
    neighbours: Pair, hurried: tuple[Service, int], caplog: pytest.LogCaptureFixture
) -> None:
    service, port = hurried
    request = raw_request(neighbours.headers(), _good(neighbours))
    for end in range(1, len(request), 29):
        async with Wire(port) as bare:
            await bare.send(request[:end])
            await asyncio.sleep(0)
    await _until_alone(service)
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    await neighbours.assert_serving()


async def test_chunks_without_end_are_too_large(neighbours: Pair) -> None:
    headers = neighbours.headers()
    async with Wire(neighbours.port) as bare:
        await bare.send(raw_request(headers, b"", Content_Length=None, Transfer_Encoding="chunked"))
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        flooding = asyncio.create_task(_flood(bare, chunk, 64))
        try:
            assert (await bare.answer())[0] == 413
        finally:
            flooding.cancel()
            await asyncio.gather(flooding, return_exceptions=True)


async def _flood(bare: Wire, chunk: bytes, times: int) -> None:
    for _ in range(times):
        await bare.send(chunk)


# --- very many -----------------------------------------------------------------------------------


async def test_a_flood_of_connections_is_bounded_and_others_are_still_served(neighbours: Pair) -> None:
    patience = Patience(first_s=30, kept_s=30, look_s=30, connections=_ROOM)
    async with serving(neighbours.receiver, patience=patience) as (service, url):
        port = int(url.rpartition(":")[2])
        async with Wire(port) as regular:
            request = raw_request(neighbours.headers(), _good(neighbours))
            await regular.send(request)
            assert (await regular.answer())[0] == 200
            idle = [Wire(port) for _ in range(5 * _ROOM)]
            for each in idle:
                await each.__aenter__()
            async with Wire(port) as late:
                await late.send(request)
                assert (await late.answer())[0] == 200, "the idle ones make room"
                await regular.send(request)
                assert (await regular.answer())[0] == 200, "who has asked before is the last to go"
                assert len(service.connections.open_connections) <= _ROOM
            for each in idle:
                await each.__aexit__()
        await _until_alone(service)


async def test_no_task_outlives_its_connection(neighbours: Pair) -> None:
    async with serving(neighbours.receiver, patience=_SHORT) as (service, url):
        before = asyncio.all_tasks()
        port = int(url.rpartition(":")[2])
        for _ in range(30):
            async with Wire(port) as bare:
                await bare.send(raw_request(neighbours.headers(), _good(neighbours)))
                assert (await bare.answer())[0] == 200
        await _until_alone(service)
        await until(lambda: not asyncio.all_tasks() - before)
