"""Messages that no one brings are found all the same; those of a consumer that is gone, by another."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.support.messages.message_runs import SENDER, MessageRun, post
from tests.support.running.lengths import SOAK, in_soak, only_at_full_length
from tools.homes import FILE, MESH, MESH_REPLICA, HomeCase
from tools.sqld import free_port

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900 if SOAK else 180)]

_LEASE_S: Final = 2.0
_AT_ONCE_S: Final = 15.0  # far below a poll each 60 s, and a lease of 120 s
_INTERRUPTS: Final = 20 if SOAK else 1
_MESSAGES: Final = 40


@pytest.mark.parametrize("case", [MESH_REPLICA, MESH, *in_soak(FILE)], ids=str)
async def test_without_the_relay_a_message_is_found_by_watch_or_by_asking(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    async with post(case.settings(tmp_path, server, http=True), tmp_path) as run:
        nowhere = f"http://127.0.0.1:{free_port()}"
        there = run.settings_of("node-of-reader", control_addr=nowhere, bind=f"127.0.0.1:{free_port()}")
        reader = await run.receiver(settings=there)
        sender = await run.sender(messages=3, halts=(1, 2))
        for number in range(3):
            await sender.until_told("sent", number + 1)
            sent = time.monotonic()
            await reader.until_told("acked", number + 1)
            assert time.monotonic() - sent < _AT_ONCE_S
            sender.go_on()
        await run.assert_all_arrived((SENDER,), 3)


# --- a consumer that is gone, for a while or for good --------------------------------------------


@pytest.fixture(params=[MESH_REPLICA, *in_soak(FILE)], ids=str)
async def run(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MessageRun]:
    """A run on both homes that processes share."""
    case: HomeCase = request.param
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    async with post(case.settings(tmp_path, server, http=True), tmp_path) as run:
        yield run


async def test_of_a_consumer_paused_past_its_lease_the_messages_move_on_and_its_late_ack_is_refused(
    run: MessageRun,
) -> None:
    sleeper = await run.receiver("sleeper", roles=("clerk",), lease=_LEASE_S, halts=(0,))
    await run.sender(messages=5, to="role:clerk")
    await sleeper.until_told("got")
    async with sleeper.paused(run.store):
        other = await run.receiver("other", roles=("clerk",))
        await other.until_told("acked", 5)
    sleeper.go_on()
    await sleeper.until_told("refused")
    await run.assert_all_arrived((SENDER,), 5, in_order=False)
    assert [report["refused"] for report in sleeper.reports if "refused" in report] == [0]
    assert sleeper.acked == 0
    assert run.again == 1, "it wrote down what it had been working on"


async def test_ctrl_c_leaves_no_claim_behind_whenever_it_comes(run: MessageRun, seed: int) -> None:
    random = Random(seed)
    await run.sender(messages=_INTERRUPTS * _MESSAGES)
    for _ in range(_INTERRUPTS):
        reader = await run.receiver()
        await reader.until_told("acked", 1 + random.randrange(_MESSAGES // 2))
        reader.interrupt()
        assert await reader.ended() == 130, reader.errors
        assert await run.claimed() == 0
    await run.receiver()
    await run.assert_all_arrived((SENDER,), _INTERRUPTS * _MESSAGES)


@only_at_full_length
async def test_what_a_consumer_had_at_ctrl_c_is_another_ones_at_once(run: MessageRun) -> None:
    reader = await run.receiver("reader", roles=("clerk",), halts=(0,))
    sender = await run.sender(messages=20, to="role:clerk")
    await sender.until_told("sent_all")
    await reader.until_told("got")
    other = await run.receiver("other", roles=("clerk",))
    reader.interrupt()
    interrupted = time.monotonic()
    await other.until_told("acked", 20)
    assert time.monotonic() - interrupted < _AT_ONCE_S
    await run.assert_all_arrived((SENDER,), 20)
