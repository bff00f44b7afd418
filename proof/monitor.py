"""A monitor beside the mesh: it looks at the op log from time to time, and keeps where the chains ended."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from proof.history import Recorder
from proof.reading import Ask
from vox_mesh.errors import MeshError

_HEADS: Final = "SELECT node_id, max(seq) AS seq, hash FROM agent_oplog GROUP BY node_id"
"""The other columns of a row with `max` are those of the row that it is from."""


class Monitor:
    """Notes each head that it has not seen before."""

    def __init__(self, ask: Ask, recorder: Recorder) -> None:
        self._ask = ask
        self._recorder = recorder
        self._heads: dict[str, tuple[int, str]] = {}

    async def run(self, every_s: float) -> None:
        """Look again and again, until cancelled. While the database is away there is nothing to see."""
        while True:
            with suppress(MeshError):
                await self.look()
            await asyncio.sleep(every_s)

    async def look(self) -> None:
        """Look once."""
        for row in await self._ask(_HEADS):
            head = row["seq"], row["hash"]
            if self._heads.get(row["node_id"]) != head:
                self._heads[row["node_id"]] = head
                self._recorder.note("monitor.head", chain=row["node_id"], seq=head[0], hash=head[1])
