"""UCXL addresses: read, printed back, resolved; and what is none is refused where it goes wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vox_mesh.errors import BadAddress
from vox_mesh.model.rhythm.plan import Plan, PlanEntry
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.model.rhythm.tempo import Beat
from vox_mesh.model.rhythm.ucxl import (
    MAX_BAR,
    MAX_BEATS,
    MAX_LENGTH,
    Address,
    BarBeat,
    Beats,
    PhaseFilter,
    Resolved,
    parse,
    resolve,
)

BASE: Final = "ucxl://proj:any/*/task/ingest"
BEAT_MS: Final = 5_000
FIRST: Final = PlanEntry.of(TempoPolicy.built_in("home"))
BUILT_IN: Final = Plan(FIRST)  # 12 beats a minute, 8 in a bar: plan 2, work 4, review 2
NOW_MS: Final = 1_000_000_000 * 40_000 + 2_300  # in the first beat of a bar


def then(plan: Plan, bpm: float, bar_len: int, bars: int, phases: dict[str, int] | None = None) -> Plan:
    """A plan with another tempo, this many bars after the last one began."""
    document = {"cluster_id": "home", "initial_bpm": bpm, "bar_len_beats": bar_len}
    policy = TempoPolicy.of_document(document if phases is None else {**document, "phases": phases})
    anchor_ms = plan.head.anchor_ms + bars * plan.head.tempo.bar_ms
    return Plan(plan.entries[0], (*plan.entries[1:], plan.followed_by(policy, bpm, anchor_ms, "")))


def resolved(suffixes: str, plan: Plan = BUILT_IN, now_ms: int = NOW_MS) -> Resolved:
    """When these suffixes mean."""
    return resolve(parse(BASE + suffixes), plan, now_ms)


def fault(text: str, plan: Plan = BUILT_IN) -> BadAddress:
    """What is wrong with an address."""
    with pytest.raises(BadAddress) as caught:
        resolve(parse(text), plan, NOW_MS)
    assert 0 <= caught.value.position <= len(text)
    assert f"at offset {caught.value.position}" in caught.value.line
    assert caught.value.hint
    return caught.value


bases = st.builds("ucxl://{}".format, st.from_regex(r"[!-\"$-:<-~äλ*]{1,60}", fullmatch=True))
phases = st.from_regex(r"[a-z][a-z0-9_-]{0,31}", fullmatch=True).map(PhaseFilter)
beats = st.builds(Beats, st.integers(0, MAX_BEATS), st.booleans())
bar_beats = st.builds(BarBeat, st.integers(1, MAX_BAR), st.integers(1, MAX_BEATS))
suffixes = st.tuples(st.none() | beats | bar_beats, st.none() | phases, st.booleans()).map(
    lambda few: tuple(each for each in (few[:2] if few[2] else few[1::-1]) if each is not None)
)
addresses = st.builds(Address, bases, suffixes)
pieces = st.sampled_from(
    [
        *("ucxl://", "ucxl:", "a/b", ";", "#", ";beats=", "^^", "~~", "4", "0", "007", "9" * 5_000),
        *(";phase=", "work", ";bar=", "#beat=", "x", " ", "\0", "\ud800", "\u0663", "ä"),
    ]
)
texts = st.lists(pieces, max_size=9).map("".join) | st.text(max_size=40).map(lambda text: BASE + text)


@given(addresses)
def test_an_address_is_printed_as_it_was_read(address: Address) -> None:
    read = parse(str(address))
    assert read == address
    assert str(read) == str(address)


@given(texts)
def test_every_text_is_an_address_or_refused_at_a_place_in_it(text: str) -> None:
    try:
        read = parse(text)
    except BadAddress as error:
        bad = error
    else:
        assert str(read) == text
        return
    assert 0 <= bad.position <= len(text)
    assert bad.hint


@given(
    st.integers(0, 10_000),
    st.booleans(),
    st.integers(110_000_000, 1_000_000_000),
    st.lists(st.tuples(st.floats(6, 60), st.integers(3, 16), st.integers(1, 5_000)), max_size=3),
)
def test_beats_between_now_and_what_an_address_means_are_the_ones_that_it_says(
    count: int, is_past: bool, now_ms: int, tempos: list[tuple[float, int, int]]
) -> None:
    plan = Plan(replace(FIRST, first_bar=7))
    for bpm, bar_len, bars in tempos:
        plan = then(plan, bpm, bar_len, bars)
    at_ms = resolve(Address(BASE, (Beats(count, is_past),)), plan, now_ms).at_ms
    assert plan.timeline.delta_beats(now_ms, at_ms) == (-count if is_past else count)


@given(st.sampled_from(["plan", "work", "review"]), st.integers(0, 100), st.booleans(), st.integers(0, 10**9))
def test_with_a_phase_it_is_the_nearest_moment_of_that_phase_in_its_direction(
    phase: str, count: int, is_past: bool, ahead_ms: int
) -> None:
    plan = then(then(BUILT_IN, 20, 4, 10**6), 30, 7, 50)
    now_ms = plan.entries[1].anchor_ms - 400_000 + ahead_ms % 1_200_000
    beats = Beats(count, is_past)
    target = resolve(Address(BASE, (beats,)), plan, now_ms)
    found = resolve(Address(BASE, (beats, PhaseFilter(phase))), plan, now_ms)
    assert found.phase == phase
    if target.phase == phase:
        assert found == target
        return
    assert found.at_ms == found.beat.epoch_ms
    assert (found.at_ms < target.at_ms) is is_past
    first, last = (found, target) if is_past else (target, found)
    at_ms = first.beat.ends_ms
    while at_ms < last.beat.epoch_ms:
        between = resolve(parse(BASE), plan, at_ms)
        assert between.phase != phase
        at_ms = between.beat.ends_ms


@given(st.integers(1, 3_000), st.integers(1, 16))
@example(100, 8)
@example(101, 5)
@example(1_101, 7)
def test_bars_are_counted_from_the_anchor_of_the_first_tempo(bar: int, beat: int) -> None:
    plan = then(then(BUILT_IN, 20, 4, 100), 30, 7, 1_000)
    address = Address(BASE, (BarBeat(bar, beat),))
    bar_len = 8 if bar <= 100 else 4 if bar <= 1_100 else 7
    if beat > bar_len:
        assert fault(str(address), plan).position == len(str(address)) - len(str(beat))
        return
    found = resolve(address, plan, NOW_MS)
    assert plan.timeline.bars_between(0, found.at_ms) + 1 == bar
    assert (found.beat.index, found.beat.epoch_ms) == (beat, found.at_ms)


def test_what_addresses_mean() -> None:
    downbeat_ms = NOW_MS - 2_300
    beat = Beat(5, downbeat_ms + 4 * BEAT_MS, BEAT_MS, downbeat_ms, 8)
    assert resolved("").at_ms == NOW_MS
    assert resolved(";beats=^^4") == Resolved(NOW_MS + 4 * BEAT_MS, beat, "work")
    assert resolved(";beats=~~1").beat.index == 8
    assert resolved(";phase=plan").at_ms == NOW_MS, "it is now"
    assert resolved(";phase=work").at_ms == downbeat_ms + 2 * BEAT_MS, "when it begins"
    assert resolved(";beats=^^6;phase=work").at_ms == downbeat_ms + 10 * BEAT_MS, "in the next bar"
    assert resolved(";phase=work;beats=~~0").at_ms == downbeat_ms - 3 * BEAT_MS, "its last beat"
    assert resolved(";bar=1#beat=1").at_ms == 0
    assert resolved(";bar=1#beat=2;phase=review").at_ms == 6 * BEAT_MS
    assert resolved(";bar=1000000001#beat=8").beat.window_ms == downbeat_ms


def test_phases_are_those_of_the_policy_that_holds_then() -> None:
    plan = then(then(BUILT_IN, 12, 8, 100, {"sow": 4, "reap": 4}), 12, 8, 100)
    change_ms = plan.entries[1].anchor_ms
    assert resolved(";phase=reap", plan, change_ms - 1).at_ms == change_ms + 4 * BEAT_MS
    assert resolved(";phase=work", plan, change_ms + 1).at_ms == plan.head.anchor_ms + 2 * BEAT_MS
    assert resolved(";phase=review;beats=~~0", plan, change_ms + 1).at_ms == change_ms - BEAT_MS
    assert "there is plan, work, review" in fault(BASE + ";phase=sow").line


@pytest.mark.parametrize(
    ("text", "position", "said"),
    [
        ("", 0, "ucxl:// is missing"),
        ("ucx://a", 3, "ucxl:// is missing"),
        ("ucxl://", 7, "there is no path"),
        ("ucxl://;beats=^^1", 7, "there is no path"),
        ("ucxl://a b", 8, "' ' can't stand there"),
        ("ucxl://a#beat=3", 8, "'#' can't stand there"),
        ("ucxl://a;", 8, "there is no such suffix"),
        ("ucxl://a;beat=^^1", 8, "there is no such suffix"),
        ("ucxl://a;beats=4", 15, "^^N is N beats from now, ~~N before"),
        ("ucxl://a;beats=^^", 17, "there is no number"),
        ("ucxl://a;beats=^^-1", 17, "there is no number"),
        ("ucxl://a;beats=^^1.5", 18, "there is no such suffix"),
        ("ucxl://a;beats=~~04", 17, "without zeros before it"),
        ("ucxl://a;beats=^^1000001", 17, "a number from 0 to 1000000"),
        ("ucxl://a;beats=^^" + "9" * 1_900, 17, "a number from 0 to 1000000"),
        ("ucxl://a;beats=^^1;beats=~~1", 18, ";beats=~~1 is one too many"),
        ("ucxl://a;beats=^^1;bar=1#beat=1", 18, "is one too many"),
        ("ucxl://a;phase=work;phase=plan", 19, "is one too many"),
        ("ucxl://a;phase=", 15, "there is no phase"),
        ("ucxl://a;phase=Work", 15, "there is no phase"),
        ("ucxl://a;phase=rest", 15, "there is plan, work, review"),
        ("ucxl://a;bar=0#beat=1", 13, "a number from 1 to"),
        ("ucxl://a;bar=12", 15, "#beat= is missing"),
        ("ucxl://a;bar=12#bar=1", 17, "#beat= is missing"),
        ("ucxl://a;bar=12#beat=9", 21, "bar 12 has no beat 9, at offset 21; it has 8"),
        ("ucxl://a;bar=999999999999#beat=1", 8, "from 1970 to 9999"),
        ("ucxl://" + "a" * MAX_LENGTH, MAX_LENGTH, f"at most {MAX_LENGTH} characters"),
    ],
)
def test_what_is_wrong_is_reported_with_its_place_and_what_may_stand_there(
    text: str, position: int, said: str
) -> None:
    bad = fault(text)
    assert bad.position == position
    assert said in bad.line


def test_bars_before_the_first_tempo_that_is_known_are_refused() -> None:
    plan = Plan(replace(FIRST, first_bar=41))
    assert resolved(";bar=42#beat=1", plan).at_ms == 0
    assert "the first bar that is known is 42" in fault(BASE + ";bar=41#beat=1", plan).line
