"""Messages while the database answers late: nothing that was acknowledged is handed out again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.messages.message_runs import post
from tests.support.running.lengths import SOAK
from tests.support.store.holding_writes import write_transaction
from tools.homes import MESH_REPLICA
from tools.sqld import Server

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900 if SOAK else 180)]

_STALLS: Final = 100 if SOAK else 8
_AGENTS: Final = tuple(f"agent-{number}" for number in range(6))
_PATIENCE_S: Final = 0.05
_STALL_S: Final = 8 * _PATIENCE_S


@asynccontextmanager
async def _frozen(server: Server) -> AsyncIterator[None]:
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


async def test_no_acked_message_is_handed_out_again_while_the_database_is_slow(
    tmp_path: Path, server: Server
) -> None:
    settings = MESH_REPLICA.settings(tmp_path, server, http=True)
    async with post(settings, tmp_path) as run:
        for name in ("one", "two"):
            await run.receiver(settings=run.settings_of(name), patience=_PATIENCE_S, loops=2)
        sender = await run.sender(_AGENTS, messages=_STALLS, strangers=True)
        for number in range(_STALLS):
            await sender.until_told("sent", number * len(_AGENTS) + 1)
            async with write_transaction(server) if number % 4 else _frozen(server):
                await asyncio.sleep(_STALL_S)  # the stall itself, not a wait for anything
        await run.until_acked(len(_AGENTS) * _STALLS)
        assert run.handed_out_after_ack() == []
