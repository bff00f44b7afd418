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
from vox_mesh.model.rhythm.plan import Plan, PlanEntry, TempoSource, median
from vox_mesh.model.rhythm.tempo import Window
from vox_mesh.nodes.host_load import HostLoad
from vox_mesh.nodes.nodes import Nodes
from vox_mesh.rhythm.bar_reporter import BarReporter
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.rhythm.help import Help
from vox_mesh.rhythm.tempo.controller import TempoController
from vox_mesh.rhythm.tempo.policies import Policies
from vox_mesh.rhythm.tempo.pulse import Pulse
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Script, Statement

_log = logging.getLogger(__name__)

_LEAD_BARS: Final = 2.5
_MIN_LEAD_S: Final = 5.0
_MAX_LEAD_S: Final = 120.0
_DISAGREEMENT_BARS: Final = 2
"""How many bars nodes may follow different policies: each learns of a new one in its own time."""

_LEAD_FAILURE: Final = "leadership not renewed"

_DAY_MS: Final = 86_400_000
RETENTION_MS: Final = {
    "help_threads": 90 * _DAY_MS,
    "phrase_checkpoints": 90 * _DAY_MS,
    "beat_pulses": 90 * _DAY_MS,
    "tempo_policies": 400 * _DAY_MS,
    "phrase_ends": 400 * _DAY_MS,  # more than a year, so that a year's costs can be reported
    "job_tallies": 400 * _DAY_MS,
    "token_spend": 400 * _DAY_MS,
}

_PRUNE_INTERVAL_MS: Final = 3_600_000
_PRUNE_BATCH_SIZE: Final = 1_000
_MAX_PRUNE_BATCHES: Final = 10
_SQL: Final = named("rhythm_tidying")
_CHANGED: Final = Answer(_SQL["changed"], columns=("changed",))

Duty = Callable[[], Awaitable[object]]


class Conductor:
    """Runs a node's duties. A node that has just started skips the bars it did not see completely."""

    def __init__(
        self,
        context: RhythmContext,
        policies: Policies,
        pulse: Pulse,
        leadership: Leadership,
        bar_reporter: BarReporter,
        controller: TempoController,
        help_service: Help,
        nodes: Nodes,
        host_load: HostLoad,
    ) -> None:
        self._context = context
        self._policies = policies
        self._pulse = pulse
        self._leadership = leadership
        self._bar_reporter = bar_reporter
        self._controller = controller
        self._help = help_service
        self._nodes = nodes
        self._host_load = host_load
        self._pruner = RhythmPruner(context)
        self._joined_ms: int | None = None
        self._begun_ms = self._reported_ms = 0  # the last bar begun here, and the last one reported on
        self._announced_hash = ""
        self._disagreeing_since_ms: int | None = None
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Run the duties until cancelled."""
        while True:
            await self.catch_up()
            await self._context.times.until(self._next_ms(), or_set_back=True)

    def _next_ms(self) -> int:
        """Return when the next duty is due."""
        now_ms = self._context.times.now_ms
        window = self._context.timeline.window_at(now_ms)
        report_ms = window.start_ms + self._report_delay_ms
        lead_ms = now_ms + round(self._lead_s * 1_000 / 4)
        return min(window.end_ms, lead_ms, report_ms if report_ms > now_ms else window.end_ms)

    def announce_again(self) -> None:
        """Announce this node's policy again: the database may have lost it."""
        self._announced_hash = ""

    async def catch_up(self) -> None:
        """Run the duties that are due."""
        async with self._lock:
            now_ms = self._context.times.now_ms
            window = self._context.timeline.window_at(now_ms)
            if self._begun_ms > window.end_ms:
                _log.warning("clock set back: rhythm restarts from the current bar")
                self._begun_ms = self._reported_ms = 0
            is_first, is_new_bar = self._begun_ms == 0, self._begun_ms < window.start_ms
            self._begun_ms = window.start_ms
            if not self._has_seen_bar_before(window):
                if is_new_bar and not is_first:  # a starting node has just read it
                    await self._run_duty(self._policies.refresh, "tempo not readable")
                return
            await (self._begin_bar() if is_new_bar else self._run_duty(self._lead, _LEAD_FAILURE))
            if self._reported_ms < window.start_ms <= now_ms - self._report_delay_ms:
                self._reported_ms = window.start_ms
                await self._run_duty(self._report, "last bar not reported")

    def _has_seen_bar_before(self, window: Window) -> bool:
        """Return whether this node has seen a complete bar, by the database's clock."""
        if self._joined_ms is None and self._context.clock.is_set:
            self._joined_ms = self._context.times.now_ms
            self._bar_reporter.begin_watch()
        before = self._context.timeline.window_at(window.start_ms - 1)
        return self._joined_ms is not None and self._joined_ms <= before.start_ms

    async def _begin_bar(self) -> None:
        for duty, failure in (
            (self._policies.refresh, "tempo not readable"),
            (self._lead, _LEAD_FAILURE),
            (self._announce_policy, "policy not announced"),
            (self._agree, "policies of other nodes not readable"),
            (self._help.close_due, "overdue promises not closed"),
            (self._host_load.sample, "load of this machine not known"),
        ):
            await self._run_duty(duty, failure)

    async def _run_duty(self, duty: Duty, failure: str) -> None:
        try:
            await duty()
        except (StaleIncarnation, StoreClosed):
            raise
        except MeshError as error:
            _log.warning("%s: %s", failure, error.line)

    @property
    def _lead_s(self) -> float:
        """The lease of the leadership in seconds: some bars, within fixed bounds."""
        bar_s = self._context.entry.tempo.bar_ms / 1_000
        return min(max(_LEAD_BARS * bar_s, _MIN_LEAD_S), _MAX_LEAD_S)

    async def _lead(self) -> None:
        if await self._leadership.keep(self._lead_s):
            await self._policies.settle()
            await self._pruner.run_once()

    # --- reports ---------------------------------------------------------------------------------

    @property
    def _report_delay_ms(self) -> int:
        """The delay of a report after its bar: the leader reports first, then the others."""
        beat = self._context.beat()
        grace_ms = self._bar_reporter.grace_ms
        return grace_ms if self._leadership.is_ours else min(grace_ms + beat.beat_ms, beat.bar_ms - grace_ms)

    async def _report(self) -> None:
        await self._policies.refresh()  # a node that was disconnected may not know the current bars
        may_miss = self._leadership.is_ours or await self._leadership.leader() is None
        for report in await self._bar_reporter.roll_up_due(may_miss=may_miss):
            await self._controller.decide(report)

    # --- agreement -------------------------------------------------------------------------------

    async def _announce_policy(self) -> None:
        entry = self._policies.announced.at(self._context.times.now_ms)
        if entry.policy_hash != self._announced_hash:
            await self._policies.write_pulse(entry)
            self._announced_hash = entry.policy_hash

    async def _agree(self) -> None:
        """Follow the median policy if there is no leader and the nodes follow different policies."""
        context = self._context
        now_ms = context.times.now_ms
        own = self._policies.announced.at(now_ms)
        by_hash = {own.policy_hash: own, **await self._policies_of_others()}
        if len(by_hash) == 1 or await self._leadership.leader() is not None:
            self._disagreeing_since_ms = None
            if self._pulse.source is TempoSource.MEDIAN:
                _log.info("policies agree again, or a leader is present")
                self._pulse.source, context.plan = TempoSource.POLICY, self._policies.announced
            return
        if self._disagreeing_since_ms is None:
            self._disagreeing_since_ms = now_ms
        middle = median(list(by_hash.values()))
        is_old = now_ms - self._disagreeing_since_ms >= _DISAGREEMENT_BARS * own.tempo.bar_ms
        if is_old and middle.policy_hash != context.entry.policy_hash:
            _log.warning(
                "policies differ without a leader, following the median: policies=%d bpm=%g",
                len(by_hash),
                middle.tempo.bpm,
            )
            self._pulse.source, context.plan = TempoSource.MEDIAN, Plan(middle)

    async def _policies_of_others(self) -> dict[str, PlanEntry]:
        policies = await self._policies.read_pulses()
        policies.pop(self._context.node_id, None)
        if not policies:
            return {}
        live = {node.node_id for node in await self._nodes.live_nodes_from_db()}
        # A node on an earlier announced policy is only behind; it does not disagree.
        announced_hashes = {entry.policy_hash for entry in self._policies.announced.entries}
        return {
            entry.policy_hash: entry
            for node_id, entry in policies.items()
            if node_id in live and entry.policy_hash not in announced_hashes
        }


# --- retention -----------------------------------------------------------------------------------


class RhythmPruner:
    """Prunes old rows of the rhythm's tables. Only the leader runs it."""

    def __init__(self, context: RhythmContext) -> None:
        self._context = context
        self._last_run_ms = 0

    async def run_once(self) -> None:
        """Prune every table that holds expired rows; do nothing if the last run was within the hour."""
        context = self._context
        now_ms = context.times.now_ms
        if now_ms - self._last_run_ms < _PRUNE_INTERVAL_MS:
            return
        self._last_run_ms = now_ms
        (oldest,) = await context.store.read(_SQL["oldest"], context.mesh)
        for table, retention_ms in RETENTION_MS.items():
            if oldest[table] is not None and oldest[table] < now_ms - retention_ms:
                await self._remove(table, now_ms - retention_ms)

    async def _remove(self, table: str, before_ms: int) -> None:
        """Delete in batches, so that no other write waits for long."""
        remove = Statement(_SQL[table], (*self._context.mesh, before_ms, _PRUNE_BATCH_SIZE))
        for _ in range(_MAX_PRUNE_BATCHES):
            if (
                await self._context.store.write(Script(remove, answer=_CHANGED))
            ).rows.value < _PRUNE_BATCH_SIZE:
                return
