"""Durations as people write them."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.running.examples import many
from vox_mesh.errors import BadValue
from vox_mesh.model.base.durations import Duration, checked_seconds, milliseconds, seconds_of

UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@many
@given(st.integers(0, 10**9), st.sampled_from(sorted(UNITS)))
def test_a_number_and_a_unit(number: int, unit: str) -> None:
    assert milliseconds(f"{number}{unit}") == number * UNITS[unit]
    assert milliseconds(f"  {number}{unit}\n") == number * UNITS[unit]


@many
@given(st.integers(0, 10**9))
def test_a_bare_number_is_whole_seconds(number: int) -> None:
    assert milliseconds(number) == milliseconds(str(number)) == number * 1_000


@many
@given(
    st.integers(0, 999), st.integers(0, 99), st.integers(0, 999), st.integers(0, 9_999), st.integers(0, 999)
)
def test_iso_8601(days: int, hours: int, minutes: int, seconds: int, thousandths: int) -> None:
    expected = days * 86_400_000 + hours * 3_600_000 + minutes * 60_000 + seconds * 1_000 + thousandths
    assert milliseconds(f"P{days}DT{hours}H{minutes}M{seconds}.{thousandths:03}S") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PT1M30S", 90_000),
        ("P1D", 86_400_000),
        ("PT0.5S", 500),
        ("PT0.05S", 50),
        ("P2DT3H", 183_600_000),
        ("500ms", 500),
        ("0", 0),
        ("0.5", 500),
        ("1.5s", 1_500),
        ("0.25h", 900_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("1m30s", 90_000),
        ("1m500ms", 60_500),
        ("1d2h3m4s5ms", 93_784_005),
    ],
)
def test_examples(text: str, expected: int) -> None:
    assert milliseconds(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "s",
        "-1s",
        "1.5.s",
        "1 s",
        "1S",
        "5 min",
        "30m1h",
        "1h30",
        "1.5h30m",
        "1h 30m x",
        "9" * 5_000 + "s",
        "P" + "9" * 5_000 + "D",
        "P",
        "PT",
        "P1DT",
        "P1M",
        "PT1",
        "\u0663s",
        "1e3",
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"^.{1,60} is not a duration \(write 90, 90s, 5m, 1h30m, 30d, 500ms or PT1M30S\)$"
    ):
        milliseconds(text)


@pytest.mark.parametrize("value", [True, False, float("inf"), float("nan"), 1.2e308, 10**400])
def test_a_truth_value_or_a_number_without_bounds_is_no_duration(value: float) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        milliseconds(value)


@pytest.mark.parametrize("value", [90, 90.0, "90", "90s", "1.5m", "1m30s", "PT1M30S", timedelta(seconds=90)])
def test_numbers_texts_and_time_differences_are_taken_alike(value: Duration) -> None:
    assert milliseconds(value) == 90_000
    assert seconds_of("ttl", value) == checked_seconds("ttl", value, 0, 100, hint="") == 90.0


@pytest.mark.parametrize("value", [-1.0, timedelta(seconds=-1), float("nan"), 101, "1h"])
def test_a_duration_out_of_bounds_is_named_in_the_error(value: object) -> None:
    with pytest.raises(BadValue, match="ttl must be seconds between 0 and 100, got"):
        checked_seconds("ttl", value, 0, 100, hint="")


@pytest.mark.parametrize("value", [None, True, "soon", [1]])
def test_a_value_that_is_no_duration_is_named_in_the_error(value: object) -> None:
    with pytest.raises(BadValue, match=rf"^ttl: {re.escape(repr(value))} is not a duration \(write 90, 90s"):
        checked_seconds("ttl", value, 0, 100, hint="")
