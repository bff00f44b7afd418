"""A monitor outside of the mesh: it polls the heads of the chains and the expired messages."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from proof.final_state import Ask
from proof.history import Recorder
from vox_mesh.errors import MeshError

_HEADS: Final = "SELECT node_id, max(seq) AS seq, hash FROM agent_oplog GROUP BY node_id"
"""In SQLite, the other columns of a row with `max` come from the row with the maximum."""


_EXPIRED: Final = "SELECT message_uuid FROM a2a_messages WHERE state = 'expired'"


class Monitor:
    """Note each new head, and each newly expired message."""

    def __init__(self, ask: Ask, recorder: Recorder) -> None:
        self._ask = ask
        self._recorder = recorder
        self._heads: dict[str, tuple[int, str]] = {}
        self._expired: set[str] = set()

    async def run(self, every_s: float) -> None:
        """Poll until cancelled. Skip a poll while the database is unreachable."""
        while True:
            with suppress(MeshError):
                await self.observe()
            await asyncio.sleep(every_s)

    async def observe(self) -> None:
        """Poll once."""
        asked_at = self._recorder.now()
        for row in await self._ask(_HEADS):
            seq, head = row["seq"], row["hash"]
            if self._heads.get(row["node_id"]) != (seq, head):
                self._heads[row["node_id"]] = seq, head
                self._recorder.note(
                    "monitor.head", chain=row["node_id"], seq=seq, hash=head, asked_at=asked_at
                )
        for row in await self._ask(_EXPIRED):
            if row["message_uuid"] not in self._expired:
                self._expired.add(row["message_uuid"])
                self._recorder.note("monitor.expired", key=row["message_uuid"])
