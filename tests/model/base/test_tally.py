"""Tallies: every value is in its bucket, and no number of labels makes them grow without end."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vox_mesh.model.base.histogram import FEW, LONG_S, OTHER, QUICK_S, Counts, Histogram


@given(st.lists(st.floats(min_value=0, max_value=1e6)))
def test_each_bucket_has_all_that_is_at_most_its_bound(values: list[float]) -> None:
    spread = Histogram((0.5, 2.0, 1_000.0))
    for value in values:
        spread.observe(value)
    assert list(spread.buckets) == [
        (bound, sum(value <= bound for value in values)) for bound in (0.5, 2.0, 1_000.0, inf)
    ]
    assert spread.count == len(values)
    assert spread.sum == pytest.approx(sum(values))


def test_a_value_on_a_bound_is_in_its_bucket() -> None:
    spread = Histogram(FEW)
    spread.observe(8)
    assert [bound for bound, count in spread.buckets if count] == [8.0, 16.0, 32.0, 64.0, 128.0, 256.0, inf]


def test_what_clocks_that_disagree_make_negative_is_a_zero() -> None:
    spread = Histogram(QUICK_S)
    spread.observe(-3.0)
    assert (next(iter(spread.buckets)), spread.sum) == ((QUICK_S[0], 1), 0.0)


@pytest.mark.parametrize("bounds", [FEW, LONG_S, QUICK_S])
def test_bounds_rise(bounds: tuple[float, ...]) -> None:
    assert sorted(set(bounds)) == list(bounds)


def test_labels_beyond_the_bound_are_counted_together() -> None:
    counts = Counts(max_labels=2)
    for label in ("a", "b", "c", "a", "d"):
        counts.add(label)
    assert counts == {"a": 2, "b": 1, OTHER: 2}
    assert counts["never"] == 0
    assert "never" not in counts
