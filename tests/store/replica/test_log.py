"""Reading the primary's log: a real server's, and what is reported when there is none to be had."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from itertools import cycle

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tools.sqld import Server, free_port
from vox_mesh import Statement
from vox_mesh.errors import MeshError, NoAnswer, SyncRefused, Unauthorized, Unreachable
from vox_mesh.store.engines.hrana.http import HttpEngine
from vox_mesh.store.replica.log import PrimaryLog
from vox_mesh.store.replica.replica import Interrupted, NeedsSnapshot, NoSnapshot, SessionOver
from vox_mesh.store.replica.wire import WalFrame
from vox_mesh.store.script import new_key

_PATIENCE_S = 60.0
_SUCCESS = bytes.fromhex("800000000f677270632d7374617475733a300d0a")


@asynccontextmanager
async def log_of(url: str, token: str | None = None, timeout: float = 20.0) -> AsyncIterator[PrimaryLog]:
    """The log at that address."""
    log = PrimaryLog(url, token, timeout)
    try:
        yield log
    finally:
        await log.close()


async def run(server: Server, *statements: str) -> None:
    """Have the server commit each of these."""
    engine = HttpEngine(server.url, server.token, 20.0)
    try:
        for statement in statements:
            await engine.query(Statement(statement))
    finally:
        await engine.close()


async def frames_until(log: PrimaryLog, first: int, end: int) -> list[WalFrame]:
    """The frames from `first` up to `end`, as they are pushed."""
    found: list[WalFrame] = []
    async with asyncio.timeout(_PATIENCE_S), aclosing(log.follow(first)) as chunks:
        async for frames in chunks:
            found += frames
            if len(found) >= end - first:
                return found
    raise AssertionError("the stream has ended")


async def ask(log: PrimaryLog, first: int = 0) -> None:
    """Ask for frames and read them all; a push stream ends only in an error."""
    async with asyncio.timeout(_PATIENCE_S), aclosing(log.follow(first)) as chunks:
        async for _ in chunks:
            pass


# --- a real server --------------------------------------------------------------------------------


async def test_the_log_is_read_from_any_frame_and_then_pushed(shared_server: Server) -> None:
    table = f"t_{new_key().lower()}"
    async with log_of(shared_server.url, shared_server.token) as log:
        before = await log.hello(5.0)
        await run(shared_server, f"CREATE TABLE {table} (a)", f"INSERT INTO {table} VALUES (1)")
        after = await log.hello(5.0)
        assert after.log_id == before.log_id
        assert after.next_frame > before.next_frame
        frames = await frames_until(log, before.next_frame, after.next_frame)
        assert [frame.number for frame in frames] == list(range(before.next_frame, after.next_frame))
        assert sum(frame.size_after > 0 for frame in frames) >= 2
        following = asyncio.create_task(frames_until(log, after.next_frame, after.next_frame + 1))
        await run(shared_server, f"INSERT INTO {table} VALUES (2)")
        assert (await following)[0].number == after.next_frame


@pytest.mark.parametrize("token", [None, "x.y.z", Server().token], ids=["none", "garbage", "another's"])
async def test_a_token_that_is_not_accepted_is_reported_as_such(
    shared_server: Server, token: str | None
) -> None:
    async with log_of(shared_server.url, token) as log:
        with pytest.raises(Unauthorized) as refused:
            await log.hello(5.0)
    assert "VOX_DB_TOKEN" in refused.value.line
    assert token is None or token not in refused.value.line


async def test_frames_without_a_hello_are_refused(shared_server: Server) -> None:
    async with log_of(shared_server.url, shared_server.token) as log:
        with pytest.raises(SessionOver):
            await ask(log)


async def test_a_server_that_was_started_again_does_not_know_us_until_the_next_hello(server: Server) -> None:
    async with log_of(server.url, server.token) as log:
        await run(server, "CREATE TABLE t (a)")
        before = await log.hello(5.0)
        following = asyncio.create_task(ask(log, before.next_frame))
        server.kill()
        with pytest.raises(NoAnswer):
            await following
        server.start()
        with pytest.raises(SessionOver):
            await ask(log)
        after = await log.hello(5.0)
        assert after.session != before.session
        assert await frames_until(log, 0, after.next_frame)


async def test_a_frozen_server_keeps_a_hello_no_longer_than_its_deadline(server: Server) -> None:
    async with log_of(server.url, server.token) as log:
        await log.hello(5.0)
        server.freeze()
        began = time.monotonic()
        with pytest.raises(NoAnswer, match=r"within 0\.2 s"):
            await log.hello(0.2)
        assert time.monotonic() - began < 5
        server.thaw()
        await log.hello(20.0)


async def snapshot_of(log: PrimaryLog, first: int) -> list[WalFrame]:
    """All pages of a snapshot."""
    async with asyncio.timeout(_PATIENCE_S), aclosing(log.snapshot(first)) as chunks:
        return [frame async for frames in chunks for frame in frames]


async def test_a_snapshot_has_what_the_log_has_lost() -> None:
    with Server(flags=("--checkpoint-interval-s", "60", "--max-log-size", "1")) as server:
        async with log_of(server.url, server.token) as log:
            await run(server, "CREATE TABLE t (a)", *["INSERT INTO t VALUES (randomblob(300000))"] * 6)
            end = (await log.hello(5.0)).next_frame
            found: list[WalFrame] = []
            async with asyncio.timeout(_PATIENCE_S):
                for first in cycle((0, 1)):  # the server compacts in its own time, and may count from 1
                    try:
                        await frames_until(log, first, end)
                    except NeedsSnapshot:
                        with suppress(NoSnapshot):
                            found = await snapshot_of(log, first)
                            break
            numbers = [frame.number for frame in found]
            assert numbers == sorted(numbers, reverse=True)
            assert [frame.size_after > 0 for frame in found] == [False] * (len(found) - 1) + [True]
            assert {frame.page_number for frame in found} == set(range(1, found[-1].size_after + 1))
            with pytest.raises(NoSnapshot):
                await snapshot_of(log, end + 100_000)


async def test_a_dead_port_is_unreachable() -> None:
    async with log_of(f"http://127.0.0.1:{free_port()}") as log:
        with pytest.raises(Unreachable):
            await log.hello(5.0)


# --- something else -------------------------------------------------------------------------------


@asynccontextmanager
async def answering(answer: Callable[[], web.StreamResponse]) -> AsyncIterator[PrimaryLog]:
    """The log of a server that is no server of ours and answers everything alike."""

    async def handle(_: web.Request) -> web.StreamResponse:
        return answer()

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with TestServer(app) as server, log_of(f"http://127.0.0.1:{server.port}", "token", 2.0) as log:
        yield log


def grpc(status: str | None = None, message: str = "", body: bytes = b"") -> Callable[[], web.Response]:
    """An answer of gRPC-web, that may have failed at once."""
    headers = {"content-type": "application/grpc-web+proto"}
    if status is not None:
        headers |= {"grpc-status": status, "grpc-message": message}
    return lambda: web.Response(body=body, headers=headers)


def page(status: int) -> Callable[[], web.Response]:
    """An answer for people."""
    return lambda: web.Response(status=status, text="<h1>Hello</h1>", content_type="text/html")


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        (page(200), SyncRefused),
        (page(404), SyncRefused),
        (page(405), SyncRefused),
        (page(501), SyncRefused),
        (page(400), NoAnswer),
        (page(500), NoAnswer),
        (page(503), NoAnswer),
        (lambda: web.Response(status=302, headers={"location": "http://127.0.0.1:1/"}), NoAnswer),
        (grpc("12"), SyncRefused),
        (grpc("3", "deprecated version of sync"), SyncRefused),
        (grpc("3", "You%20use%20a%20deprecated%20version%20of%20sync"), SyncRefused),
        (grpc("16", "no"), Unauthorized),
        (grpc("7", "no"), Unauthorized),
        (grpc("14", "busy"), NoAnswer),
        (grpc("0"), NoAnswer),
        (grpc("many"), NoAnswer),
        (grpc("9" * 5_000), NoAnswer),
        (grpc(body=b""), NoAnswer),
        (grpc(body=b"\x00\x00\x00\x00\x03abc" + _SUCCESS), NoAnswer),
        (grpc(body=b"\x00\xff\xff\xff\xffabc"), NoAnswer),
        (grpc(body=b"\x80\x00\x00\x00\x03abc"), NoAnswer),
        (grpc(body=bytes(200)), NoAnswer),
    ],
)
async def test_a_server_that_is_another_is_distinguished_from_one_in_trouble(
    answer: Callable[[], web.StreamResponse], reported: type[MeshError]
) -> None:
    async with answering(answer) as log:
        with pytest.raises(reported) as hello:
            await log.hello(5.0)
        with pytest.raises((reported, Interrupted)) as frames:
            await ask(log)
    assert "token" not in str(hello.value).replace("refused the token", "")
    assert type(hello.value) is reported
    assert str(frames.value)


async def test_a_hello_that_says_nothing_is_no_answer() -> None:
    async with answering(grpc(body=_SUCCESS)) as log:
        with pytest.raises(NoAnswer, match="nothing"):
            await log.hello(5.0)
        await ask(log)  # a call may end well without a frame
