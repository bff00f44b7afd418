"""The tempo controller: adapts the tempo to the load if the policy enables it, and logs each decision."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from vox_mesh.errors import Refused
from vox_mesh.locks.leadership import Leadership
from vox_mesh.model.base.canonical import JsonObject, canonical, parse
from vox_mesh.model.oplog.chain import LogEntry as LogEntry
from vox_mesh.model.oplog.op_names import TEMPO_DECISION
from vox_mesh.model.rhythm import control
from vox_mesh.model.rhythm.control import ControlState, Divergence, Readings, TempoDecision
from vox_mesh.model.rhythm.plan import PlanEntry
from vox_mesh.model.rhythm.reports import BarReport
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.rhythm.tempo.incidents import INCIDENT_DECLARED, Incident, Incidents
from vox_mesh.rhythm.tempo.policies import OVERTAKEN, Policies
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Script, Statement

_log = logging.getLogger(__name__)

_SQL: Final = named("tempo_control")
_CONNECTED_CIRCUITS: Final = ("closed", "off")
_BREAKER_OPEN: Final = "breaker open"
_MAX_REPLAYED: Final = 1_000


class _LastDecision(NamedTuple):
    """The last decision, with all that the next one depends on."""

    policy: JsonObject
    state: ControlState
    readings: Readings
    reason: str


class TempoController:
    """Decides once per bar, on the leader. Its state is in the op log, where a new leader continues."""

    def __init__(
        self, context: RhythmContext, policies: Policies, leadership: Leadership, incidents: Incidents
    ) -> None:
        self._context = context
        self._policies = policies
        self._leadership = leadership
        self._incidents = incidents
        self._last: _LastDecision | None = None
        self._token: int | None = None  # the fencing token under which `_last` was read

    async def decide(self, report: BarReport) -> TempoDecision | None:
        """Decide from the report of the bar that has just ended; return `None` if there is nothing to decide.

        A decision that changes nothing and equals the previous one is not written again.
        """
        context, head = self._context, self._policies.announced.head
        now_ms = context.times.now_ms
        is_of_last_bar = report.end_ms == context.timeline.window_at(now_ms).start_ms
        is_first = report.revision == 1 and not report.is_missing
        if not (head.policy.adaptation.enable and self._leadership.is_ours and is_of_last_bar and is_first):
            return None
        if context.store.circuit not in _CONNECTED_CIRCUITS:  # offline: nothing can be written or changed
            return control.decide(head.policy, self._state(head), report.readings(_BREAKER_OPEN), now_ms)
        context.clock.refuse_if_off()
        await self._recall()
        head = self._policies.announced.head
        before, readings = (
            self._state(head),
            report.readings(_reason_to_freeze(report, await self._incidents.current())),
        )
        entry = self._policies.next(head.policy, head.tempo.bpm, "")
        decision = control.decide(head.policy, before, readings, now_ms, entry.anchor_ms)
        policy = head.policy if decision.phases is None else head.policy.with_phases(decision.phases)
        decided = _LastDecision(control.decisive(policy), decision.state, readings, decision.reason)
        if decided == self._last:
            return decision
        tempo = replace(entry.tempo, bpm=decision.bpm)
        entry = replace(entry, policy=policy, tempo=tempo, reason=decision.reason)
        payload = control.record(head.policy, before, decision, now_ms, entry.anchor_ms)
        self._last = None  # unknown until the write is confirmed
        try:
            await context.store.write(self._script(entry, canonical(payload), is_change=decision.is_change))
        except Refused as refused:
            if refused.reason not in (*OVERTAKEN, INCIDENT_DECLARED):
                raise
            _log.info("tempo change dropped: bpm=%g reason=%s", decision.bpm, refused.reason)
            return None
        self._last = decided
        if decision.is_change:
            _log.info("tempo changed: from=%g to=%g reason=%s", before.bpm, decision.bpm, decision.reason)
            await self._policies.refresh()
        return decision

    def _script(self, entry: PlanEntry, payload: str, *, is_change: bool) -> Script:
        announcement: Sequence[Statement] = ()
        if is_change:
            announcement = (self._incidents.refuse_if_declared(), *self._policies.announcement(entry))
        op = Op(TEMPO_DECISION, payload)
        return Script(self._leadership.guard(), *announcement, key=entry.op_id, op=op)

    # --- earlier decisions -----------------------------------------------------------------------

    async def _recall(self) -> None:
        """Read the last leader's decision, unless this node has led without interruption."""
        token = self._leadership.fence_token
        if self._last is not None and token == self._token:
            return
        self._last, self._token = None, token
        await self._policies.refresh(fresh=True)
        for entry in await self._read_decisions(1, fresh=True):
            payload = parse(entry.payload)
            try:
                state, readings = control.state_after(payload), control.readings_of(payload)
                self._last = _LastDecision(control.policy_after(payload), state, readings, payload["reason"])
            except (KeyError, TypeError, ValueError) as error:
                _log.warning("last tempo decision not readable by this version: %s", error)

    def _state(self, head: PlanEntry) -> ControlState:
        """Return the state to continue from: the last decision's, unless a tempo or policy was set since."""
        last = self._last
        begun = ControlState.beginning(head.policy, head.tempo.bpm, head.anchor_ms)
        if last is None or last.policy != control.decisive(head.policy) or last.state.bpm != head.tempo.bpm:
            return begun
        return last.state

    async def _read_decisions(self, last: int, *, fresh: bool = False) -> list[LogEntry]:
        rows = await self._context.store.read(_SQL["decisions"], (*self._context.mesh, last), fresh=fresh)
        return [LogEntry._make(row) for row in rows]

    async def replayed(self, last: int = _MAX_REPLAYED) -> list[Divergence]:
        """Recompute the last decisions from the log and return the divergences."""
        return list(control.replay(reversed(await self._read_decisions(last))))


def _reason_to_freeze(report: BarReport, declared: Incident | None) -> str | None:
    """Return the incident that freezes the tempo, if any. A missing leader freezes it too."""
    if declared is not None:
        return f"declared: {declared.reason}" if declared.reason else "declared"
    return "alarm:" + ",".join(alarm.name for alarm in report.alarms) if report.alarms else None
