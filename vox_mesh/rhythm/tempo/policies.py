"""Tempo policies: which tempo is in force when, as read from and announced in the database."""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Final

from vox_mesh.errors import BadValue, Contended, Refused
from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.model.nodes.liveness import DEAD_AFTER_TICKS
from vox_mesh.model.oplog.op_names import SET_TEMPO
from vox_mesh.model.rhythm.plan import LEAD_BARS, Plan, PlanEntry
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.model.rhythm.tempo import Tempo
from vox_mesh.oplog.grants.permit import MESH_PERMIT
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.store.rows import Row
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Script, Statement, new_key

_log = logging.getLogger(__name__)

_SQL: Final = named("tempo")
_MARGIN_MS: Final = 1_000
"""Allowance for the round trip to the database and for clock differences."""

_MAX_TRIES: Final = 8


class Policies:
    """Reads and announces policies."""

    def __init__(self, context: RhythmContext, built_in: TempoPolicy) -> None:
        self._context = context
        self._first = PlanEntry.of(built_in)
        self._extent: Row | None = None
        self._rows: dict[str, PlanEntry] = {}
        self.announced = context.plan
        """The announced plan as known to this node; the context follows it, unless nodes disagree."""
        self.lost: list[PlanEntry] = []
        """Entries that were in force and are missing from the database."""

    async def refresh(self, *, fresh: bool = False) -> Plan:
        """Read the announced entries if they have changed. Known entries stay even if their rows are gone."""
        store, mesh = self._context.store, self._context.mesh
        (extent,) = await store.read(_SQL["extent"], mesh, fresh=fresh)
        if extent != self._extent:
            rows = await store.read(_SQL["entries"], mesh, fresh=fresh)
            self._learn([entry for row in rows if (entry := _parse_row(row)) is not None])
            self._extent = extent
        return self.announced

    def _learn(self, entries: Sequence[PlanEntry]) -> None:
        by_op_id = {entry.op_id: entry for entry in entries}
        oldest_ms = min((entry.anchor_ms for entry in entries), default=-1)  # older ones were pruned
        self.lost = [
            entry
            for op_id, entry in self._rows.items()
            if op_id not in by_op_id and entry.anchor_ms > oldest_ms
        ]
        plan = Plan(self._first, (*entries, *self.lost)) if entries or self.lost else self.announced
        fitting = [entry for entry in Plan(self._first, entries).entries if entry.is_announced]
        if self.lost and not all(entry in plan.entries for entry in fitting):
            _log.warning("lost tempos dropped: they do not fit later announcements")
            self.lost, plan = [], Plan(self._first, entries)
        if left_out := len(entries) + len(self.lost) - sum(entry.is_announced for entry in plan.entries):
            _log.warning("tempos ignored, not anchored on a downbeat: count=%d", left_out)
        self._rows = by_op_id | {entry.op_id: entry for entry in self.lost}
        self._context.newest_ms = max((entry.anchor_ms for entry in self._rows.values()), default=-1)
        self._follow(plan)

    def _follow(self, plan: Plan) -> None:
        before, self.announced = self.announced, plan
        if self._context.plan is before:
            self._context.plan = plan

    # --- announcing ------------------------------------------------------------------------------

    async def set(self, policy: TempoPolicy, reason: str = "set by hand") -> PlanEntry:
        """Announce a policy that takes effect on every node at a downbeat two bars ahead; return its entry.

        If no node is alive, it takes effect at once.
        """
        self._context.clock.refuse_if_off()
        for _ in range(_MAX_TRIES):
            await self.refresh(fresh=True)
            is_alone = not (
                await self._context.store.read(_SQL["is_any_node_live"], self._liveness_values, fresh=True)
            ).value
            entry = self.next(policy, policy.initial_bpm, reason, is_alone=is_alone)
            try:
                await self._context.permits.write_op(_op(entry), *self.announcement(entry), key=entry.op_id)
            except Refused as refused:
                if refused.reason not in OVERTAKEN:
                    raise
                continue
            self._learn([*self._rows.values(), entry])
            return entry
        raise Contended(
            f"tempo not announced: others announced theirs first {_MAX_TRIES} times", hint="try again"
        )

    @property
    def _liveness_values(self) -> tuple[str, str, float]:
        return (*self._context.mesh, DEAD_AFTER_TICKS)

    def next(self, policy: TempoPolicy, bpm: float, reason: str, *, is_alone: bool = False) -> PlanEntry:
        """Return the entry with which a policy would follow the known plan if announced now."""
        plan, context = self.announced, self._context
        anchor_ms = plan.head.tempo.beat_at(context.times.now_ms).window_ms
        if not is_alone or anchor_ms <= plan.head.anchor_ms:
            anchor_ms = plan.next_anchor_ms(context.times.now_ms, _MARGIN_MS, context.newest_ms + 1)
        entry = plan.followed_by(policy, bpm, anchor_ms, reason)
        op_id = context.permits.new_key()
        return replace(entry, op_id=op_id, hlc=context.tick(), announced_ms=context.times.now_ms)

    def announcement(self, entry: PlanEntry) -> Sequence[Statement]:
        """Return the statements that announce an entry; refused if another came first or it is too late."""
        context = self._context
        lead_ms = self.announced.lead_ms(context.times.now_ms)
        return (
            refuse_if_announced(context),
            Statement(
                _SQL["refuse_if_late"],
                (*self._liveness_values, entry.anchor_ms, lead_ms),
                refusal="tempo_late",
            ),
            self._row(entry),
        )

    def _row(self, entry: PlanEntry) -> Statement:
        tempo = entry.tempo
        values = (
            *self._context.mesh,
            entry.anchor_ms,
            entry.policy_hash,
            entry.policy.cluster_id,
            tempo.bpm,
            tempo.bar_len,
            entry.first_bar,
            canonical(entry.policy.document()),
            entry.reason,
            entry.op_id,
            entry.hlc,
            entry.announced_ms,
        )
        return Statement(_SQL["announce"], values)

    async def settle(self) -> None:
        """As the leader, write the policy of the local settings and entries that the database lost.

        Entries are lost when an older copy of the database is restored; they were in force nevertheless.
        """
        first = self.announced.entries[0]
        if not self._rows and first.policy != self._first.policy:
            entry = replace(
                first, reason="of the leader's settings", op_id=new_key(), hlc=self._context.tick()
            )
            announcement = (refuse_if_announced(self._context), self._row(entry))
            await self._context.store.write(MESH_PERMIT.script(*announcement, key=entry.op_id, op=_op(entry)))
            self._learn([entry])
        if self.lost:
            await self.refresh(fresh=True)  # the local replica may only be behind
        if self.lost:
            _log.warning("lost tempos written again: count=%d", len(self.lost))
            await self._context.store.write(Script(*(self._row(entry) for entry in self.lost)))
            self._extent = None

    # --- policies of nodes -----------------------------------------------------------------------

    async def write_pulse(self, entry: PlanEntry) -> None:
        """Write which policy this node follows."""
        context, tempo = self._context, entry.tempo
        policy = (canonical(entry.policy.document()), tempo.bpm, tempo.bar_len, tempo.anchor_ms)
        values = (*context.mesh, context.node_id, *policy, context.tick())
        await context.store.write(Script(Statement(_SQL["record_pulse"], values)))

    async def read_pulses(self) -> dict[str, PlanEntry]:
        """Return the policy each node follows, as the local replica shows it."""
        rows = await self._context.store.read(_SQL["pulses"], self._context.mesh)
        return {row["node_id"]: entry for row in rows if (entry := _parse_entry(row)) is not None}

    async def differing_nodes(self, live: Set[str]) -> list[str]:
        """Return the live nodes that do not follow the announced policy. A node may be two bars late."""
        now_ms = self._context.times.now_ms
        entry = self.announced.at(now_ms)
        if now_ms - entry.anchor_ms < LEAD_BARS * entry.tempo.bar_ms:
            return []
        followed = await self.read_pulses()
        return sorted(
            node_id
            for node_id in live & followed.keys()
            if followed[node_id].policy_hash != entry.policy_hash
        )


OVERTAKEN: Final = ("tempo_overtaken", "tempo_late")


def refuse_if_announced(context: RhythmContext) -> Statement:
    """Return a guard that refuses the script if an announcement unknown to this node exists."""
    return Statement(
        _SQL["refuse_if_announced_after"], (*context.mesh, context.newest_ms), refusal="tempo_overtaken"
    )


def _op(entry: PlanEntry) -> Op:
    """Return the op that announces an entry."""
    payload = {
        "anchor_ms": entry.anchor_ms,
        "policy": entry.policy.document(),
        "policy_hash": entry.policy_hash,
        "reason": entry.reason,
        "tempo_bpm": entry.tempo.bpm,
    }
    return Op(SET_TEMPO, canonical(payload), signed=True)


def _parse_entry(row: Row) -> PlanEntry | None:
    """Return the policy and tempo of a row; log a warning and return `None` if they are not readable."""
    try:
        policy = TempoPolicy.of_document(parse(row["document"]))
        return PlanEntry(policy, Tempo(row["tempo_bpm"], row["bar_len_beats"], row["anchor_ms"]))
    except BadValue as error:
        _log.warning("tempo not readable by this version: %s", error.line)
        return None


def _parse_row(row: Row) -> PlanEntry | None:
    entry = _parse_entry(row)
    if entry is None:
        return None
    rest = {name: row[name] for name in ("first_bar", "reason", "op_id", "hlc", "announced_ms")}
    return replace(entry, **rest)
