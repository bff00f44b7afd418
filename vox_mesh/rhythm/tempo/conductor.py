"""The conductor: a node's duties for the rhythm of the whole mesh, run on every downbeat.

One node leads: it controls the tempo and reports on each bar. The others check that it does, and report in
its place if it is late; only the leader changes the tempo.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from vox_mesh.errors import MeshError, StaleIncarnation, StoreClosed
from vox_mesh.locks.leadership import Leadership
from vox_mesh.model.rhythm.frames import TempoSource
from vox_mesh.model.rhythm.plan import Plan, PlanEntry, median
from vox_mesh.model.rhythm.tempo import Window
from vox_mesh.nodes.nodes import Nodes
from vox_mesh.rhythm.cleanup import Tidying
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.rhythm.help.help import Help
from vox_mesh.rhythm.reports.bar_reporter import BarReporter
from vox_mesh.rhythm.tempo.controller import TempoController
from vox_mesh.rhythm.tempo.policies import Policies
from vox_mesh.rhythm.tempo.pulse import Pulse

_log = logging.getLogger(__name__)

_LEAD_BARS: Final = 2.5
_LEAST_LEAD_S: Final = 5.0
_MOST_LEAD_S: Final = 120.0
_DIFFER_BARS: Final = 2
"""How many bars nodes may follow different policies: each learns of a new one in its own time."""

_NOT_LED: Final = "the rhythm could not be led"

Duty = Callable[[], Awaitable[object]]


class Conductor:
    """Runs a node's duties. A node that has just started skips the bars it did not see completely."""

    def __init__(
        self,
        ground: RhythmContext,
        policies: Policies,
        pulse: Pulse,
        leadership: Leadership,
        reverb: BarReporter,
        controller: TempoController,
        helping: Help,
        nodes: Nodes,
    ) -> None:
        self._ground = ground
        self._policies = policies
        self._pulse = pulse
        self._leadership = leadership
        self._reverb = reverb
        self._controller = controller
        self._help = helping
        self._nodes = nodes
        self._tidying = Tidying(ground)
        self._came_ms: int | None = None
        self._begun_ms = self._reported_ms = 0  # the last bar begun here, and the last one reported on
        self._said = ""
        self._differing_since_ms: int | None = None
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """Run the duties until cancelled."""
        while True:
            await self.catch_up()
            await self._ground.times.until(self._next_ms(), or_set_back=True)

    def _next_ms(self) -> int:
        """Return when the next duty is due."""
        now_ms = self._ground.times.now_ms
        window = self._ground.timeline.window_at(now_ms)
        report_ms = window.start_ms + self._patience_ms
        lead_ms = now_ms + round(self._lead_s * 1_000 / 4)
        return min(window.end_ms, lead_ms, report_ms if report_ms > now_ms else window.end_ms)

    def announce_again(self) -> None:
        """Announce this node's policy again: the database may have lost it."""
        self._said = ""

    async def catch_up(self) -> None:
        """Run the duties that are due."""
        async with self._turn:
            now_ms = self._ground.times.now_ms
            window = self._ground.timeline.window_at(now_ms)
            if self._begun_ms > window.end_ms:
                _log.warning("clock set back: rhythm restarts from the current bar")
                self._begun_ms = self._reported_ms = 0
            is_first, is_new_bar = self._begun_ms == 0, self._begun_ms < window.start_ms
            self._begun_ms = window.start_ms
            if not self._has_seen_a_bar_before(window):
                if is_new_bar and not is_first:  # a starting node has just read it
                    await self._told(self._policies.look, "the tempo could not be read")
                return
            await (self._begin_bar() if is_new_bar else self._told(self._lead, _NOT_LED))
            if self._reported_ms < window.start_ms <= now_ms - self._patience_ms:
                self._reported_ms = window.start_ms
                await self._told(self._report, "the last bar could not be reported on")

    def _has_seen_a_bar_before(self, window: Window) -> bool:
        """Return whether this node has seen a complete bar, by the database's clock."""
        if self._came_ms is None and self._ground.clock.is_set:
            self._came_ms = self._ground.times.now_ms
        before = self._ground.timeline.window_at(window.start_ms - 1)
        return self._came_ms is not None and self._came_ms <= before.start_ms

    async def _begin_bar(self) -> None:
        for duty, failure in (
            (self._policies.look, "the tempo could not be read"),
            (self._lead, _NOT_LED),
            (self._say, "nobody could be told by which tempo this node goes"),
            (self._agree, "the tempos of other nodes could not be read"),
            (self._help.close_due, "promises that are over could not be ended"),
        ):
            await self._told(duty, failure)

    async def _told(self, duty: Duty, failure: str) -> None:
        try:
            await duty()
        except (StaleIncarnation, StoreClosed):
            raise
        except MeshError as error:
            _log.warning("%s: %s", failure, error.line)

    @property
    def _lead_s(self) -> float:
        """The lease of the leadership in seconds: some bars, within fixed bounds."""
        bar_s = self._ground.entry.tempo.bar_ms / 1_000
        return min(max(_LEAD_BARS * bar_s, _LEAST_LEAD_S), _MOST_LEAD_S)

    async def _lead(self) -> None:
        if await self._leadership.keep(self._lead_s):
            await self._policies.settle()
            await self._tidying.run_once()

    # --- reports ---------------------------------------------------------------------------------

    @property
    def _patience_ms(self) -> int:
        """How long after a downbeat the previous bar is reported on: by the leader first, then by the others."""
        beat = self._ground.beat()
        grace_ms = self._reverb.grace_ms
        return grace_ms if self._leadership.is_ours else min(grace_ms + beat.beat_ms, beat.bar_ms - grace_ms)

    async def _report(self) -> None:
        await self._policies.look()  # a node that was disconnected may not know the current bars
        may_miss = self._leadership.is_ours or await self._leadership.leader() is None
        for report in await self._reverb.roll_up_due(may_miss=may_miss):
            await self._controller.decide(report)

    # --- agreement -------------------------------------------------------------------------------

    async def _say(self) -> None:
        entry = self._policies.announced.at(self._ground.times.now_ms)
        if entry.policy_hash != self._said:
            await self._policies.say(entry)
            self._said = entry.policy_hash

    async def _agree(self) -> None:
        """Follow the median policy if there is no leader and the nodes follow different policies."""
        ground = self._ground
        now_ms = ground.times.now_ms
        own = self._policies.announced.at(now_ms)
        seen = {own.policy_hash: own, **await self._said_by_others()}
        if len(seen) == 1 or await self._leadership.leader() is not None:
            self._differing_since_ms = None
            if self._pulse.source is TempoSource.MEDIAN:
                _log.info("policies agree again, or a leader is present")
                self._pulse.source, ground.plan = TempoSource.POLICY, self._policies.announced
            return
        if self._differing_since_ms is None:
            self._differing_since_ms = now_ms
        middle = median(list(seen.values()))
        is_old = now_ms - self._differing_since_ms >= _DIFFER_BARS * own.tempo.bar_ms
        if is_old and middle.policy_hash != ground.entry.policy_hash:
            _log.warning(
                "policies differ without a leader, following the median: policies=%d bpm=%g",
                len(seen),
                middle.tempo.bpm,
            )
            self._pulse.source, ground.plan = TempoSource.MEDIAN, Plan(middle)

    async def _said_by_others(self) -> dict[str, PlanEntry]:
        said = await self._policies.said()
        said.pop(self._ground.node_id, None)
        if not said:
            return {}
        live = {node.node_id for node in await self._nodes.live_nodes_from_db()}
        # A node on an earlier announced policy is only behind; it does not disagree.
        known = {entry.policy_hash for entry in self._policies.announced.entries}
        return {
            entry.policy_hash: entry
            for node_id, entry in said.items()
            if node_id in live and entry.policy_hash not in known
        }
