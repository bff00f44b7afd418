"""The figures of a bar, and which bars a report stands for."""

from __future__ import annotations

import statistics

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rhythm.grounds import BAR_MS, BEAT_MS, BEGIN_MS
from vox_mesh.model.rhythm import kpis
from vox_mesh.model.rhythm.claims import ClaimState
from vox_mesh.model.rhythm.plan import PlanEntry
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.model.rhythm.reports import BarReport, Figures, MeshStanding, ReportSource, stretches
from vox_mesh.model.rhythm.tempo import Tempo, Timeline, Window, window_id

_COUNTS = st.integers(0, 1_000)
_BEATS = st.dictionaries(st.sampled_from([each.value for each in ClaimState]), _COUNTS)
_POLICY = TempoPolicy.built_in("default")
_SOURCE = ReportSource(Timeline([Tempo(12, 8)]), PlanEntry(_POLICY, Tempo(12, 8)))
_WINDOW = Window(BEGIN_MS, BEGIN_MS + BAR_MS)


def of(standing: MeshStanding = MeshStanding(), **figures: object) -> BarReport:  # noqa: B008 - it is frozen
    """The report on a bar with these figures."""
    return BarReport.of_window(_SOURCE, _WINDOW, Figures(**figures), standing)  # type: ignore[arg-type]


def test_without_anything_to_divide_by_there_is_no_figure() -> None:
    assert kpis.tnt(3, 0) is None
    assert kpis.bpd(12, 0) is None
    assert kpis.wr({}) is None
    assert kpis.eta({"waiting": 0}) is None
    assert kpis.pmr(0, 0, 0) is None
    assert kpis.cpd(1.5, 0) is None
    assert kpis.ttfu([]) is None
    assert kpis.overrun_rate(1, 0) is None


@given(_BEATS)
def test_waiting_and_useful_beats_are_parts_of_those_used(beats: dict[str, int]) -> None:
    waited, useful = kpis.wr(beats), kpis.eta(beats)
    if not sum(beats.values()):
        assert waited is None
        assert useful is None
        return
    assert waited is not None
    assert useful is not None
    assert 0 <= waited + useful <= 1
    lost = beats.get("failed", 0) / sum(beats.values())
    assert waited + useful + lost == pytest.approx(1)


@given(_COUNTS, _COUNTS, _COUNTS)
def test_what_is_broken_or_expired_is_missed_and_nothing_else(kept: int, broken: int, expired: int) -> None:
    rate = kpis.pmr(kept, broken, expired)
    assert (rate is None) == (kept + broken + expired == 0)
    if rate is not None:
        assert rate * (kept + broken + expired) == pytest.approx(broken + expired)


@given(st.integers(1, 1_000), st.integers(1, 1_000), st.floats(0, 1e6))
def test_throughput_and_beats_per_deliverable_are_of_one_count(done: int, beats: int, cost: float) -> None:
    throughput, each, price = kpis.tnt(done, beats), kpis.bpd(beats, done), kpis.cpd(cost, done)
    assert throughput is not None
    assert each is not None
    assert price is not None
    assert throughput * each == pytest.approx(1)
    assert price * done == pytest.approx(cost)


@given(st.lists(st.floats(0, 1_000), min_size=1))
def test_the_time_to_first_use_is_the_median(beats: list[float]) -> None:
    assert kpis.ttfu(beats) == statistics.median(beats)


def test_a_report_has_all_figures_and_can_be_stored() -> None:
    report = of(
        MeshStanding(12, 4, 1.0, 30),
        tasks={"executing": 1, "done": 2, "failed": 1},
        beats={"executing": 6, "waiting": 2, "done": 2},
        reporters=3,
        late=("z", "a"),
        missing=("m",),
        deliverables=2,
        overruns={"executing": 1},
        cost=5.0,
        firsts=[(BEGIN_MS, BEGIN_MS + BEAT_MS), (BEGIN_MS, BEGIN_MS + 3 * BEAT_MS)],
        promises={"kept": 3, "broken": 1},
    )
    assert report.kpis == kpis.Kpis(tnt=0.25, bpd=5.0, wr=0.2, eta=0.8, pmr=0.25, cpd=2.5, ttfu=2.0)
    assert (report.window_id, report.bars, report.late.names) == (
        window_id("default", BEGIN_MS),
        1,
        ("a", "z"),
    )
    assert (report.overruns, report.overruns_by_phase, report.unfinished) == (1, {"work": 1}, 1)
    assert report.promises == {"kept": 3, "broken": 1, "expired": 0, "unanswered": 0}
    assert BarReport.of_document(orjson.loads(orjson.dumps(report.document()))) == report


def test_an_overrun_that_agent_and_phrase_both_tell_of_counts_once() -> None:
    both = of(tasks={"done": 1}, overruns={"executing": 1}, phrases={"done": 1}, phrase_overruns=1)
    assert both.overruns == 1
    assert of(phrases={"done": 2}, phrase_overruns=1).overrun_rate == 0.5


def test_each_alarm_is_raised_above_its_threshold_and_not_before() -> None:
    def names(**figures: object) -> list[str]:
        return [alarm.name for alarm in of(**figures).alarms]  # type: ignore[arg-type]

    assert names(promises={"kept": 1, "broken": 1}) == []
    assert names(promises={"kept": 1, "broken": 1, "expired": 1}) == ["promise_miss_rate"]
    assert names(tasks={"done": 2}, overruns={"executing": 1}, reporters=1) == []
    assert names(tasks={"done": 2}, overruns={"executing": 2}, reporters=1) == ["overrun_rate"]
    assert names(missing=("a",), reporters=1) == []
    assert names(missing=("a",)) == ["no_status_claims"]


def test_a_suggestion_follows_from_what_went_wrong() -> None:
    crowded = MeshStanding(40, 4, 1.0, 0)
    assert of(crowded).suggestion.tempo == "faster"
    assert of().suggestion.tempo == "keep"
    overrun = of(crowded, tasks={"done": 8}, overruns={"review": 5}).suggestion
    assert overrun.tempo == "slower"
    assert overrun.phases == {"plan": 2, "work": 3, "review": 3}
    assert "review" in overrun.text


_BARS = st.integers(0, 400)


@given(_BARS, _BARS, st.lists(st.integers(0, 400 * BAR_MS), max_size=20), st.integers(0, 400))
def test_stretches_cover_all_bars_once_and_those_with_data_stand_alone(
    first: int, count: int, moments: list[int], change_at: int
) -> None:
    change_ms = BEGIN_MS + change_at * BAR_MS
    timeline = Timeline([Tempo(12, 8), Tempo(20, 6, change_ms)])
    from_ms = timeline.window_at(BEGIN_MS + first * BAR_MS).start_ms
    until_ms = timeline.window_at(from_ms + count * BAR_MS).start_ms
    data = [BEGIN_MS + each for each in moments]
    found = stretches(timeline, from_ms, until_ms, data)
    edges = [from_ms] + [window.end_ms for window, _ in found]
    assert edges[:-1] == [window.start_ms for window, _ in found]
    assert edges[-1] == until_ms
    bars = sum(timeline.bars_between(*window) for window, _ in found)
    assert bars == timeline.bars_between(from_ms, until_ms)
    with_data = [window for window, has_data in found if has_data]
    assert with_data == sorted({timeline.window_at(each) for each in data if from_ms <= each < until_ms})
    assert len(found) <= 2 * len(with_data) + 1
