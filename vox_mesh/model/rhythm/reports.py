"""Bar reports: what became of a bar, and what follows from it for the next ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

from vox_mesh.model.rhythm import kpis
from vox_mesh.model.rhythm.claims import OVER, PHASE_OF
from vox_mesh.model.rhythm.control import Readings, suggest_phases
from vox_mesh.model.rhythm.kpis import Kpis
from vox_mesh.model.rhythm.plan import PlanEntry
from vox_mesh.model.rhythm.tempo import Timeline, Window, window_id

PROMISE_MISS_RATE: Final = 0.5
"""More than this part of a bar's promises missed is an alarm."""

OVERRUN_RATE: Final = 0.5
"""More overruns than this for each task of a bar is an alarm.

Both are above what makes the tempo slower: an alarm freezes it.
"""

SILENT_REPORTERS: Final = 1
"""So many who had something to do and said nothing, while nobody else spoke, are an alarm."""

MAX_NAMES: Final = 100
"""So many are named; the others are counted."""

PROMISES: Final = ("kept", "broken", "expired", "unanswered")


@dataclass(frozen=True, slots=True)
class Names:
    """How many there are, and the first of them."""

    count: int = 0
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        """These, in order."""
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
    """Jobs that wait."""
    places: int | None = None
    """For how many jobs the live nodes have room in all."""
    utilisation: float | None = None
    """The part of those places in which a job runs."""
    clock_distance_ms: int | None = None
    """How far the clock of a live node is from the database's at the most."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What the claims, phrases and threads of a bar add up to."""

    tasks: Mapping[str, int] = field(default_factory=dict)
    """By the state in which each was last."""
    beats: Mapping[str, int] = field(default_factory=dict)
    """Beats used, by the state of the task in them."""
    reporters: int = 0
    late: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    deliverables: int = 0
    overruns: Mapping[str, int] = field(default_factory=dict)
    """By the state of the claim that told of it."""
    phrases: Mapping[str, int] = field(default_factory=dict)
    """By outcome."""
    phrase_overruns: int = 0
    cost: float = 0.0
    firsts: Sequence[tuple[int, int]] = ()
    """Of tasks that ended, when they began and when something first came of them."""
    promises: Mapping[str, int] = field(default_factory=dict)


class ReportSource(NamedTuple):
    """What a report is made by: the timeline, and what held in its bar."""

    timeline: Timeline
    entry: PlanEntry


@dataclass(frozen=True, slots=True)
class BarReport:
    """One bar; or several in a row that were quiet, or in which nobody could look (`is_missing`)."""

    window_id: str
    cluster_id: str
    start_ms: int
    end_ms: int
    tempo_bpm: float
    tempo_drift_bpm: float
    """How far the tempo is from the policy's first."""
    revision: int = 1
    """Rises when something came in that belongs to the bar."""
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
    """Whose claims came after the bar was first reported."""
    missing: Names = Names()
    """Who had something to do in the bar before, and said nothing in this one."""
    standing: MeshStanding = MeshStanding()
    suggestion: Suggestion = Suggestion()
    alarms: tuple[Alarm, ...] = ()
    kpis: Kpis = field(default_factory=Kpis)
    node_id: str = ""
    hlc: str = ""

    # --- made ------------------------------------------------------------------------------------

    @classmethod
    def of_bars(cls, source: ReportSource, window: Window, *, is_missing: bool) -> Self:
        """Bars in which there was nothing, or of which nobody knows."""
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
        """One bar of which there is something to tell."""
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
            # Agents tell of an overrun as it happens, phrases when they end: often it is the same one.
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
            kpis=_kpis(report, source.timeline, figures.firsts),
            alarms=tuple(_alarms(report)),
            suggestion=_suggestion(report, source.entry),
        )

    # --- asked -----------------------------------------------------------------------------------

    @property
    def unfinished(self) -> int:
        """How many tasks the next bar should hear of."""
        return sum(count for state, count in self.tasks.items() if state not in OVER)

    @property
    def overrun_rate(self) -> float | None:
        """Overruns for each task."""
        return kpis.overrun_rate(self.overruns, sum(self.tasks.values()) or sum(self.phrases.values()))

    @property
    def promise_miss_rate(self) -> float | None:
        """The part of the promises that was not kept."""
        kept, broken, expired = (self.promises.get(name, 0) for name in PROMISES[:3])
        return kpis.pmr(kept, broken, expired)

    def readings(self, incident: str | None = None) -> Readings:
        """The same as the control of the tempo reads it; what is not known speaks for no change."""
        standing = self.standing
        return Readings(
            standing.queue_depth or 0,
            standing.places or 0,
            standing.utilisation or 0.0,
            self.overrun_rate or 0.0,
            self.promise_miss_rate or 0.0,
            incident,
        )

    # --- stored ----------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """As it is stored and shown, in JSON."""
        return asdict(self)

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Self:
        """A report of ours that was stored."""
        made: dict[str, Any] = {
            **document,
            "late": _names(document["late"]),
            "missing": _names(document["missing"]),
            "standing": MeshStanding(**document["standing"]),
            "suggestion": Suggestion(**document["suggestion"]),
            "alarms": tuple(Alarm(**alarm) for alarm in document["alarms"]),
            "kpis": Kpis(**document["kpis"]),
        }
        return cls(**made)


def _names(document: Mapping[str, Any]) -> Names:
    return Names(document["count"], tuple(document["names"]))


def _kpis(report: BarReport, timeline: Timeline, firsts: Iterable[tuple[int, int]]) -> Kpis:
    bar_beats = report.bars * timeline.tempo_at(report.start_ms).bar_len
    return Kpis(
        tnt=kpis.tnt(report.deliverables, bar_beats),
        bpd=kpis.bpd(sum(report.beats.values()), report.deliverables),
        wr=kpis.wr(report.beats),
        eta=kpis.eta(report.beats),
        pmr=report.promise_miss_rate,
        cpd=kpis.cpd(report.cost, report.deliverables),
        ttfu=kpis.ttfu(_beats_between(timeline, *first) for first in firsts),
    )


def _beats_between(timeline: Timeline, from_ms: int, until_ms: int) -> float:
    tempo = timeline.tempo_at(from_ms)
    if timeline.tempo_at(until_ms) is tempo:  # as nearly always: there may be thousands of tasks
        return (until_ms - from_ms) / tempo.beat_ms
    return timeline.beats_between(from_ms, until_ms)


def _alarms(report: BarReport) -> Iterable[Alarm]:
    for name, rate, threshold in (
        ("promise_miss_rate", report.promise_miss_rate, PROMISE_MISS_RATE),
        ("overrun_rate", report.overrun_rate, OVERRUN_RATE),
    ):
        if rate is not None and rate > threshold:
            yield Alarm(name, rate, threshold)
    if not report.reporters and report.missing.count >= SILENT_REPORTERS:
        yield Alarm("no_status_claims", report.missing.count, SILENT_REPORTERS)


def _suggestion(report: BarReport, entry: PlanEntry) -> Suggestion:
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


# --- which bars ----------------------------------------------------------------------------------------


class Stretch(NamedTuple):
    """Bars in a row: one of which there is something to tell, or all between two such."""

    window: Window
    has_data: bool


def stretches(timeline: Timeline, from_ms: int, until_ms: int, data_ms: Iterable[int]) -> list[Stretch]:
    """All bars between two downbeats, without a gap; those in which the given moments lie stand alone.

    However long the time is, there are at most two for each of those bars, and one.
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
