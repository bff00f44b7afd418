"""What the view is put together from: widths, heights, the rate of ops and lengths of time."""

from __future__ import annotations

import pytest

from vox_mesh.cli.top.headline import BARS, Rate
from vox_mesh.cli.top.panels import span
from vox_mesh.cli.top.widgets import GAP, cut, heights, widths


def test_the_widest_columns_give_way_first_and_the_last_are_left_out() -> None:
    assert widths([5, 30, 10], [5, 5, 5], 100) == [5, 30, 10]
    assert widths([5, 30, 10], [5, 5, 5], 30) == [5, 11, 10]
    assert widths([5, 30, 10], [5, 8, 8], 20) == [5, 8, 0]
    for width in range(9, 60):
        given = [each for each in widths([8, 20, 12, 30], [4, 6, 3, 9], width) if each]
        assert sum(given) + GAP * (len(given) - 1) <= max(width, 4)


@pytest.mark.parametrize("chosen", [None, 0, 2])
@pytest.mark.parametrize("available", [12, 20, 46])
def test_all_lines_are_given_out_and_each_panel_keeps_its_title_and_if_there_is_room_a_row(
    available: int, chosen: int | None
) -> None:
    wanted = [5, 1, 30, 2, 4, 3]
    given = heights(wanted, available, chosen)
    assert sum(given) == available
    has_all = chosen is None or given[chosen] >= wanted[chosen]
    least = 2 if has_all and available > 12 else 1
    assert all(have >= min(least, want) for have, want in zip(given, wanted, strict=True))
    if chosen is not None:
        assert given[chosen] >= min(wanted[chosen], available - 2 * len(wanted))


def test_text_is_cut_by_the_columns_it_takes() -> None:
    assert cut("abc", 5) == "abc  "
    assert cut("abcdef", 4) == "abc…"
    assert cut("日本語", 4) == "日 …"
    assert cut("ab", 1) == "a"


def test_the_rate_is_that_of_the_last_seconds_and_each_second_has_its_bar() -> None:
    rate = Rate()
    assert (rate.per_second, rate.bars(10)) == (0.0, "")
    for second, last_id in enumerate([100, 100, 110, 130, 130]):
        rate.add(1_000 * second, last_id)
    assert rate.per_second == 30 * 1_000 / 4_000
    assert rate.bars(10) == BARS[0] + BARS[4] + BARS[-1] + BARS[0]
    rate.add(60_000, 130)
    assert rate.per_second == 0.0
    assert rate.bars(3) == BARS[0] * 3


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (0, "0.0s"),
        (9_940, "9.9s"),
        (12_000, "12s"),
        (90_000, "1.5m"),
        (7_200_000, "2.0h"),
        (864_000_000, "10d"),
    ],
)
def test_lengths_of_time_are_short(milliseconds: int, shown: str) -> None:
    assert span(milliseconds) == shown
