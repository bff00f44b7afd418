"""The watch: a bar was watched if someone looked soon before and after it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vox_mesh.model.rhythm.reports import SOON_BARS, BarWatch
from vox_mesh.model.rhythm.tempo import Tempo, Timeline, Window

_LINE = Timeline([Tempo(60.0, 4)])
_BAR_MS = 4_000
_BARS = 40


@given(st.sets(st.integers(0, _BARS - 1), min_size=1), st.integers(0, _BARS - 1), st.integers(1, _BARS))
def test_the_parts_are_the_bars_each_of_which_was_watched_or_not(
    looks: set[int], first: int, count: int
) -> None:
    watch = BarWatch()
    for bar in sorted(looks):
        watch.observe(_LINE, bar * _BAR_MS + 700)
    watched = {
        bar
        for bar in range(first, first + count)
        if bar >= max(looks)
        or any(look <= bar < later for look in looks for later in looks if 0 < later - look <= SOON_BARS)
    }
    parts = list(watch.parts(Window(first * _BAR_MS, (first + count) * _BAR_MS)))
    made = [
        (start_ms // _BAR_MS + bar, is_watched)
        for (start_ms, end_ms), is_watched in parts
        for bar in range((end_ms - start_ms) // _BAR_MS)
    ]
    assert made == [(bar, bar in watched) for bar in range(first, first + count)]
    assert watched == {bar for bar in range(first, first + count) if watch.covers(bar * _BAR_MS)}


def test_what_is_reported_is_forgotten_and_what_goes_on_is_not() -> None:
    watch = BarWatch()
    assert watch.begins_ms is None
    assert list(watch.parts(Window(0, _BAR_MS))) == [(Window(0, _BAR_MS), False)]
    for bar in (0, 1, 2, 10, 11, 20):
        watch.observe(_LINE, bar * _BAR_MS)
    assert watch.begins_ms == 0
    watch.forget(10 * _BAR_MS)
    assert watch.begins_ms == 10 * _BAR_MS
    watch.forget(30 * _BAR_MS)
    assert watch.begins_ms == 20 * _BAR_MS


def test_of_a_time_before_which_the_clock_was_set_back_nothing_is_known() -> None:
    watch = BarWatch()
    for bar in (10, 11, 12, 20, 3):
        watch.observe(_LINE, bar * _BAR_MS)
    assert watch.begins_ms == 3 * _BAR_MS
    watch.observe(_LINE, 20 * _BAR_MS)
    assert not watch.covers(11 * _BAR_MS)
