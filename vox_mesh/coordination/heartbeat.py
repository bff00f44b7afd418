"""The heartbeat: a node's tick and, once a minute, its seal and the mesh's anchor, in one write."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from vox_mesh.coordination.clock import MeshClock, Surroundings
from vox_mesh.coordination.nodes import Nodes
from vox_mesh.coordination.oplog import Heads, OpLog
from vox_mesh.coordination.presence import Presence
from vox_mesh.errors import ChainBroken, ClockOff, MeshError
from vox_mesh.store.script import Outcome, Script
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_MINUTE_S: Final = 60.0
_JITTER: Final = 0.1
_LEAVE_S: Final = 2.0


class Heartbeat:
    """Ticks for one node."""

    def __init__(
        self,
        store: Store,
        presence: Presence,
        oplog: OpLog,
        nodes: Nodes,
        clock: MeshClock,
        surroundings: Surroundings,
        *,
        tick_s: float,
    ) -> None:
        self._store = store
        self._presence = presence
        self._oplog = oplog
        self._nodes = nodes
        self._clock = clock
        self._surroundings = surroundings
        self._tick_s = tick_s
        self._minute_began = surroundings.monotonic()
        self._anchored: Heads = {}
        self._anchoring: Heads = {}

    @property
    def pause_s(self) -> float:
        """How long until the next tick: jittered, so that nodes which began together do not stay so."""
        return self._tick_s * (1 + _JITTER * (2 * self._surroundings.chance() - 1))

    async def run_once(self) -> None:
        """Tick; and when a minute has passed, vouch for what happened in it."""
        began = self._surroundings.monotonic()
        said: list[Script] = []
        if is_full_minute := began - self._minute_began >= _MINUTE_S:
            said = await self._minute()
        started = self._clock.started()
        tick = await self._say(self._presence.beat(), said, self._tick_s)
        self._clock.heard(tick.rows.value, started)
        if is_full_minute:
            self._minute_began = began
            self._anchored = self._anchoring

    async def _say(self, first: Script, said: Sequence[Script], timeout: float) -> Outcome:
        """Write it all at once; should our log be broken, still say the first: that we live, or leave."""
        try:
            verdicts = await self._store.write_all([first, *said], timeout=timeout)
        except ChainBroken as error:
            if not said:
                raise
            _log.error("%s", error.line)
            verdicts = await self._store.write_all([first], timeout=timeout)
        for verdict in verdicts:
            if isinstance(verdict, MeshError):
                raise verdict
        assert not isinstance(verdicts[0], MeshError)
        return verdicts[0]

    async def _minute(self) -> list[Script]:
        scripts: list[Script] = []
        if self._oplog.is_seal_due:
            scripts.append(self._oplog.seal_script())
        live = await self._nodes.live_nodes_from_db()
        if min((node.node_id for node in live), default="") == self._presence.node_id:
            scripts += await self._anchor()
        return scripts

    async def _anchor(self) -> list[Script]:
        """An anchor, if any chain has grown since the last one."""
        try:
            self._clock.refuse_if_off()
        except ClockOff:
            return []
        heads = await self._oplog.heads()
        if not heads or heads == self._anchored:
            return []
        self._anchoring = heads  # anchored once it is written
        return [self._oplog.anchor_script(heads)]

    async def leave(self) -> None:
        """Say that this node ends, and vouch for the rest of its log."""
        said = [self._oplog.seal_script()] if self._oplog.is_seal_due else []
        await self._say(self._presence.leave(), said, _LEAVE_S)
