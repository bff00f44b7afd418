"""Bar reports: each bar is rolled up into one report, by any node, and amended when more data arrives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, NamedTuple

import orjson

from vox_mesh.errors import MeshError, Refused
from vox_mesh.model.base.histogram import LONG_S, Histogram
from vox_mesh.model.nodes.liveness import DEAD_AFTER_TICKS
from vox_mesh.model.rhythm.reports import (
    BarReport,
    BarWatch,
    Figures,
    MeshStanding,
    ReportSource,
    ReportTotals,
    stretches,
)
from vox_mesh.model.rhythm.tempo import Window
from vox_mesh.rhythm.bar_figures import parse_figures, report_values
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.rhythm.tempo.policies import refuse_if_announced
from vox_mesh.rhythm.token_ledger import with_spend
from vox_mesh.store.rows import Row
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Script, Statement

_log = logging.getLogger(__name__)

_DAY_MS: Final = 86_400_000
CLAIM_RETENTION_MS: Final = 7 * _DAY_MS
SIGNATURE_RETENTION_MS: Final = _DAY_MS
REPORT_RETENTION_MS: Final = 90 * _DAY_MS

AMENDMENT_PERIOD_MS: Final = CLAIM_RETENTION_MS - _DAY_MS
"""How long a report is amended; after that its claims may be pruned."""

LATE_END_PERIOD_MS: Final = 2 * 3_600_000
"""How long after the end of a bar its phrases and threads may still arrive."""

GRACE_BEATS: Final = 0.25
MAX_GRACE_MS: Final = 1_000
"""The longest delay of a report after its bar, for claims still in transit."""

QUIET_BARS: Final = 90
"""This many quiet bars are reported on their own; fewer, only with the next bar that has data."""

_CLOSE_TIMEOUT_S: Final = 2.0
_BATCH_SIZE: Final = 64
_MAX_PASSES: Final = 8
_MAX_TRIES: Final = 4
_PRUNE_BATCH_SIZE: Final = 2_000
_MAX_PRUNE_BATCHES: Final = 10
_OVERTAKEN: Final = "overtaken"
_SQL: Final = named("rhythm_reports")
_STATUS_SQL: Final = named("rhythm_status")
_PRUNE_SQL: Final = {
    "claims": _STATUS_SQL["forget"],
    "signatures": _STATUS_SQL["forget_signatures"],
    "reports": _SQL["forget"],
}


class _LastReport(NamedTuple):
    """The last report."""

    window_ms: int
    until_ms: int
    is_missing: bool
    unfinished: int | None


class _Due(NamedTuple):
    """The data to report on, as read from the database."""

    last: _LastReport | None
    serial: int
    unreported: Sequence[int]
    late: Sequence[tuple[int, int]]
    late_phrases: Sequence[int]
    late_threads: Sequence[int]
    queue_depth: int
    places: int
    load: int
    clock_distance_ms: int | None
    queue_by_kind: Mapping[str, int]
    cpu_utilisation: float | None
    gpu_utilisation: float | None
    oldest_claim_ms: int | None
    oldest_signature_ms: int | None
    oldest_report_ms: int | None
    is_fresh: bool

    @property
    def standing(self) -> MeshStanding:
        """The current load of the mesh."""
        utilisation = self.load / self.places if self.places else None
        return MeshStanding(
            self.queue_depth,
            self.places,
            utilisation,
            self.clock_distance_ms,
            self.queue_by_kind,
            self.cpu_utilisation,
            self.gpu_utilisation,
        )

    @property
    def is_complete(self) -> bool:
        """Whether everything fits into one batch."""
        parts = (self.unreported, self.late, self.late_phrases, self.late_threads)
        return max(len(part) for part in parts) <= _BATCH_SIZE


@dataclass(frozen=True, slots=True)
class _Draft:
    """A report to write. Without data it covers quiet or missing bars."""

    window: Window
    has_data: bool
    is_missing: bool = False
    revision: int = 1
    standing: MeshStanding = MeshStanding()  # noqa: RUF009 - it is frozen
    first_serial: int | None = None
    """Claims with a later serial arrived late."""
    before: BarReport | None = None
    """The previous revision."""


class BarReporter:
    """Writes and reads bar reports. Any number of nodes may write them concurrently."""

    def __init__(self, context: RhythmContext) -> None:
        self._context = context
        self.totals = ReportTotals()
        self.latency = Histogram(LONG_S)
        """The time from the end of a bar to its report by this node, in seconds."""
        self._watch = BarWatch()

    @property
    def grace_ms(self) -> int:
        """How long after a downbeat the previous bar is due."""
        return min(MAX_GRACE_MS, round(GRACE_BEATS * self._context.beat().beat_ms))

    # --- reading ---------------------------------------------------------------------------------

    async def reports(
        self, last: int = 1, *, before_ms: int | None = None, fresh: bool = False
    ) -> list[BarReport]:
        """Return the latest reports, or those before a time; newest first, each in its last revision."""
        context = self._context
        values = (*context.mesh, last, before_ms)
        rows = await context.store.read(_SQL["newest"], values, fresh=fresh)
        return await with_spend(
            context, [BarReport.of_document(orjson.loads(row["document"])) for row in rows]
        )

    async def report(self, window_id: str, *, fresh: bool = False) -> BarReport | None:
        """Return the last revision of the report on a bar."""
        context = self._context
        rows = await context.store.read(_SQL["one"], (*context.mesh, window_id), fresh=fresh)
        found = [BarReport.of_document(orjson.loads(row["document"])) for row in rows]
        return next(iter(await with_spend(context, found)), None)

    # --- rolling up ------------------------------------------------------------------------------

    async def roll_up_due(self, now_ms: int | None = None, *, may_miss: bool = True) -> list[BarReport]:
        """Report on ended bars, and amend earlier reports; return the reports written.

        Quiet bars are not written until data follows. A node that has watched every bar knows that they are
        not missing, so every node should call this, after the leader. Without `may_miss`, bars that only this
        node may have missed are not reported, unless data follows.
        """
        now_ms = self._context.times.now_ms if now_ms is None else now_ms
        if not self._context.policy.observability.emit_bar_reports:
            self._watch.observe(self._context.timeline, now_ms)
            return []
        written: list[BarReport] = []
        for _ in range(_MAX_PASSES):
            part, is_complete = await self._roll_up(now_ms, may_miss=may_miss)
            written += part
            if is_complete:
                break
        return written

    def begin_watch(self) -> None:
        """Watch the bars from now on. A bar that has begun is not seen completely."""
        self._watch.begin(self._context.timeline, self._context.times.now_ms)

    async def close(self) -> None:
        """Report the quiet bars this node has watched: its successor has not seen them."""
        begins_ms, now_ms = self._watch.begins_ms, self._context.times.now_ms
        has_watched = begins_ms is not None and begins_ms < now_ms
        if not has_watched or not self._context.policy.observability.emit_bar_reports:
            return
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._roll_up(now_ms, min_quiet_bars=1, may_miss=False)
        except (MeshError, TimeoutError) as error:
            _log.info("last bars not reported: %s", error)

    async def _roll_up(
        self, now_ms: int, *, min_quiet_bars: int = QUIET_BARS, may_miss: bool
    ) -> tuple[list[BarReport], bool]:
        """Run one pass; return the reports written, and whether nothing is left."""
        fresh = False
        for _ in range(_MAX_TRIES):
            due = await self._read_due(now_ms, fresh=fresh)
            self._watch.observe(self._context.timeline, now_ms)
            if due.last is not None:
                self._watch.forget(due.last.until_ms)
            late = await self._draft_late(due, fresh=fresh)
            new = [] if len(due.late) > _BATCH_SIZE else await self._draft_new(due, now_ms, fresh=fresh)
            if not any(draft.has_data for draft in new):
                new = self._select_quiet(new, min_quiet_bars, may_miss=may_miss)
            if not late and not new:
                break
            if not fresh and not due.is_fresh:
                fresh = True  # the local replica may be behind
                continue
            try:
                written = await self._write(due, late, new)
            except Refused:  # another node was faster; read again what is left
                fresh = True
            else:
                await self._prune(due, now_ms)
                return written, due.is_complete
        return [], True

    async def _read_due(self, now_ms: int, *, fresh: bool) -> _Due:
        context = self._context
        values = (
            *context.mesh,
            now_ms - AMENDMENT_PERIOD_MS,
            self._due_until(now_ms),
            _BATCH_SIZE + 1,
            DEAD_AFTER_TICKS,
            context.timeline.window_at(now_ms - LATE_END_PERIOD_MS).start_ms,
        )
        rows = await context.store.read(_SQL["due"], values, fresh=fresh)
        return self._parse_due(rows[0], is_fresh=not rows.age_s)

    def _parse_due(self, row: Row, *, is_fresh: bool) -> _Due:
        last = None if row["last"] is None else _LastReport(*orjson.loads(row["last"]))
        # Threads end at any time: one per bar represents them all.
        ends = sorted((each for ends in orjson.loads(row["late_threads"]) for each in ends), reverse=True)
        late_threads = {self._context.timeline.window_at(each).start_ms: each for each in ends}
        return _Due(
            last=last,
            serial=row["serial"],
            unreported=orjson.loads(row["unreported"]),
            late=[(window_ms, first) for window_ms, first in orjson.loads(row["late"])],
            late_phrases=orjson.loads(row["late_phrases"]),
            late_threads=sorted(late_threads.values()),
            queue_depth=row["queue_depth"],
            places=row["places"],
            load=row["load"],
            clock_distance_ms=row["clock_distance_ms"],
            queue_by_kind=orjson.loads(row["queue_by_kind"]),
            cpu_utilisation=row["cpu_utilisation"],
            gpu_utilisation=row["gpu_utilisation"],
            oldest_claim_ms=row["oldest_claim_ms"],
            oldest_signature_ms=row["oldest_signature_ms"],
            oldest_report_ms=row["oldest_report_ms"],
            is_fresh=is_fresh,
        )

    def _due_until(self, now_ms: int) -> int:
        return self._context.timeline.window_at(now_ms - self.grace_ms).start_ms

    # --- new bars --------------------------------------------------------------------------------

    async def _draft_new(self, due: _Due, now_ms: int, *, fresh: bool) -> list[_Draft]:
        """Draft the reports on bars after the last report."""
        timeline, watch, until_ms = self._context.timeline, self._watch, self._due_until(now_ms)
        data = list(due.unreported)
        if len(data) > _BATCH_SIZE:  # the rest follows in the next pass; they may all be of one bar
            until_ms = max(timeline.window_at(data.pop()).start_ms, timeline.window_at(data[0]).end_ms)
        if due.last is not None:
            from_ms = due.last.until_ms
        else:  # no earlier report exists
            begins_ms = until_ms if watch.begins_ms is None else watch.begins_ms
            from_ms = min([begins_ms, *(timeline.window_at(each).start_ms for each in data)])
        if from_ms >= until_ms:
            return []
        current = timeline.window_at(until_ms - 1)
        if watch.covers(current.start_ms) and self._is_busy(due):
            data.append(current.start_ms)
        if due.last is not None and due.last.unfinished and watch.covers(from_ms):
            data.append(from_ms)  # claims were expected in it
        data += await self._find_silent(data, until_ms, fresh=fresh)
        drafts: list[_Draft] = []
        for window, has_data in stretches(timeline, from_ms, until_ms, data):
            if has_data:
                is_now = window.end_ms == self._due_until(now_ms)
                standing = due.standing if is_now else MeshStanding()
                drafts.append(_Draft(window, True, standing=standing))
            else:
                drafts += self._draft_quiet(window)
        return drafts

    def _draft_quiet(self, window: Window) -> list[_Draft]:
        """Draft reports on bars without data: quiet, or missing where this node has not watched."""
        parts = self._watch.parts(window)
        return [_Draft(part, False, is_missing=not is_watched) for part, is_watched in parts]

    def _select_quiet(self, drafts: list[_Draft], min_quiet_bars: int, *, may_miss: bool) -> list[_Draft]:
        """Keep drafts of bars without data only if some are missing, or if there are many."""
        if not may_miss:
            drafts = list(takewhile(lambda draft: not draft.is_missing, drafts))
        if not drafts or any(draft.is_missing for draft in drafts):
            return drafts
        from_ms, until_ms = drafts[0].window.start_ms, drafts[-1].window.end_ms
        return drafts if self._context.timeline.bars_between(from_ms, until_ms) >= min_quiet_bars else []

    async def _find_silent(self, data: Iterable[int], until_ms: int, *, fresh: bool) -> list[int]:
        """Return the bars after these without claims, although some were expected."""
        context = self._context
        windows = {context.timeline.window_at(each) for each in data}
        starts = {window.start_ms for window in windows}
        last = [
            tuple(window)
            for window in windows
            if window.end_ms < until_ms and window.end_ms not in starts and self._watch.covers(window.end_ms)
        ]
        if not last:  # the usual case: only the bar that has just ended is due
            return []
        values = (*context.mesh, orjson.dumps(last).decode())
        return [row["end_ms"] for row in await context.store.read(_SQL["unfinished"], values, fresh=fresh)]

    def _is_busy(self, due: _Due) -> bool:
        """Return whether the mesh has load to report, although no agent made a claim."""
        entry = self._context.entry
        is_driven = due.queue_depth > 0 or entry.tempo.bpm != entry.policy.initial_bpm
        return due.load > 0 or (entry.policy.adaptation.enable and is_driven)

    # --- late data -------------------------------------------------------------------------------

    async def _draft_late(self, due: _Due, *, fresh: bool) -> list[_Draft]:
        """Draft the reports on bars that were reported before."""
        claimed = (window_ms for window_ms, _ in due.late[:_BATCH_SIZE])
        moments = sorted({*claimed, *due.late_phrases, *due.late_threads[:_BATCH_SIZE]})
        if not moments:
            return []
        context, timeline = self._context, self._context.timeline
        values = (*context.mesh, orjson.dumps(moments).decode())
        rows = await context.store.read(_SQL["holding"], values, fresh=fresh)
        drafts: list[_Draft] = []
        for row in rows:
            held = [each for each in moments if row["window_ms"] <= each < row["until_ms"]]
            moments = [each for each in moments if each not in held]
            drafts += self._draft_amendments(row, held)
        while moments:  # before the first report: leave no gap up to it
            from_ms = timeline.window_at(moments[0]).start_ms
            after = (*context.mesh, moments[0])
            until_ms = (await context.store.read(_SQL["next"], after, fresh=fresh)).value
            if until_ms is None:  # the reports after it were lost in a rollback of the database
                break
            here = [each for each in moments if each < until_ms]
            for window, has_data in stretches(timeline, from_ms, until_ms, here):
                # The next report may follow another timeline.
                clipped = window._replace(end_ms=min(window.end_ms, until_ms))
                drafts += [_Draft(clipped, True)] if has_data else self._draft_quiet(window)
            moments = moments[len(here) :]
        return drafts

    def _draft_amendments(self, row: Row, moments: Iterable[int]) -> Iterator[_Draft]:
        """Draft the amended report; one that covers many bars is split."""
        before = BarReport.of_document(orjson.loads(row["document"]))
        timeline = self._context.timeline
        for window, has_data in stretches(timeline, row["window_ms"], row["until_ms"], moments):
            yield _Draft(
                window,
                has_data,
                is_missing=bool(row["is_missing"]) and not has_data,
                revision=row["revision"] + 1 if window.start_ms == row["window_ms"] else 1,
                standing=before.standing,
                first_serial=row["first_serial"],
                before=before,
            )

    # --- writing ---------------------------------------------------------------------------------

    async def _write(self, due: _Due, late: Sequence[_Draft], new: Sequence[_Draft]) -> list[BarReport]:
        """Write all drafts, or none if another node has written one of them."""
        context, drafts = self._context, [*late, *new]
        hlc = context.tick()
        figures = await self._read_figures([draft for draft in drafts if draft.has_data])
        reports = self._make_reports(drafts, figures, hlc)
        through = due.late[_BATCH_SIZE][1] - 1 if len(due.late) > _BATCH_SIZE else due.serial
        rows = orjson.dumps([report_values(each, figures.get(each.start_ms)) for each in reports]).decode()
        until_ms = 0 if due.last is None else due.last.until_ms
        starts = orjson.dumps([report.start_ms for report in reports]).decode()
        script = Script(
            refuse_if_announced(context),  # the plan of bars is current
            Statement(_SQL["refuse_unless_follows"], (*context.mesh, 0, until_ms), refusal=_OVERTAKEN),
            Statement(_SQL["write"], (*context.mesh, context.node_id, hlc, through, rows)),
            Statement(
                _SQL["refuse_unless_all_are_there"],
                (*context.mesh, hlc, len(reports), starts),
                refusal=_OVERTAKEN,
            ),
        )
        await context.store.write(script)
        for draft in new:
            if draft.has_data:
                self.latency.observe((context.times.now_ms - draft.window.end_ms) / 1_000)
        for draft, report in zip(drafts, reports, strict=True):
            self.totals.add(report, draft.before)
            if report.is_missing:
                _log.info("bars missing: count=%d first=%s", report.bars, report.window_id)
        return reports

    def _make_reports(
        self, drafts: Sequence[_Draft], figures: Mapping[int, Figures], hlc: str
    ) -> list[BarReport]:
        context, plan = self._context, self._context.plan
        reports: list[BarReport] = []
        for draft in drafts:
            window = draft.window
            source = ReportSource(plan.timeline, plan.at(window.start_ms))
            if draft.has_data:
                report = BarReport.of_window(source, window, figures[window.start_ms], draft.standing)
            else:
                report = BarReport.of_bars(source, window, is_missing=draft.is_missing)
            reports.append(replace(report, revision=draft.revision, node_id=context.node_id, hlc=hlc))
        return reports

    async def _read_figures(self, drafts: Sequence[_Draft]) -> dict[int, Figures]:
        context = self._context
        windows = [
            (
                *draft.window,
                context.timeline.window_at(draft.window.start_ms - 1).start_ms,
                draft.first_serial,
            )
            for draft in drafts
        ]
        if not windows:
            return {}
        values = (*context.mesh, orjson.dumps(windows).decode())
        rows = await context.store.read(_SQL["figures"], values, fresh=True)
        return {row["start_ms"]: parse_figures(row) for row in rows}

    async def _prune(self, due: _Due, now_ms: int) -> None:
        """Prune old claims and reports in batches, so that no other write waits for long."""
        context = self._context
        for what, oldest_ms, before_ms in (
            ("claims", due.oldest_claim_ms, now_ms - CLAIM_RETENTION_MS),
            ("signatures", due.oldest_signature_ms, now_ms - SIGNATURE_RETENTION_MS),
            ("reports", due.oldest_report_ms, now_ms - REPORT_RETENTION_MS),
        ):
            if oldest_ms is None or oldest_ms >= before_ms:
                continue
            values = (*context.mesh, before_ms, _PRUNE_BATCH_SIZE)
            script = (Statement(_PRUNE_SQL[what], values), Answer(_SQL["changed"], columns=("changed",)))
            for _ in range(_MAX_PRUNE_BATCHES):
                outcome = await context.store.write(Script(script[0], answer=script[1]))
                if outcome.rows.value < _PRUNE_BATCH_SIZE:
                    break
