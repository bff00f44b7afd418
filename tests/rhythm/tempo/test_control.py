"""The control of the tempo: it settles on any load, keeps its guardrails, and is made again from its ops."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, repeat
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.model.oplog.chain import NO_HASH, LogEntry
from vox_mesh.model.oplog.op_names import TEMPO_DECISION
from vox_mesh.model.rhythm.control import (
    ControlState,
    Readings,
    TempoDecision,
    decide,
    record,
    replay,
    state_after,
    suggest_phases,
)
from vox_mesh.model.rhythm.plan import LEAD_BARS
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.model.rhythm.tempo import MINUTE_MS, Tempo

HOUR = 60
"""In minutes, as loads are reported."""

TOLERANCE = 1e-9
CALM = Readings(queue_depth=0, places=8, utilisation=0.5, overrun_rate=0.0, broken_rate=0.0)
PRESSED = replace(CALM, queue_depth=80, utilisation=1.0)
STRAINED = replace(PRESSED, overrun_rate=0.6)


def policy_of(**changes: Any) -> TempoPolicy:
    """A policy that adapts, from 6 to 24 beats a minute."""
    document = {
        "cluster_id": "lab",
        "initial_bpm": 12.0,
        "limits": {"min_bpm": 6.0, "max_bpm": 24.0},
        "adaptation": {"enable": True},
    }
    return TempoPolicy.of_document(document | changes)


def entry_of(payload: str, place: int, *, accepted: bool = True) -> LogEntry:
    """A decision as the log holds it."""
    what = (f"op-{place}", TEMPO_DECISION, "", "[]", payload, "default", NO_HASH, NO_HASH, None)
    return LogEntry(place, "a", place, *what, int(accepted), None, None)


class Bar(NamedTuple):
    """One decision, and what it was about."""

    policy: TempoPolicy
    now_ms: int
    from_ms: int
    in_force_bpm: float
    before: ControlState
    decision: TempoDecision

    @property
    def payload(self) -> str:
        """What its op says."""
        return canonical(record(self.policy, self.before, self.decision, self.now_ms, self.from_ms))

    @property
    def changed_ms(self) -> int:
        """From when on its change holds."""
        changed_ms = self.decision.state.changed_ms
        assert changed_ms is not None
        return changed_ms


class Stage:
    """Decides bar after bar, as a leader does: what changes is announced, and holds two bars later."""

    def __init__(self, policy: TempoPolicy) -> None:
        self.policy = policy
        self.state = ControlState.beginning(policy, policy.initial_bpm)
        self.now_ms = 0
        self.tempo = Tempo(policy.initial_bpm, policy.bar_len_beats)
        self.bars: list[Bar] = []

    def decide(self, readings: Readings) -> None:
        """The bar has gone like this."""
        state = self.state
        self.now_ms += self.tempo.bar_ms
        if state.changed_ms is not None and state.changed_ms <= self.now_ms:
            self.tempo = Tempo(state.bpm, self.policy.bar_len_beats)
        from_ms = self.now_ms + LEAD_BARS * self.tempo.bar_ms
        decision = decide(self.policy, state, readings, self.now_ms, from_ms)
        self.bars.append(Bar(self.policy, self.now_ms, from_ms, self.tempo.bpm, state, decision))
        self.state = decision.state
        if decision.phases is not None:
            self.policy = self.policy.with_phases(decision.phases)


def played(policy: TempoPolicy, readings: Iterable[Readings]) -> list[Bar]:
    """What is decided on these bars."""
    stage = Stage(policy)
    for each in readings:
        stage.decide(each)
    return stage.bars


# --- settling ------------------------------------------------------------------------------------------


@dataclass
class Plant:
    """A small mesh: work comes, each place does one task in a bar, and phases too short are overrun."""

    load: Callable[[float], float]
    """How many tasks come in a minute, by the minutes that have gone."""
    places: int = 8
    strains_at_bpm: float = 18.0
    hopeless_after_bpm: float = 12.0
    """So much faster than that, every phase would be overrun."""
    noise: random.Random | None = None
    queue: float = 0.0

    def bar(self, tempo: Tempo, now_ms: int) -> Readings:
        """Play one bar."""
        came = self.load(now_ms / MINUTE_MS) * tempo.bar_ms / MINUTE_MS
        overrun = max(0.0, min(0.9, (tempo.bpm - self.strains_at_bpm) / self.hopeless_after_bpm))
        if self.noise is not None:
            came = max(0.0, self.noise.gauss(came, came**0.5))
        tried = min(float(self.places), (self.queue + came) / (1 - overrun))
        if self.noise is not None and tried >= 1:
            overrun = sum(self.noise.random() < overrun for _ in range(round(tried))) / round(tried)
        self.queue = max(0.0, self.queue + came - tried * (1 - overrun))
        return Readings(int(self.queue), self.places, min(1.0, tried / self.places), overrun, 0.0)


def closed_loop(plant: Plant, minutes: float) -> list[Bar]:
    """The controller on the plant, for so long."""
    stage = Stage(policy_of())
    while stage.now_ms < minutes * MINUTE_MS:
        stage.decide(plant.bar(stage.tempo, stage.now_ms))
    return stage.bars


def since(bars: Sequence[Bar], minutes: float) -> list[Bar]:
    """The bars after so long."""
    return [bar for bar in bars if bar.now_ms > minutes * MINUTE_MS]


def reversals(bars: Sequence[Bar]) -> int:
    """How often it went faster after slower, or slower after faster."""
    directions = [bar.decision.bpm > bar.before.bpm for bar in bars if bar.decision.is_change]
    return sum(before != after for before, after in pairwise(directions))


def band(bars: Sequence[Bar]) -> float:
    """How far the slowest and the fastest tempo lie apart."""
    tempos = [bar.decision.bpm for bar in bars]
    return max(tempos) - min(tempos)


@pytest.mark.parametrize("per_minute", [11.0, 13.0, 15.0, 17.0])
def test_after_a_step_of_load_it_rises_settles_and_the_queue_is_gone(per_minute: float) -> None:
    plant = Plant(lambda minute: 4.0 if minute < 10 else per_minute)
    bars = closed_loop(plant, 3 * HOUR)
    settled = since(bars, 1.5 * HOUR)
    assert not any(bar.decision.is_change for bar in settled)
    assert reversals(bars) <= 1
    assert settled[-1].in_force_bpm >= per_minute / plant.places * 8
    assert plant.queue < 1


def test_with_more_work_than_can_be_done_it_stays_where_phases_are_just_kept() -> None:
    bars = closed_loop(Plant(lambda _: 25.0), 3 * HOUR)
    settled = since(bars, HOUR)
    assert not any(bar.decision.is_change for bar in settled)
    assert 17 <= settled[-1].in_force_bpm <= 20
    assert settled[-1].decision.inputs.overrun_rate < 0.12


def test_where_one_step_is_from_none_to_many_overruns_the_step_is_tried_once_an_hour_at_most() -> None:
    bars = closed_loop(Plant(lambda _: 25.0, strains_at_bpm=15.0, hopeless_after_bpm=4.0), 4 * HOUR)
    settled = since(bars, HOUR)
    assert reversals(settled) <= 2 * 3
    assert band(settled) <= 1
    assert max(bar.in_force_bpm for bar in settled) <= 16


def test_on_a_ramp_it_follows_the_load_up_and_comes_down_again_with_one_turn() -> None:
    bars = closed_loop(Plant(lambda minute: 4 + 13 * max(0.0, 1 - abs(minute - 150) / 120)), 7 * HOUR)
    assert reversals(bars) == 1
    assert max(bar.in_force_bpm for bar in bars) >= 17
    assert 12 <= bars[-1].in_force_bpm <= 12 * 1.1
    assert not any(bar.decision.is_change for bar in since(bars, 6 * HOUR))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("per_minute", [10.0, 13.0, 15.0, 25.0])
def test_on_noisy_load_it_stays_in_a_band_and_seldom_turns(per_minute: float, seed: int) -> None:
    plant = Plant(lambda _: per_minute, noise=random.Random(seed))
    settled = since(closed_loop(plant, 5 * HOUR), HOUR)
    assert band(settled) <= 4
    assert reversals(settled) <= 2 * 4
    assert sum(bar.decision.is_change for bar in settled) <= 4 * 4


def test_where_the_first_tempo_is_too_fast_it_gets_slower_until_phases_are_kept_and_stays_there() -> None:
    bars = closed_loop(Plant(lambda _: 4.0, strains_at_bpm=6.0), 4 * HOUR)
    assert reversals(bars) == 0
    assert bars[-1].decision.inputs.overrun_rate <= 0.12
    assert not any(bar.decision.is_change for bar in since(bars, 2 * HOUR))


def test_a_load_that_goes_away_leaves_no_change_in_the_wrong_direction_behind() -> None:
    bars = closed_loop(Plant(lambda minute: 40.0 if minute < 60 else 1.0), 4 * HOUR)
    gone = next(
        bar.now_ms for bar in bars if bar.now_ms > HOUR * MINUTE_MS and not bar.decision.inputs.queue_depth
    )
    assert not [bar for bar in bars if bar.now_ms > gone and bar.decision.bpm > bar.before.bpm]
    assert 12 <= bars[-1].in_force_bpm <= 12 * 1.1


# --- what it goes by -----------------------------------------------------------------------------------


def direction(readings: Readings) -> int:
    """Whether these readings, bar after bar, make it faster, slower, or neither."""
    policy = policy_of()
    last = played(policy, [readings] * 12)[-1].decision.bpm
    return (last > policy.initial_bpm) - (last < policy.initial_bpm)


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        (PRESSED, 1),
        (CALM, 0),
        (replace(PRESSED, utilisation=0.5), 0),
        (replace(PRESSED, queue_depth=0), 0),
        (replace(PRESSED, places=0), 0),
        (replace(PRESSED, overrun_rate=0.1), 0),
        (replace(PRESSED, broken_rate=0.1), 0),
        (replace(PRESSED, cpu_utilisation=0.9, gpu_utilisation=0.2), 1),
        (replace(PRESSED, cpu_utilisation=1.0), 0),
        (replace(PRESSED, cpu_utilisation=0.1, gpu_utilisation=1.0), 0),
        (STRAINED, -1),
        (replace(CALM, broken_rate=0.5), -1),
        (replace(CALM, utilisation=0.0), 0),
    ],
)
def test_busy_places_and_a_queue_make_it_faster_and_trouble_makes_it_slower(
    readings: Readings, expected: int
) -> None:
    assert direction(readings) == expected


@pytest.mark.parametrize(
    ("readings", "reason"),
    [
        (PRESSED, "faster: work waits, and places are busy"),
        (STRAINED, "slower: phases are overrun"),
        (replace(CALM, broken_rate=0.5), "slower: promises are broken"),
    ],
)
def test_a_change_says_why(readings: Readings, reason: str) -> None:
    assert {
        bar.decision.reason for bar in played(policy_of(), [readings] * 12) if bar.decision.is_change
    } == {reason}


def test_a_single_bad_bar_changes_nothing() -> None:
    policy = policy_of()
    state = ControlState.beginning(policy, 12.0)
    for readings in (STRAINED, CALM, PRESSED, CALM):
        decision = decide(policy, state, readings, 10 * MINUTE_MS)
        assert not decision.is_change


def test_a_tempo_that_was_slowed_down_stays_slow_while_there_is_nothing_to_do() -> None:
    policy = policy_of()
    state = ControlState.beginning(policy, 9.0)
    for minute in range(60):
        state = decide(policy, state, replace(CALM, utilisation=0.0), minute * MINUTE_MS).state
    assert state.bpm == 9.0


def test_what_was_heard_of_the_faster_tempo_does_not_slow_down_the_next_one() -> None:
    stage = Stage(policy_of())
    while stage.state.bpm == 12.0:
        stage.decide(STRAINED)
    slowed = stage.state
    for _ in range(10):
        stage.decide(CALM)
    assert (stage.state.bpm, stage.state.integral) == (slowed.bpm, slowed.integral)


# --- guardrails ----------------------------------------------------------------------------------------


RATES = st.one_of(st.sampled_from([0.0, 0.05, 0.1, 0.12, 1.0]), st.floats(0, 1))
READINGS = st.builds(
    Readings,
    queue_depth=st.integers(0, 500),
    places=st.integers(0, 64),
    utilisation=RATES,
    overrun_rate=RATES,
    broken_rate=RATES,
    incident=st.sampled_from([None, None, None, None, "no leader", "breaker open", "alarm:overrun_rate"]),
)


@st.composite
def policies(draw: st.DrawFn) -> TempoPolicy:
    """Policies with any limits, steps and hysteresis; most of them adapt."""
    low = draw(st.floats(0.5, 60))
    high = draw(st.floats(low, 240))
    step = draw(st.sampled_from(["0.5_beats", "1_beat", "7_beats", "100_beats"]))
    hysteresis = draw(st.sampled_from([0.0, 1.0, 10.0, 50.0, 100.0]))
    enable = draw(st.integers(0, 7)) > 0
    return policy_of(
        initial_bpm=draw(st.floats(low, high)),
        bar_len_beats=draw(st.integers(3, 16)),
        limits={"min_bpm": low, "max_bpm": high},
        adaptation={"enable": enable, "hysteresis_pct": hysteresis, "change_per_minute": step},
    )


@st.composite
def histories(draw: st.DrawFn) -> tuple[TempoPolicy, list[Bar]]:
    """A policy, and what was decided by it: stretches of equal bars lead further than single ones."""
    stretches = draw(st.lists(st.tuples(READINGS, st.integers(1, 30)), min_size=1, max_size=6))
    policy = draw(policies())
    return policy, played(policy, chain.from_iterable(repeat(*stretch) for stretch in stretches))


@given(histories())
def test_the_guardrails_hold_at_every_instant(history: tuple[TempoPolicy, list[Bar]]) -> None:
    policy, bars = history
    adaptation = policy.adaptation
    for bar in bars:
        before, after, decision = bar.before, bar.decision.state, bar.decision
        assert policy.limits.min_bpm <= decision.bpm <= policy.limits.max_bpm
        assert decision.bpm == after.bpm
        assert decision.is_change is (after.bpm != before.bpm)
        assert abs(after.bpm - before.bpm) <= adaptation.max_step_bpm + TOLERANCE
        if decision.reason.endswith("little to do"):
            assert decision.bpm >= policy.initial_bpm
        if decision.is_change:
            assert abs(decision.wanted_bpm - before.bpm) >= adaptation.hysteresis_pct / 100 * before.bpm
            assert bar.changed_ms > bar.now_ms
        if decision.inputs.incident is not None or not adaptation.enable:
            assert after == before
    effective = [bar.changed_ms for bar in bars if bar.decision.is_change]
    assert all(later - earlier >= MINUTE_MS for earlier, later in pairwise(effective))


@given(histories())
def test_the_integral_never_runs_further_ahead_than_one_change_can_follow(
    history: tuple[TempoPolicy, list[Bar]],
) -> None:
    policy, bars = history
    step, slack = policy.adaptation.max_step_bpm, policy.adaptation.hysteresis_pct / 100
    slowest = fastest = policy.initial_bpm
    for bar in bars:
        level = policy.initial_bpm * (1 + bar.decision.state.integral)
        rounding = policy.initial_bpm * 1e-6
        assert slowest * (1 - slack) - step - rounding <= level <= fastest * (1 + slack) + step + rounding
        slowest, fastest = min(slowest, bar.decision.bpm), max(fastest, bar.decision.bpm)


@pytest.mark.parametrize("incident", ["no leader", "breaker open", "alarm:overrun_rate"])
def test_it_is_frozen_during_an_incident_and_goes_on_where_it_was(incident: str) -> None:
    policy = policy_of()
    state = played(policy, [PRESSED] * 3)[-1].decision.state
    frozen = decide(policy, state, replace(STRAINED, incident=incident), HOUR * MINUTE_MS)
    assert (frozen.state, frozen.is_change, frozen.reason) == (state, False, f"frozen: {incident}")
    assert decide(policy, frozen.state, PRESSED, HOUR * MINUTE_MS).is_change


def test_a_tempo_that_was_only_announced_is_not_judged_by_bars_of_the_one_before() -> None:
    bars = played(policy_of(), [PRESSED] * 12)
    for bar in bars:
        changed_ms = bar.before.changed_ms
        if changed_ms is not None and bar.now_ms <= changed_ms:
            assert bar.decision.state == bar.before
    assert any(bar.decision.reason.startswith("settling") for bar in bars)


def test_the_first_readings_after_someone_has_set_the_tempo_do_not_make_it_jump() -> None:
    policy = policy_of()
    decision = decide(policy, ControlState.beginning(policy, 20.0), CALM, 0)
    assert decision.wanted_bpm == 20.0


# --- replaying -----------------------------------------------------------------------------------------


@given(histories())
def test_every_decision_is_made_again_from_its_op_byte_for_byte(
    history: tuple[TempoPolicy, list[Bar]],
) -> None:
    _, bars = history
    assert list(replay(entry_of(bar.payload, place) for place, bar in enumerate(bars))) == []
    assert all(state_after(parse(bar.payload)) == bar.decision.state for bar in bars)


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("bpm", 23, {"decision"}),
        ("reason", "because", {"decision"}),
        ("after", None, {"decision"}),
        ("before", None, {"decision", "before"}),
        ("readings", {}, {"payload"}),
    ],
)
def test_a_decision_that_its_inputs_do_not_lead_to_is_found(field: str, value: Any, what: set[str]) -> None:
    bars = played(policy_of(), [PRESSED] * 6)
    entries = [entry_of(bar.payload, place) for place, bar in enumerate(bars)]
    payload = parse(bars[2].payload)
    payload[field] = {**payload[field], "integral": 0.5} if value is None else value
    entries[2] = entry_of(canonical(payload), 2)
    found = [each for each in replay(entries) if each.op_id == "op-2"]
    assert {each.what for each in found} == what


def test_what_was_refused_is_left_out_and_a_tempo_set_by_hand_begins_again() -> None:
    policy = policy_of()
    bars = played(policy, [PRESSED] * 6)
    last, now_ms = bars[-1].decision.state, bars[-1].now_ms + 90_000

    def next_payload(before: ControlState, readings: Readings) -> str:
        decision = decide(policy, before, readings, now_ms, now_ms)
        return canonical(record(policy, before, decision, now_ms, now_ms))

    entries = [
        *(entry_of(bar.payload, place) for place, bar in enumerate(bars)),
        entry_of(next_payload(last, STRAINED), 6, accepted=False),
        entry_of(next_payload(last, PRESSED), 7),
        entry_of(next_payload(ControlState.beginning(policy, 9.0, now_ms), CALM), 8),
        entry_of(next_payload(last, PRESSED), 9),
    ]
    assert [(each.op_id, each.what) for each in replay(entries)] == [("op-9", "before")]


# --- phases --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overruns", "expected"),
    [
        ({}, (2, 4, 2)),
        ({"plan": 2}, (2, 4, 2)),
        ({"plan": 3, "work": 3}, (2, 4, 2)),
        ({"plan": 5, "work": 3}, (3, 3, 2)),
        ({"review": 3}, (2, 3, 3)),
        ({"work": 3}, (1, 5, 2)),
        ({"nowhere": 9}, (2, 4, 2)),
    ],
)
def test_the_phase_in_which_most_overruns_are_gets_a_beat(
    overruns: dict[str, int], expected: tuple[int, ...]
) -> None:
    assert tuple(suggest_phases(policy_of(), overruns).values()) == expected


@given(
    st.lists(st.sampled_from(["plan", "work", "review", "rest", "tell"]), min_size=1, unique=True),
    st.integers(5, 16),
    st.dictionaries(st.sampled_from(["plan", "work", "review", "rest"]), st.integers(0, 9)),
)
def test_suggested_phases_cover_the_bar_exactly(
    names: list[str], bar_len_beats: int, overruns: dict[str, int]
) -> None:
    policy = policy_of(phases=names, bar_len_beats=bar_len_beats)
    suggested = suggest_phases(policy, overruns)
    assert list(suggested) == names
    assert sum(suggested.values()) == bar_len_beats
    assert min(suggested.values()) >= 1
    assert sum(abs(beats - policy.phase_beats[name]) for name, beats in suggested.items()) in (0, 2)


MOVING = policy_of(adaptation={"enable": True, "phases": True})
SHORT_PLAN = replace(CALM, overrun_rate=0.1, overruns_by_phase={"plan": 4})
SHORT_WORK = replace(CALM, overrun_rate=0.1, overruns_by_phase={"work": 4})


def moves(policy: TempoPolicy, readings: Iterable[Readings]) -> list[tuple[int, ...]]:
    """The beats of the phases after each move, in order."""
    bars = played(policy, readings)
    assert list(replay(entry_of(bar.payload, place) for place, bar in enumerate(bars, 1))) == []
    assert all(later.now_ms >= bar.changed_ms + MINUTE_MS for bar, later in pairwise(changes_in(bars)))
    return [tuple(bar.decision.phases.values()) for bar in bars if bar.decision.phases is not None]


def changes_in(bars: Iterable[Bar]) -> list[Bar]:
    """The bars whose decision changes something."""
    return [bar for bar in bars if bar.decision.is_change]


def test_a_phase_that_is_too_short_for_three_bars_gets_a_beat_and_the_tempo_stays() -> None:
    bars = played(MOVING, [SHORT_PLAN] * 3)
    decision = bars[-1].decision
    assert [bar.decision.is_change for bar in bars] == [False, False, True]
    assert decision.phases == {"plan": 3, "work": 3, "review": 2}
    assert (decision.bpm, decision.reason) == (12.0, "phases: plan is too short")
    assert parse(bars[-1].payload)["phases"] == [{"plan": 3}, {"work": 3}, {"review": 2}]
    assert state_after(parse(bars[-1].payload)) == decision.state


@pytest.mark.parametrize(
    ("policy", "readings", "expected"),
    [
        (policy_of(), [SHORT_PLAN] * 30, []),
        (MOVING, [SHORT_PLAN, SHORT_PLAN, CALM] * 10, []),
        (MOVING, [SHORT_PLAN, SHORT_WORK] * 10, []),
        (MOVING, [replace(SHORT_PLAN, incident="declared")] * 30, []),
        (MOVING, [SHORT_PLAN] * 60, [(3, 3, 2), (4, 2, 2), (5, 1, 2), (6, 1, 1)]),
        (MOVING, [SHORT_PLAN] * 3 + [SHORT_WORK] * 30, [(3, 3, 2)]),
        (MOVING, [SHORT_PLAN] * 3 + [SHORT_WORK] * 120, [(3, 3, 2), (2, 4, 2), (1, 5, 2), (1, 6, 1)]),
    ],
)
def test_a_beat_moves_only_if_it_must_and_is_not_taken_back_within_an_hour(
    policy: TempoPolicy, readings: list[Readings], expected: list[tuple[int, ...]]
) -> None:
    assert moves(policy, readings) == expected
