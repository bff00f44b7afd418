"""Messages between processes: each is handled once and in order, whatever dies or is cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest

from proof.chaos.proxy import Fault, Proxy
from tests.support.messages.message_runs import SENDER, MessageProcess, MessageRun, post
from tests.support.running.lengths import SOAK, only_at_full_length
from tools.homes import FILE, MESH_REPLICA
from tools.sqld import Server, free_port
from vox_mesh.messages.ack_queue import MAX_UNDER_WAY
from vox_mesh.model.base.backends import ReplicaChoice

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900 if SOAK else 180)]

_MESSAGES: Final = 2_000 if SOAK else 80
_RESTARTS: Final = 20 if SOAK else 1
_CUTS: Final = 60 if SOAK else 4
_KILLS: Final = 8 if SOAK else 1
_PACE: Final = 10


@pytest.fixture
async def run(tmp_path: Path, shared_server: Server) -> AsyncIterator[MessageRun]:
    """A run on the mesh."""
    async with post(MESH_REPLICA.settings(tmp_path, shared_server, http=True), tmp_path) as run:
        yield run


@asynccontextmanager
async def _behind_proxy(run: MessageRun) -> AsyncIterator[tuple[MessageProcess, Proxy]]:
    """A receiver whose service others reach through a proxy, and which has no replica to find messages in."""
    port = free_port()
    async with Proxy(port) as proxy:
        there = {"bind": f"127.0.0.1:{port}", "control_addr": proxy.url}
        settings = run.settings_of("node-of-reader", db_replica=ReplicaChoice.OFF, **there)
        yield await run.receiver(settings=settings), proxy


# --- the relay -----------------------------------------------------------------------------------


async def test_with_the_relay_up_each_message_is_dealt_with_once_and_in_order(run: MessageRun) -> None:
    async with _behind_proxy(run) as (_, proxy):
        proxy.spoil(Fault.HOLD_ANSWER, after=1)  # to see that it is used at all
        await run.sender(messages=_MESSAGES, pace=_PACE)
        await asyncio.wait_for(proxy.spoiled.acquire(), 60)
        proxy.release()
        await run.assert_all_arrived((SENDER,), _MESSAGES)
    assert run.again == 0


@only_at_full_length
@pytest.mark.parametrize("is_served", [True, False])
async def test_with_the_relay_down_each_message_is_dealt_with_once_and_in_order(
    run: MessageRun, is_served: bool
) -> None:
    stranger = {"control_addr": f"http://127.0.0.1:{free_port()}", "bind": f"127.0.0.1:{free_port()}"}
    settings = run.settings_of("node-of-reader", http=is_served, **stranger)
    await run.receiver(settings=settings)
    await run.sender(messages=_MESSAGES, pace=_PACE)
    await run.assert_all_arrived((SENDER,), _MESSAGES)
    assert run.again == 0


async def test_with_the_relay_flapping_each_message_is_dealt_with_once_and_in_order(
    run: MessageRun, seed: int
) -> None:
    random = Random(seed)
    async with _behind_proxy(run) as (receiver, proxy):
        await run.sender(messages=_MESSAGES, pace=_PACE)
        for _ in range(_CUTS):
            await receiver.until_told("acked", receiver.acked + random.randrange(_MESSAGES // _CUTS // 2))
            await proxy.refuse()
            await receiver.until_told("acked", receiver.acked + random.randrange(_MESSAGES // _CUTS // 2))
            await proxy.accept()
        await run.assert_all_arrived((SENDER,), _MESSAGES)
    assert run.again == 0


# --- the receiver --------------------------------------------------------------------------------


async def test_whenever_the_receiver_is_restarted_nothing_is_lost_doubled_or_out_of_order(
    run: MessageRun,
    seed: int,
) -> None:
    random = Random(seed)
    await run.sender(messages=_MESSAGES, pace=_PACE)
    killed = 0
    for number in range(_RESTARTS):
        receiver = await run.receiver()
        await receiver.until_told("acked", 1 + random.randrange(_MESSAGES // _RESTARTS // 2))
        if number % 2:
            receiver.terminate()
            assert await receiver.ended() == 0
        else:
            await receiver.kill()
            killed += 1
    await run.receiver()
    await run.assert_all_arrived((SENDER,), _MESSAGES)
    assert run.again <= killed, "only what was in hand when it was killed comes again"


async def test_a_receiver_that_is_killed_with_queued_acks_gets_those_messages_again_and_loses_none(
    run: MessageRun, seed: int
) -> None:
    random = Random(seed)
    await run.sender(messages=_MESSAGES)
    for _ in range(_RESTARTS):
        receiver = await run.receiver(durable=False)
        await receiver.until_told("acked", 1 + random.randrange(_MESSAGES // _RESTARTS // 2))
        await receiver.kill()
    await run.receiver(durable=False)
    await run.assert_all_arrived((SENDER,), _MESSAGES)
    assert run.again <= _RESTARTS * MAX_UNDER_WAY


# --- the sender ----------------------------------------------------------------------------------


async def test_wherever_the_sender_is_killed_what_it_sends_again_is_the_same_message(
    run: MessageRun, shared_server: Server, seed: int
) -> None:
    random = Random(seed)
    async with Proxy(shared_server.port) as database, _behind_proxy(run) as (_, relay):
        # So that nothing but messages is written, and an answer that is held is that to one of them.
        quiet = {"db_replica": ReplicaChoice.OFF, "tick": 600.0}
        settings = run.settings_of("node-of-writer", db_url=database.url, **quiet)
        faults = [
            (database, Fault.HOLD_ANSWER),  # its row is written, and it gets no answer
            (relay, Fault.CUT_REQUEST),
            (relay, Fault.HOLD_ANSWER),
        ] * _KILLS
        random.shuffle(faults)
        step = _MESSAGES // (len(faults) + 1)
        for number, (proxy, fault) in zip(range(step, _MESSAGES, step), faults, strict=False):
            # However late it is killed, something is left to be sent.
            halts = (number, number + step // 2)
            sender = await run.sender(settings=settings, messages=_MESSAGES, halts=halts)
            await sender.until_sent(number - 1)
            proxy.spoil(fault)
            sender.go_on()
            await asyncio.wait_for(proxy.spoiled.acquire(), 60)
            if proxy is database:
                await run.until_stored(number + 1)
                assert all(each.get("sent") != number for each in sender.reports)
            await sender.kill()
            proxy.release()
        for _ in range(_KILLS):
            sender = await run.sender(settings=settings, messages=_MESSAGES, pace=_PACE)
            await sender.until_told("sent", 1 + random.randrange(_PACE // 2))
            await sender.kill()
        await run.sender(settings=settings, messages=_MESSAGES, pace=_PACE)
        await run.assert_all_arrived((SENDER,), _MESSAGES)
    assert run.again == 0


# --- several -------------------------------------------------------------------------------------


@only_at_full_length
async def test_of_three_who_share_a_role_each_message_goes_to_one_and_each_pair_stays_in_order(
    tmp_path: Path,
) -> None:
    senders = [("ann", "ben"), ("cat",)]
    messages = 1_000 if SOAK else 100
    async with post(FILE.settings(tmp_path, None, http=True), tmp_path) as run:
        readers = [await run.receiver(name, roles=("clerk",)) for name in ("one", "two", "three")]
        for agents in senders:
            await run.sender(agents, to="role:clerk", messages=messages)
        await run.assert_all_arrived(("ann", "ben", "cat"), messages)
        assert run.again == 0
        assert sum(reader.acked > 0 for reader in readers) > 1, "one had all the work"
