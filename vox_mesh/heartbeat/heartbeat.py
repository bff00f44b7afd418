"""The heartbeat: a node's tick and, once a minute, its seal and the mesh's anchor, in one write."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from vox_mesh.errors import DatabaseFault, MeshError, OutcomeUnknown
from vox_mesh.heartbeat.presence import Presence
from vox_mesh.model.nodes.liveness import DEAD_AFTER_TICKS
from vox_mesh.nodes.clock import MAX_DISTANCE_MS, Dependencies, MeshClock
from vox_mesh.nodes.database_clock import DatabaseClock
from vox_mesh.nodes.nodes import Nodes
from vox_mesh.oplog.oplog import Heads, OpLog
from vox_mesh.oplog.witness import StoreWitness
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Outcome, Script, Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_MINUTE_S: Final = 60.0
_JITTER: Final = 0.1
_LEAVE_S: Final = 2.0
_REMEMBER_S: Final = 1.0
_UNSURE_S: Final = 1.0
_AGREED_MS: Final = 2_000
_SLEW: Final = Statement(named("database_clock")["slew"], (DEAD_AFTER_TICKS, _AGREED_MS))


class Heartbeat:
    """Ticks for one node."""

    def __init__(
        self,
        store: Store,
        presence: Presence,
        oplog: OpLog,
        nodes: Nodes,
        clock: MeshClock,
        database_clock: DatabaseClock,
        witness: StoreWitness,
        dependencies: Dependencies,
        *,
        tick_s: float,
    ) -> None:
        self._store = store
        self._presence = presence
        self._oplog = oplog
        self._nodes = nodes
        self._clock = clock
        self._database_clock = database_clock
        self._witness = witness
        self._dependencies = dependencies
        self._tick_s = tick_s
        self._minute_began = dependencies.monotonic()
        self._anchored: Heads = {}
        self._ticked_at: float | None = None
        self._remembered_at: float | None = None
        self.fault = ""
        """Why the last tick failed, if it did."""

    @property
    def pause_s(self) -> float:
        """How long until the next tick: jittered, so that nodes which began together do not stay so."""
        tick_s = self._tick_s
        if self._clock.step is not None:  # it is confirmed by what the nodes say with their ticks
            tick_s = min(tick_s, _UNSURE_S)
        return tick_s * (1 + _JITTER * (2 * self._dependencies.chance() - 1))

    @property
    def silent_s(self) -> float | None:
        """How long ago a tick was last written; `None`: none ever was."""
        return None if self._ticked_at is None else self._dependencies.monotonic() - self._ticked_at

    async def run_once(self) -> None:
        """Tick; and when a minute has passed, vouch for what happened in it."""
        try:
            await self._tick()
        except MeshError as error:  # one of unknown outcome need not be sent again: the next tick comes
            cause = error.__cause__ if isinstance(error, OutcomeUnknown) else error
            if isinstance(cause, DatabaseFault):
                self.fault = f"the database can't be written: {cause.line}"
            elif isinstance(error, OutcomeUnknown):
                self.fault = str(cause or "it did not answer a tick in time")
            else:
                self.fault = error.line
            raise
        self.fault = ""
        self._ticked_at = self._dependencies.monotonic()
        await self._remember()

    async def _remember(self) -> None:
        """Keep what was seen of the database on disk; not with every tick of a node that ticks quickly."""
        now = self._dependencies.monotonic()
        if self._remembered_at is None or now - self._remembered_at >= _REMEMBER_S:
            self._remembered_at = now
            await self._witness.save()

    async def _tick(self) -> None:
        began = self._dependencies.monotonic()
        said: list[Script] = []
        moved: Heads = {}
        if is_full_minute := began - self._minute_began >= _MINUTE_S:
            moved = await self._moved_heads()
            said = self._seal() + ([self._oplog.anchor_script(moved)] if moved else [])
        steps = self._database_clock.unrecorded[:]
        said += map(self._oplog.clock_step_script, steps)
        if self._clock.correction_ms:
            said.append(Script(_SLEW, repeatable=True))
        started = self._clock.started()
        tick, is_all = await self._say(self._presence.beat(), said, self._tick_s)
        now_ms, correction_ms, *witnessed = tick.rows[0]
        self._clock.heard(now_ms, started, correction_ms)
        self._witness.beat(*witnessed)
        if is_all:
            del self._database_clock.unrecorded[: len(steps)]
        if is_full_minute:
            self._minute_began = began
        if is_all:
            self._anchored |= moved

    async def _say(self, first: Script, said: Sequence[Script], timeout: float) -> tuple[Outcome, bool]:
        """Write it all at once: that we live, or leave; and, unless our log is broken, the rest."""
        outcome, *others = await self._store.write_all([first, *said], timeout=timeout)
        if isinstance(outcome, MeshError):
            raise outcome
        failed = [other for other in others if isinstance(other, MeshError)]
        for error in failed:
            _log.error("%s", error.line)
        return outcome, not failed

    def _seal(self) -> list[Script]:
        return [self._oplog.seal_script()] if self._oplog.is_seal_due else []

    async def _moved_heads(self) -> Heads:
        """The heads to anchor: those that have moved since we last did, if it is ours to do."""
        live = await self._nodes.live_nodes_from_db()
        able = [node.node_id for node in live if abs(node.clock_distance_ms) <= MAX_DISTANCE_MS]
        if not self._clock.can_author or min(able, default="") != self._presence.node_id:
            return {}
        heads = await self._oplog.heads()
        return {chain: head for chain, head in heads.items() if self._anchored.get(chain) != head}

    async def leave(self) -> None:
        """Say that this node ends, and vouch for the rest of its log."""
        await self._say(self._presence.leave(), self._seal(), _LEAVE_S)
        await self._witness.save()
