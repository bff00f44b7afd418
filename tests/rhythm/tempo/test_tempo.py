"""Beats and bars: derived from any clock and any tempos, they are the same for everyone and leave no gap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vox_mesh.model.rhythm.tempo import Beat, Metronome, Tempo, Timeline, window_id

MOMENTS = st.integers(0, 4_000_000_000_000)
BPMS = st.one_of(st.integers(1, 60), st.floats(0.5, 120, allow_nan=False))
BAR_LENGTHS = st.integers(1, 16)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Tempos that follow each other on downbeats."""
    first = Tempo(draw(BPMS), draw(BAR_LENGTHS), draw(MOMENTS))
    tempos = [first]
    for _ in range(draw(st.integers(0, 4))):
        before = tempos[-1]
        anchor_ms = before.anchor_ms + draw(st.integers(1, 50)) * before.bar_ms
        tempos.append(Tempo(draw(BPMS), draw(BAR_LENGTHS), anchor_ms))
    return Timeline(tempos)


def near(timeline: Timeline) -> st.SearchStrategy[int]:
    """Moments around the changes of tempo."""
    first, last = timeline.tempos[0], timeline.last
    return st.integers(first.anchor_ms - 20 * first.bar_ms, last.anchor_ms + 20 * last.bar_ms)


@given(st.data(), timelines())
def test_a_moment_is_in_one_beat_and_the_beats_of_a_bar_are_numbered_from_one(
    data: st.DataObject, timeline: Timeline
) -> None:
    at_ms = data.draw(near(timeline))
    beat = timeline.beat_at(at_ms)
    assert beat.epoch_ms <= at_ms < beat.ends_ms
    assert 1 <= beat.index <= beat.bar_len
    assert beat.epoch_ms == beat.window_ms + (beat.index - 1) * beat.beat_ms
    following = timeline.beat_at(beat.ends_ms)
    assert following.epoch_ms == beat.ends_ms
    assert following.index == (1 if beat.index == beat.bar_len else beat.index + 1)
    assert following.is_downbeat is (following.window_ms != beat.window_ms)


@given(MOMENTS, st.integers(1, 60), BAR_LENGTHS)
def test_with_zero_as_the_anchor_the_index_is_the_remainder_of_unix_time(
    at_ms: int, bpm: int, bar_len: int
) -> None:
    tempo = Tempo(bpm, bar_len)
    beat = tempo.beat_at(at_ms)
    assert beat.index == 1 + (at_ms // tempo.beat_ms) % bar_len
    assert beat.epoch_ms == at_ms // tempo.beat_ms * tempo.beat_ms


@given(st.data(), timelines())
def test_a_clock_that_only_moves_forward_has_one_downbeat_for_each_bar(
    data: st.DataObject, timeline: Timeline
) -> None:
    start_ms = data.draw(near(timeline))
    steps = data.draw(st.lists(st.integers(0, 3 * timeline.last.bar_ms), max_size=20))
    metronome = Metronome(timeline.beat_at(start_ms).epoch_ms)
    answer: list[Beat] = []
    now_ms = start_ms
    for step in steps:
        now_ms += step
        answer += metronome.beats(timeline, now_ms)
        assert not answer or answer[-1] == timeline.beat_at(now_ms)
    expected = [window.end_ms for window in timeline.windows(start_ms, now_ms)]
    assert [beat.epoch_ms for beat in answer if beat.is_downbeat] == expected
    assert [beat.epoch_ms for beat in answer] == sorted({beat.epoch_ms for beat in answer})
    assert timeline.bars_between(start_ms, now_ms) == len(expected)


@given(st.data(), timelines())
def test_a_clock_that_steps_back_tells_no_beat_again(data: st.DataObject, timeline: Timeline) -> None:
    metronome = Metronome(timeline.beat_at(timeline.last.anchor_ms).epoch_ms)
    answer = [
        beat.epoch_ms
        for at_ms in data.draw(st.lists(near(timeline), max_size=20))
        for beat in metronome.beats(timeline, at_ms)
    ]
    assert answer == sorted(set(answer))


@given(st.data(), timelines(), st.integers(-500, 500))
def test_beats_from_now_and_the_moment_they_lead_to_are_each_others_inverse(
    data: st.DataObject, timeline: Timeline, beats: int
) -> None:
    now_ms = data.draw(near(timeline))
    target_ms = timeline.after(now_ms, beats)
    assert timeline.delta_beats(now_ms, target_ms) == beats


@given(MOMENTS, MOMENTS, BPMS)
def test_in_one_tempo_the_distance_is_time_by_the_length_of_a_beat(
    now_ms: int, target_ms: int, bpm: float
) -> None:
    timeline = Timeline([Tempo(bpm, 8)])
    assert timeline.delta_beats(now_ms, target_ms) == round((target_ms - now_ms) / timeline.last.beat_ms)


def test_a_bar_has_the_same_name_wherever_it_is_reported() -> None:
    assert window_id("east", 0) == window_id("east", 0)
    assert len({window_id("east", 0), window_id("west", 0), window_id("east", 40_000)}) == 3
