"""The heartbeat: a node's tick and, once a minute, its seal and the mesh's anchor, in one write."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final

from vox_mesh.errors import DatabaseFault, MeshError, OutcomeUnknown, Overloaded
from vox_mesh.heartbeat.content import ContentChooser
from vox_mesh.heartbeat.pace import HeartbeatPace
from vox_mesh.heartbeat.presence import Presence
from vox_mesh.model.nodes.liveness import DEAD_AFTER_TICKS, Vitals
from vox_mesh.nodes.agents import Agents
from vox_mesh.nodes.clock import MAX_DISTANCE_MS, Dependencies, MeshClock
from vox_mesh.nodes.database_clock import DatabaseClock
from vox_mesh.nodes.nodes import Nodes
from vox_mesh.nodes.sightings import Sightings
from vox_mesh.oplog.oplog import Heads, OpLog
from vox_mesh.oplog.witness import StoreWitness
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Outcome, Script, Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_MINUTE_S: Final = 60.0
_JITTER: Final = 0.1
_LEAVE_TIMEOUT_S: Final = 2.0
_SAVE_INTERVAL_S: Final = 1.0
_UNCONFIRMED_TICK_S: Final = 1.0
_MAX_DISAGREEMENT_MS: Final = 2_000
_NO_ANSWER: Final = "it did not answer a tick in time"
_SLEW: Final = Statement(named("database_clock")["slew"], (DEAD_AFTER_TICKS, _MAX_DISAGREEMENT_MS))


class Heartbeat:
    """Write the heartbeats of one node."""

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
        agents: Agents,
        sightings: Sightings,
        *,
        vitals: Callable[[], Vitals],
        local_agents: Callable[[], Collection[str]],
        tick_s: float,
    ) -> None:
        """`local_agents` returns the agents that live in this process."""
        self._store = store
        self._presence = presence
        self._oplog = oplog
        self._nodes = nodes
        self._clock = clock
        self._database_clock = database_clock
        self._witness = witness
        self._dependencies = dependencies
        self._agents = agents
        self._sightings = sightings
        self._vitals = vitals
        self._local_agents = local_agents
        self._tick_s = tick_s
        self._content = ContentChooser(dependencies.monotonic, lambda: store.stats.answered)
        self._pace = HeartbeatPace(store, clock, tick_s)
        self._spare_ms = 0  # as the last heartbeat has announced it
        self._minute_began = dependencies.monotonic()
        self._anchored: Heads = {}
        self._ticked_at: float | None = None
        self._saved_at: float | None = None
        self.fault = ""
        """Why the last tick failed, or an empty text."""

    @property
    def pause_s(self) -> float:
        """Return the seconds until the next tick, with jitter, so that nodes do not tick together."""
        tick_s = self._tick_s
        if self._clock.step is not None:  # steps are confirmed by the heartbeats of the nodes
            tick_s = min(tick_s, _UNCONFIRMED_TICK_S)
        return tick_s * (1 + _JITTER * (2 * self._dependencies.chance() - 1))

    @property
    def silent_s(self) -> float | None:
        """Return the seconds since a tick was last written; `None` if none was."""
        return None if self._ticked_at is None else self._dependencies.monotonic() - self._ticked_at

    @property
    def spare_s(self) -> float:
        """Return how many seconds longer than a tick the next heartbeat may take."""
        return self._spare_ms / 1_000

    async def is_due(self) -> bool:
        """Return whether a heartbeat is due now, a tick after the last question.

        A node that has nothing to tell lets ticks pass in a large mesh, as its last heartbeat has announced.
        """
        silent_s = self.silent_s
        await self._pace.refresh()
        if silent_s is None or self.fault or self._clock.step is not None or self._clock.correction_ms:
            return True
        if silent_s * 1_000 >= min(self._spare_ms, self._pace.spare_ms) or self._pace.is_clock_doubted:
            return True
        if self._database_clock.unrecorded or self._sightings.script(self._local_agents()) is not None:
            return True
        return self._content.has_news(self._vitals(), self._presence.described)

    async def run_once(self) -> None:
        """Write a tick and, when a minute has passed, a seal and an anchor."""
        try:
            await self._tick()
        except MeshError as error:  # an unknown outcome needs no retry: the next tick follows
            cause = error.__cause__ if isinstance(error, OutcomeUnknown) else error
            if isinstance(cause, DatabaseFault):
                self.fault = f"the database can't be written: {cause.line}"
            elif isinstance(error, Overloaded):  # the tick waited for a write that got no answer
                self.fault = _NO_ANSWER
            elif isinstance(error, OutcomeUnknown):
                self.fault = str(cause or _NO_ANSWER)
            else:
                self.fault = error.line
            raise
        self.fault = ""
        self._ticked_at = self._dependencies.monotonic()
        await self._save_memory()

    async def _save_memory(self) -> None:
        """Save the memory of the database's state to disk, but not with every quick tick."""
        now = self._dependencies.monotonic()
        if self._saved_at is None or now - self._saved_at >= _SAVE_INTERVAL_S:
            self._saved_at = now
            await self._witness.save()

    async def _tick(self) -> None:
        began = self._dependencies.monotonic()
        scripts: list[Script] = []
        moved: Heads = {}
        if is_full_minute := began - self._minute_began >= _MINUTE_S:
            await self._oplog.hear_of_readers()
            moved = await self._moved_heads()
            scripts = self._seal_scripts() + ([self._oplog.anchor_script(moved)] if moved else [])
            scripts.append(self._agents.prune_script())
        steps = self._database_clock.unrecorded[:]
        scripts += map(self._oplog.clock_step_script, steps)
        if self._clock.correction_ms:
            scripts.append(Script(_SLEW, repeatable=True))
        if (sighted := self._sightings.script(self._local_agents())) is not None:
            scripts.append(sighted)
        started = self._clock.started()
        vitals = self._vitals()
        content = self._content.choose(vitals, is_confirming=self._clock.step is not None)
        described, spare_ms = self._presence.described, self._pace.spare_ms
        beat = self._presence.beat(vitals, counts=content.counts, reports=content.reports, spare_ms=spare_ms)
        tick, is_all = await self._write(beat, scripts, self._tick_s)
        self._content.written(content, vitals, 1 + len(scripts), described)
        self._spare_ms = spare_ms
        now_ms, correction_ms, *witnessed = tick.rows[0]
        self._clock.heard(now_ms, started, correction_ms)
        self._witness.record_beat(*witnessed)
        if is_all:
            del self._database_clock.unrecorded[: len(steps)]
            self._sightings.written()
        if is_full_minute:
            self._minute_began = began
        if is_all:
            self._anchored |= moved

    async def _write(self, first: Script, scripts: Sequence[Script], timeout: float) -> tuple[Outcome, bool]:
        """Write the heartbeat, or leave, together with the other scripts. Return whether all succeeded."""
        outcome, *others = await self._store.write_all([first, *scripts], timeout=timeout)
        if isinstance(outcome, MeshError):
            raise outcome
        failed = [other for other in others if isinstance(other, MeshError)]
        for error in failed:
            _log.error("%s", error.line)
        return outcome, not failed

    def _seal_scripts(self) -> list[Script]:
        return [self._oplog.seal_script()] if self._oplog.is_seal_due else []

    async def _moved_heads(self) -> Heads:
        """Return the heads that moved since the last anchor, if it is this node's turn to anchor them."""
        live = await self._nodes.live_nodes_from_db()
        able = [node.node_id for node in live if abs(node.clock_distance_ms) <= MAX_DISTANCE_MS]
        if not self._clock.can_author or min(able, default="") != self._presence.node_id:
            return {}
        heads = await self._oplog.heads()
        return {chain: head for chain, head in heads.items() if self._anchored.get(chain) != head}

    async def leave(self) -> None:
        """Record that this node leaves, and seal the rest of its log."""
        await self._write(self._presence.leave(), self._seal_scripts(), _LEAVE_TIMEOUT_S)
        await self._witness.save()
