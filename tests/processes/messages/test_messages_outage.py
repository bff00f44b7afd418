"""Messages while the database is away: they are kept, brought by the relay, and end as one row each."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Final

import pytest

from proof.chaos.proxy import Fault, Proxy
from tests.support.messages.message_runs import SENDER, post
from tests.support.running.lengths import SOAK, in_soak, only_at_full_length
from tools.homes import MESH, MESH_REPLICA, HomeCase
from tools.sqld import Server, free_port

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900 if SOAK else 180)]

_BEFORE: Final = 50
_MEANWHILE: Final = 500 if SOAK else 40
_IN_A_ROW: Final = 200
_OUTAGES: Final = 10 if SOAK else 1
_SHORT: Final = {"db_deadline": 1.0, "db_request_timeout": 0.5, "tick": 0.5, "db_max_stale_ms": 500}
"""So that all that was known of the database is soon out of date."""

_CUTS: Final = {"frozen": Server.freeze, "killed": Server.kill}


async def _mend(server: Server, how: str) -> None:
    await asyncio.to_thread(server.thaw if how == "frozen" else server.start)


@pytest.mark.parametrize(
    ("case", "how", "breaker"),
    [
        (MESH_REPLICA, "killed", False),
        *in_soak((MESH_REPLICA, "frozen", True), (MESH, "killed", False), (MESH, "frozen", True)),
    ],
    ids=str,
)
async def test_while_the_database_is_away_messages_are_brought_and_afterwards_each_has_one_row(
    tmp_path: Path, server: Server, case: HomeCase, how: str, breaker: bool
) -> None:
    settings = case.settings(tmp_path, server, db_circuit_breaker=breaker, http=True).model_copy(
        update=_SHORT
    )
    async with post(settings, tmp_path) as run:
        reader = await run.receiver()
        sender = await run.sender(messages=_BEFORE + _MEANWHILE, halts=(_BEFORE,))
        await run.until_acked(_BEFORE)
        await run.until_leased()
        _CUTS[how](server)
        sender.go_on()
        await sender.until_told("sent_all")
        assert sender.spooled == _MEANWHILE
        await reader.until_told("acked", _BEFORE + _MEANWHILE)
        await _mend(server, how)
        await run.assert_all_arrived((SENDER,), _BEFORE + _MEANWHILE)
        assert run.again == 0


@only_at_full_length
async def test_a_database_that_goes_away_in_the_middle_of_the_traffic_loses_and_reorders_nothing(
    tmp_path: Path, server: Server, seed: int
) -> None:
    random = Random(seed)
    messages = _OUTAGES * _IN_A_ROW
    settings = MESH_REPLICA.settings(tmp_path, server, http=True).model_copy(update=_SHORT)
    async with post(settings, tmp_path) as run:
        await run.receiver()
        sender = await run.sender(messages=messages, halts=tuple(range(_IN_A_ROW, messages, _IN_A_ROW)))
        for first in range(0, messages, _IN_A_ROW):
            how = random.choice(list(_CUTS))
            await sender.until_sent(first + random.randrange(_IN_A_ROW // 2))
            _CUTS[how](server)
            await sender.until_sent(first + _IN_A_ROW - 1)
            await _mend(server, how)
            sender.go_on()
        await run.assert_all_arrived((SENDER,), messages)
        print(f"{sender.spooled} were spooled, {run.again} came again")


@only_at_full_length
async def test_what_the_relay_left_out_is_not_overtaken_when_the_database_goes_away(
    tmp_path: Path, server: Server
) -> None:
    port = free_port()
    settings = MESH_REPLICA.settings(tmp_path, server, http=True).model_copy(update=_SHORT)
    async with post(settings, tmp_path) as run, Proxy(port) as relay:
        there = run.settings_of("node-of-reader", bind=f"127.0.0.1:{port}", control_addr=relay.url)
        reader = await run.receiver(settings=there, halts=(0,))
        sender = await run.sender(messages=60, halts=(20, 40))
        await reader.until_told("got")
        await sender.until_told("sent", 20)
        relay.spoil(Fault.HOLD_ANSWER)
        sender.go_on()
        await sender.until_told("sent", 40)  # while one is under way, few wait, and the others are left out
        relay.release()
        sender.go_on()
        await sender.until_told("sent_all")
        await run.until_leased()
        server.kill()
        reader.go_on()
        await reader.until_told("acked")
        await _mend(server, "killed")
        await run.assert_all_arrived((SENDER,), 60)


async def test_what_the_receiver_has_not_claimed_yet_is_not_overtaken_when_the_database_goes_away(
    tmp_path: Path, server: Server
) -> None:
    settings = MESH_REPLICA.settings(tmp_path, server, http=True).model_copy(update=_SHORT)
    async with post(settings, tmp_path) as run:
        reader = await run.receiver(halts=(0, 2))
        sender = await run.sender(messages=60, halts=(*range(2, 40, 2), 40))
        await reader.until_told("got")
        for number in range(2, 40, 2):
            sender.go_on()
            await sender.until_told("sent", number + 2)
        reader.go_on()
        await reader.until_told("got", 3)  # with the next few, it has claimed no more than those
        await run.until_leased()
        server.kill()
        sender.go_on()
        await sender.until_told("sent_all")
        reader.go_on()
        await reader.until_told("got", 12)
        await _mend(server, "killed")
        await run.assert_all_arrived((SENDER,), 60)
