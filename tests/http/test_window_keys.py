"""Keys of the relay: nodes show each other one of the bar, never the token, and it opens nothing else."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest
from aiohttp import web

from tests.support.messages.relaying import (
    AGENT,
    PATIENCE_S,
    RECEIVER,
    TOKEN,
    Pair,
    address_of,
    assert_problem,
    letter,
    open_pair,
    serving,
)
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.running.lengths import SOAK
from vox_mesh.errors import DatabaseUnavailable, RelayFailed
from vox_mesh.http.relay.client import HttpRelayClient
from vox_mesh.http.relay.endpoint import PATH, wire
from vox_mesh.http.relay.keys import RelayKeys
from vox_mesh.http.server import relay_keys_of
from vox_mesh.mesh import Mesh
from vox_mesh.messages.relay_outbound import Peer, Remote
from vox_mesh.model.rhythm.tempo import Tempo, Timeline
from vox_mesh.model.rhythm.window_keys import MARK, RELAY, check, issue
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies

on_module_loop = pytest.mark.asyncio(loop_scope="module")

_TIMELINE: Final = Timeline([Tempo(60, 8)])
_BAR_MS: Final = 8_000
_BARS: Final = 20 if SOAK else 5
_AT_ONCE: Final = 25


class _Clock:
    """Turned by hand, and put right when its owner looks."""

    def __init__(self, behind_ms: int = 0) -> None:
        self.now_ms = 1_000 * _BAR_MS - behind_ms
        self._behind_ms = behind_ms
        self.looks = 0

    async def look(self) -> None:
        self.looks += 1
        self.now_ms += self._behind_ms
        self._behind_ms = 0


async def _nobody_answers() -> None:
    raise DatabaseUnavailable("it is away")


def _project(node: MeshNode) -> tuple[str, str]:
    scope_id, repository_id, _ = node.store.writer_id
    return scope_id, repository_id


def _keys(
    node: MeshNode, clock: _Clock, look: Callable[[], Awaitable[object]] | None = None, *, bars: int = 1
) -> RelayKeys:
    return RelayKeys(
        TOKEN,
        _project(node),
        now_ms=lambda: clock.now_ms,
        window_at=_TIMELINE.window_at,
        revoke_after_bars=lambda: bars,
        check_clock=clock.look if look is None else look,
    )


async def _bring(pair: Pair, url: str, key: str) -> httpx.Response:
    headers = pair.headers(Authorization=f"Bearer {key}")
    return await pair.client.post(url + PATH, json=[wire(letter(pair.sender))], headers=headers)


# --- what a key opens, and for how long ------------------------------------------------------------


@on_module_loop
@pytest.mark.parametrize("bars", [0, 1, 3])
async def test_a_captured_key_brings_messages_until_its_bars_are_over(neighbours: Pair, bars: int) -> None:
    clock = _Clock()
    keys = _keys(neighbours.receiver, clock, bars=bars)
    captured = keys.current()
    async with serving(neighbours.receiver, keys=keys) as (_, url):
        clock.now_ms += (1 + bars) * _BAR_MS - 1
        assert (await _bring(neighbours, url, captured)).status_code == 200
        clock.now_ms += 1
        assert_problem(await _bring(neighbours, url, captured), 401, "token_stale")
        assert (await _bring(neighbours, url, keys.current())).status_code == 200, "the one of that bar"


@on_module_loop
async def test_a_key_of_the_bar_that_comes_is_taken_and_a_later_one_is_not(neighbours: Pair) -> None:
    clock = _Clock()
    keys = _keys(neighbours.receiver, clock)
    async with serving(neighbours.receiver, keys=keys) as (_, url):
        for bars, status in ((1, 200), (2, 401)):
            ahead = _TIMELINE.window_at(clock.now_ms + bars * _BAR_MS)
            key = issue(TOKEN, _project(neighbours.receiver), RELAY, ahead)
            assert (await _bring(neighbours, url, key)).status_code == status
        assert_problem(await _bring(neighbours, url, key), 401, "token_early")


@on_module_loop
async def test_a_key_of_the_relay_opens_nothing_else(neighbours: Pair) -> None:
    key = relay_keys_of(neighbours.sender, TOKEN).current()
    headers = {"Authorization": f"Bearer {key}"}
    base = address_of(neighbours.receiver)
    for path in ("/v1/locks", "/v1/jobs", "/v1/nodes", "/v1/events", "/metrics"):
        answer = await neighbours.client.get(base + path, headers=headers)
        assert_problem(answer, 403, "relay_only")
    body = {"keys": ["task:1"], "agent": "thief"}
    answer = await neighbours.client.post(f"{base}/v1/locks", json=body, headers=headers)
    assert_problem(answer, 403, "relay_only")
    assert await neighbours.receiver.locks.holders() == []
    assert (await _bring(neighbours, base, key)).status_code == 200
    assert (await _bring(neighbours, base, TOKEN)).status_code == 200, "for older nodes, and by hand"


@on_module_loop
async def test_a_key_of_another_token_project_or_role_is_refused(neighbours: Pair) -> None:
    window = neighbours.receiver.rhythm.timeline.window_at(neighbours.receiver.clock.now_ms)
    base = address_of(neighbours.receiver)
    own = _project(neighbours.receiver)
    for key, code in (
        (issue("another token", own, RELAY, window), "token_wrong"),
        (issue(TOKEN, own, "other", window), "token_wrong"),
        (issue(TOKEN, ("", own[1]), RELAY, window), "token_of_other_project"),
        (issue(TOKEN, own, RELAY, window)[:-1], "token_wrong"),
    ):
        assert_problem(await _bring(neighbours, base, key), 401, code)


# --- what the courier does ---------------------------------------------------------------------------


@on_module_loop
@pytest.mark.parametrize("bars_off", [5, -5], ids=["behind", "ahead"])
async def test_a_sender_whose_key_is_out_of_time_looks_at_the_clock_and_tries_once_more(
    neighbours: Pair, bars_off: int
) -> None:
    receiver, message = neighbours.receiver, letter(neighbours.sender)
    wrong = _Clock(bars_off * _BAR_MS)
    courier = HttpRelayClient("ann", _keys(receiver, wrong))
    async with serving(receiver, keys=_keys(receiver, _Clock())) as (_, url):
        try:
            for _ in range(2):
                await courier.deliver(Peer(RECEIVER, url), [message], stored=True)
        finally:
            await courier.close()
    assert wrong.looks == 1, "the next one is right at once"


async def test_a_node_whose_clock_was_wrong_has_the_time_from_the_database(village: SharedMesh) -> None:
    ahead_s = 0.0
    turned = Dependencies(monotonic=lambda: time.monotonic() + ahead_s)
    async with (
        Mesh.open(village.settings("ann", token=TOKEN), turned) as sender,
        Mesh.open(village.settings(RECEIVER, token=TOKEN)) as receiver,
    ):
        message = letter(sender)
        ahead_s = 600.0
        courier = HttpRelayClient("ann", relay_keys_of(sender, TOKEN))
        try:
            await courier.deliver(Peer(RECEIVER, address_of(receiver)), [message], stored=True)
        finally:
            await courier.close()
        assert abs(sender.clock.now_ms - receiver.clock.now_ms) < 60_000


@on_module_loop
async def test_a_sender_that_cannot_put_its_clock_right_may_try_again_later(neighbours: Pair) -> None:
    receiver, message = neighbours.receiver, letter(neighbours.sender)
    courier = HttpRelayClient("ann", _keys(receiver, _Clock(5 * _BAR_MS), _nobody_answers))
    async with serving(receiver, keys=_keys(receiver, _Clock())) as (_, url):
        try:
            with pytest.raises(RelayFailed, match="401 key expired: its bar is over") as raised:
                await courier.deliver(Peer(RECEIVER, url), [message], stored=True)
        finally:
            await courier.close()
    assert "clock" in raised.value.hint
    assert TOKEN not in raised.value.line


@asynccontextmanager
async def _stand_in(heads: asyncio.Queue[tuple[dict[str, str], bytes]]) -> AsyncIterator[str]:
    """A server at the address of a node; notes all that comes."""

    async def note(request: web.Request) -> web.Response:
        heads.put_nowait((dict(request.headers), await request.read()))
        return web.json_response({})

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", note)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    try:
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_between_nodes_the_token_itself_never_travels(village: SharedMesh) -> None:
    heads: asyncio.Queue[tuple[dict[str, str], bytes]] = asyncio.Queue()
    async with (
        _stand_in(heads) as url,
        Mesh.open(village.settings("ann", token=TOKEN)) as sender,
        Mesh.open(village.settings("ben", token=TOKEN, control_addr=url, bind="127.0.0.1:0")) as receiver,
        asyncio.timeout(PATIENCE_S),
    ):
        stream = receiver.messages.receive(AGENT)
        waiting = asyncio.ensure_future(anext(stream))
        while heads.empty():
            sender.messages.directory._known.clear()  # it is announced in the background
            offered = _counts(sender).total()
            await sender.messages.send(AGENT, "hello", route=Remote(url))
            # A node that writes meanwhile does not relay, and no event says that it is through.
            while heads.empty() and _counts(sender).total() == offered:  # noqa: ASYNC110
                await asyncio.sleep(0)
        headers, body = await heads.get()
        await receiver.messages.ack(await waiting)
        await stream.aclose()
        shown = headers["Authorization"].removeprefix("Bearer ")
        now_ms = receiver.clock.now_ms
        assert check(TOKEN, shown, _project(receiver), RELAY, now_ms, revoke_after_bars=1) is None
    assert shown.startswith(MARK)
    assert TOKEN not in f"{headers}{body!r}"


# --- rotation --------------------------------------------------------------------------------------


async def test_rotation_under_load_loses_nothing_and_the_relay_goes_on_to_be_used(
    village: SharedMesh, tmp_path: Path
) -> None:
    policy = tmp_path / "fast.yaml"
    policy.write_text("cluster_id: c\ninitial_bpm: 600\nbar_len_beats: 4\n")
    async with open_pair(village, tempo_policy=policy) as pair, asyncio.timeout(4 * PATIENCE_S):
        sender, receiver = pair.sender, pair.receiver
        await sender.rhythm.refresh()
        await receiver.rhythm.refresh()
        assert sender.rhythm.frame().beat_ms == 100
        by_relay = Remote(address_of(receiver))
        stream = receiver.messages.receive(AGENT)
        sent: list[str] = []
        received: list[str] = []
        brought_in: set[int] = set()
        async for frame in sender.rhythm.beats():
            before = _counts(sender)["brought"]
            several = [await sender.messages.send(AGENT, "next", route=by_relay) for _ in range(_AT_ONCE)]
            sent += [each.message_uuid for each in several]
            # The receiver looks only then: what it finds by itself is not relayed.
            await _until_relayed(sender, len(sent))
            for _ in several:
                message = await anext(stream)
                await receiver.messages.ack(message)
                received.append(message.message_uuid)
            if _counts(sender)["brought"] > before:
                brought_in.add(sender.rhythm.timeline.window_at(frame.epoch_ms).start_ms)
            if len(brought_in) >= _BARS and len(sent) >= 300:
                break
        await stream.aclose()
        assert received == sent
        assert _counts(sender)["refused"] == 0


def _counts(node: MeshNode) -> Counter[str]:
    assert node._server is not None
    return node._server._outbox.counts


async def _until_relayed(node: MeshNode, count: int) -> None:
    """Wait until this many messages were brought, or left to be found; no event reports it."""
    while _counts(node).total() < count:  # noqa: ASYNC110
        await asyncio.sleep(0)
