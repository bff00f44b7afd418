"""Bar reports: the figures of a bar, and the suggestions that follow from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

import orjson

from vox_mesh.model.rhythm import kpis
from vox_mesh.model.rhythm.claims import OVER, PHASE_OF
from vox_mesh.model.rhythm.control import Readings, suggest_phases
from vox_mesh.model.rhythm.kpis import Kpis
from vox_mesh.model.rhythm.plan import PlanEntry
from vox_mesh.model.rhythm.tempo import Timeline, Window, window_id
from vox_mesh.model.rhythm.tokens import TokenTotal

PROMISE_MISS_RATE: Final = 0.5
"""The share of missed promises in a bar above which an alarm is raised."""

OVERRUN_RATE: Final = 0.5
"""The number of overruns per task of a bar above which an alarm is raised.

Both are above the rates that slow the tempo: an alarm freezes it.
"""

SILENT_REPORTERS: Final = 1
"""The number of silent reporters that raise an alarm if there were no claims at all."""

MAX_NAMES: Final = 100
"""The maximum number of names listed; the others are only counted."""

PROMISES: Final = ("kept", "broken", "expired", "unanswered")


@dataclass(frozen=True, slots=True)
class Names:
    """How many there are, and the first of them."""

    count: int = 0
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        """Return these names, in order."""
        found = sorted(names)
        return cls(len(found), tuple(found[:MAX_NAMES]))


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that went over its threshold."""

    name: str
    value: float
    threshold: float


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What to change: the tempo (`faster`, `slower` or `keep`), and the beats of each phase; and why."""

    tempo: str = "keep"
    phases: Mapping[str, int] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True, slots=True)
class MeshStanding:
    """How the mesh stood when a bar was reported; nothing is known of that for one that is reported late."""

    queue_depth: int | None = None
    """Jobs waiting."""
    places: int | None = None
    """The capacity of all live nodes, in jobs."""
    utilisation: float | None = None
    """The busy share of the capacity."""
    clock_distance_ms: int | None = None
    """The largest distance of a live node's clock from the database's."""
    queue_by_kind: Mapping[str, int] = field(default_factory=dict)
    """Jobs waiting, of the 16 kinds with the most."""
    cpu_utilisation: float | None = None
    """The busy share of the processors, as a mean of the machines with live nodes."""
    gpu_utilisation: float | None = None
    """The busy share of the GPUs that answer, or `None`."""

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Self:
        """Return the standing of a stored report; fields of later versions are left out."""
        return cls(**{name: value for name, value in document.items() if name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class Figures:
    """The sums over the claims, phrases and threads of a bar."""

    tasks: Mapping[str, int] = field(default_factory=dict)
    """By the last state of each."""
    beats: Mapping[str, int] = field(default_factory=dict)
    """Beats used, by the state of the task."""
    reporters: int = 0
    late: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    deliverables: int = 0
    overruns: Mapping[str, int] = field(default_factory=dict)
    """By the state of the claim that reported it."""
    phrases: Mapping[str, int] = field(default_factory=dict)
    """By outcome."""
    phrase_overruns: int = 0
    cost: float = 0.0
    firsts: Sequence[tuple[int, int]] = ()
    """For tasks that ended: when they began, and when they first showed a result."""
    promises: Mapping[str, int] = field(default_factory=dict)
    counted_jobs: int = 0
    """Jobs that have no other record than a tally."""
    counted_phrases: int = 0
    """Those among them that had a score."""
    delays_ms: Sequence[float] = ()
    """How long each of them took that succeeded."""


class ReportSource(NamedTuple):
    """The timeline, and the plan entry in force in the bar."""

    timeline: Timeline
    entry: PlanEntry


@dataclass(frozen=True, slots=True)
class BarReport:
    """One bar, or several in a row that were quiet, or that no node could examine (`is_missing`)."""

    window_id: str
    cluster_id: str
    start_ms: int
    end_ms: int
    tempo_bpm: float
    tempo_drift_bpm: float
    """The deviation from the policy's initial tempo."""
    revision: int = 1
    """Increases with each amendment."""
    bars: int = 1
    is_missing: bool = False
    tasks: Mapping[str, int] = field(default_factory=dict)
    beats: Mapping[str, int] = field(default_factory=dict)
    deliverables: int = 0
    overruns: int = 0
    overruns_by_phase: Mapping[str, int] = field(default_factory=dict)
    phrases: Mapping[str, int] = field(default_factory=dict)
    cost: float = 0.0
    promises: Mapping[str, int] = field(default_factory=dict)
    reporters: int = 0
    late: Names = Names()
    """Agents whose claims arrived after the first report on the bar."""
    missing: Names = Names()
    """Agents with a task in the previous bar and no claim in this one."""
    standing: MeshStanding = MeshStanding()
    suggestion: Suggestion = Suggestion()
    alarms: tuple[Alarm, ...] = ()
    kpis: Kpis = field(default_factory=Kpis)
    node_id: str = ""
    hlc: str = ""
    tokens: Mapping[str, TokenTotal] = field(default_factory=dict)
    """The tokens charged in it and their price, by currency. They are summed when the report is read."""

    # --- constructors ------------------------------------------------------------------------------

    @classmethod
    def of_bars(cls, source: ReportSource, window: Window, *, is_missing: bool) -> Self:
        """Return the report on quiet or missing bars."""
        policy, tempo = source.entry.policy, source.timeline.tempo_at(window.start_ms)
        return cls(
            window_id(policy.cluster_id, window.start_ms),
            policy.cluster_id,
            window.start_ms,
            window.end_ms,
            tempo.bpm,
            tempo.bpm - policy.initial_bpm,
            bars=max(1, source.timeline.bars_between(window.start_ms, window.end_ms)),
            is_missing=is_missing,
        )

    @classmethod
    def of_window(
        cls, source: ReportSource, window: Window, figures: Figures, standing: MeshStanding
    ) -> Self:
        """Return the report on one bar with data."""
        bare = cls.of_bars(source, window, is_missing=False)
        by_phase: dict[str, int] = {}
        for state, count in figures.overruns.items():
            if state in PHASE_OF:
                by_phase[PHASE_OF[state]] = by_phase.get(PHASE_OF[state], 0) + count
        report = replace(
            bare,
            tasks=dict(figures.tasks),
            beats=dict(figures.beats),
            deliverables=figures.deliverables,
            # Agents report an overrun when it happens, phrases at their end: often it is the same one.
            overruns=max(sum(figures.overruns.values()), figures.phrase_overruns),
            overruns_by_phase=by_phase,
            phrases=dict(figures.phrases),
            cost=figures.cost,
            promises={name: figures.promises.get(name, 0) for name in PROMISES},
            reporters=figures.reporters,
            late=Names.of(figures.late),
            missing=Names.of(figures.missing),
            standing=standing,
        )
        return replace(
            report,
            kpis=_compute_kpis(report, source.timeline, figures),
            alarms=tuple(_find_alarms(report)),
            suggestion=_suggest(report, source.entry),
        )

    # --- figures -----------------------------------------------------------------------------------

    @property
    def unfinished(self) -> int:
        """The number of tasks for which the next bar expects claims."""
        return sum(count for state, count in self.tasks.items() if state not in OVER)

    @property
    def overrun_rate(self) -> float | None:
        """The overruns per task."""
        return kpis.overrun_rate(self.overruns, sum(self.tasks.values()) or sum(self.phrases.values()))

    @property
    def promise_miss_rate(self) -> float | None:
        """The share of promises not kept."""
        kept, broken, expired = (self.promises.get(name, 0) for name in PROMISES[:3])
        return kpis.pmr(kept, broken, expired)

    def readings(self, incident: str | None = None) -> Readings:
        """Return the readings for the tempo control; unknown values call for no change."""
        standing = self.standing
        return Readings(
            standing.queue_depth or 0,
            standing.places or 0,
            standing.utilisation or 0.0,
            self.overrun_rate or 0.0,
            self.promise_miss_rate or 0.0,
            incident,
            standing.queue_by_kind,
            _in_tenths(standing.cpu_utilisation),
            _in_tenths(standing.gpu_utilisation),
            self.overruns_by_phase,
        )

    # --- storage -----------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """Return the report as stored and shown, in JSON."""
        return asdict(self)

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Self:
        """Return the report of a stored document."""
        made: dict[str, Any] = {
            **document,
            "late": _parse_names(document["late"]),
            "missing": _parse_names(document["missing"]),
            "standing": MeshStanding.of_document(document["standing"]),
            "suggestion": Suggestion(**document["suggestion"]),
            "alarms": tuple(Alarm(**alarm) for alarm in document["alarms"]),
            "kpis": Kpis(**document["kpis"]),
        }
        return cls(**made)


def _in_tenths(share: float | None) -> float | None:
    """Return a share for the tempo control, without the noise that would make every bar differ."""
    return None if share is None else round(share, 1)


def _parse_names(document: Mapping[str, Any]) -> Names:
    return Names(document["count"], tuple(document["names"]))


def _compute_kpis(report: BarReport, timeline: Timeline, figures: Figures) -> Kpis:
    tempo = timeline.tempo_at(report.start_ms)
    bar_beats, beat_ms = report.bars * tempo.bar_len, tempo.beat_ms
    firsts = [_beats_between(timeline, *first) for first in figures.firsts]
    return Kpis(
        tnt=kpis.tnt(report.deliverables, bar_beats),
        bpd=kpis.bpd(sum(report.beats.values()), report.deliverables),
        wr=kpis.wr(report.beats),
        eta=kpis.eta(report.beats),
        pmr=report.promise_miss_rate,
        cpd=kpis.cpd(report.cost, report.deliverables),
        ttfu=kpis.ttfu([*firsts, *(delay_ms / beat_ms for delay_ms in figures.delays_ms)]),
    )


def _beats_between(timeline: Timeline, from_ms: int, until_ms: int) -> float:
    tempo = timeline.tempo_at(from_ms)
    if timeline.tempo_at(until_ms) is tempo:  # the usual case, kept fast: there may be thousands of tasks
        return (until_ms - from_ms) / tempo.beat_ms
    return timeline.beats_between(from_ms, until_ms)


def _find_alarms(report: BarReport) -> Iterable[Alarm]:
    for name, rate, threshold in (
        ("promise_miss_rate", report.promise_miss_rate, PROMISE_MISS_RATE),
        ("overrun_rate", report.overrun_rate, OVERRUN_RATE),
    ):
        if rate is not None and rate > threshold:
            yield Alarm(name, rate, threshold)
    if not report.reporters and report.missing.count >= SILENT_REPORTERS:
        yield Alarm("no_status_claims", report.missing.count, SILENT_REPORTERS)


def _suggest(report: BarReport, entry: PlanEntry) -> Suggestion:
    phases = suggest_phases(entry.policy, report.overruns_by_phase)
    readings = report.readings()
    if readings.strain > 0:
        tempo, text = "slower", "phases are overrun, or promises broken"
    elif readings.pressure > 0:
        tempo, text = "faster", "work waits, and places are busy"
    else:
        tempo, text = "keep", ""
    if phases != entry.policy.phase_beats:
        worst = max(report.overruns_by_phase, key=report.overruns_by_phase.__getitem__)
        text = f"{text}; {worst} is too short" if text else f"{worst} is too short"
    return Suggestion(tempo, phases, text)


# --- stretches of bars -----------------------------------------------------------------------------


class Stretch(NamedTuple):
    """Consecutive bars: one with data, or all between two such."""

    window: Window
    has_data: bool


def stretches(timeline: Timeline, from_ms: int, until_ms: int, data_ms: Iterable[int]) -> list[Stretch]:
    """Return all bars between two downbeats, without a gap; a bar that contains a given time stands alone.

    The result has at most two entries for each of those bars, and one more.
    """
    found: list[Stretch] = []
    at_ms = from_ms
    for start_ms in sorted({timeline.window_at(each).start_ms for each in data_ms}):
        end_ms = timeline.window_at(start_ms).end_ms
        if end_ms <= from_ms or start_ms >= until_ms:
            continue
        if at_ms < start_ms:
            found.append(Stretch(Window(at_ms, start_ms), has_data=False))
            at_ms = start_ms
        found.append(Stretch(Window(at_ms, end_ms), has_data=True))
        at_ms = end_ms
    if at_ms < until_ms:
        found.append(Stretch(Window(at_ms, until_ms), has_data=False))
    return found


def parse_report(text: str | None) -> BarReport | None:
    """Return a stored report; `None` if there is none, or this version can't read it."""
    if text is None:
        return None
    try:
        return BarReport.of_document(orjson.loads(text))
    except (KeyError, TypeError, ValueError):
        return None


# --- watched bars --------------------------------------------------------------------------------


SOON_BARS: Final = 2
"""A node that looked at most this many bars ago knows what happened in between."""

_MAX_STRETCHES: Final = 64


class WatchedBars(NamedTuple):
    """Consecutive bars, all of which were watched, or none."""

    window: Window
    is_watched: bool


class BarWatch:
    """Records the watched stretches of time, bar by bar; the last one is open."""

    def __init__(self) -> None:
        self._ended: deque[Window] = deque(maxlen=_MAX_STRETCHES)
        self._since_ms: int | None = None
        self._observed_ms = 0

    @property
    def begins_ms(self) -> int | None:
        """When the first watched bar began, or `None`."""
        return self._ended[0].start_ms if self._ended else self._since_ms

    def begin(self, timeline: Timeline, now_ms: int) -> None:
        """Record that this node watches from now on; a bar that has begun before does not count."""
        self._ended.clear()
        self._since_ms = self._observed_ms = timeline.window_at(now_ms - 1).end_ms

    def observe(self, timeline: Timeline, now_ms: int) -> None:
        """Record that this node watches now. The last bar before a gap was not seen to its end."""
        start_ms = timeline.window_at(now_ms).start_ms
        if self._since_ms is None:
            self._since_ms = start_ms
        elif start_ms < self._since_ms:  # the clock was set back: earlier records no longer apply
            self._ended.clear()
            self._since_ms = start_ms
        elif now_ms > self._observed_ms and timeline.bars_between(self._observed_ms, now_ms) > SOON_BARS:
            last_ms = timeline.window_at(self._observed_ms).start_ms
            if last_ms > self._since_ms:
                self._ended.append(Window(self._since_ms, last_ms))
            self._since_ms = start_ms
        self._observed_ms = now_ms

    def covers(self, at_ms: int) -> bool:
        """Return whether the bar at a time was watched."""
        is_now = self._since_ms is not None and at_ms >= self._since_ms
        return is_now or any(start_ms <= at_ms < end_ms for start_ms, end_ms in self._ended)

    def parts(self, window: Window) -> Iterator[WatchedBars]:
        """Yield these bars without a gap, divided into watched and unwatched ones."""
        at_ms, until_ms = window
        going_on = () if self._since_ms is None else (Window(self._since_ms, until_ms),)
        for start_ms, end_ms in (*self._ended, *going_on):
            if end_ms <= at_ms or start_ms >= until_ms:
                continue
            if at_ms < start_ms:
                yield WatchedBars(Window(at_ms, start_ms), is_watched=False)
                at_ms = start_ms
            yield WatchedBars(Window(at_ms, min(end_ms, until_ms)), is_watched=True)
            at_ms = min(end_ms, until_ms)
        if at_ms < until_ms:
            yield WatchedBars(Window(at_ms, until_ms), is_watched=False)

    def forget(self, before_ms: int) -> None:
        """Drop everything before a time: it has been reported."""
        while self._ended and self._ended[0].end_ms <= before_ms:
            self._ended.popleft()


# --- totals --------------------------------------------------------------------------------------


class ReportTotals:
    """Counters since the process started. The sum over all nodes is the mesh's total."""

    def __init__(self) -> None:
        self.missing_bars = 0
        self.overruns = 0
        self.promises = dict.fromkeys(PROMISES, 0)

    def add(self, report: BarReport, before: BarReport | None) -> None:
        """Count what a report adds to its previous revision, if any."""
        if before is None and report.is_missing:
            self.missing_bars += report.bars
        self.overruns += max(0, report.overruns - (before.overruns if before else 0))
        for name in PROMISES:
            counted = before.promises.get(name, 0) if before else 0
            self.promises[name] += max(0, report.promises.get(name, 0) - counted)
