"""ULIDs: they sort by time, rise strictly, and hold what was put in."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.running.examples import few, many
from vox_mesh.model.base.ulid import UlidSource, derive_ulid, encode, is_ulid, milliseconds_of

times = st.integers(0, 2**48 - 1)
chances = st.integers(0, 2**80 - 1)


def scripted(readings: list[int]) -> Callable[[], int]:
    """A clock that shows these readings, one at a time."""
    left: Iterator[int] = iter(readings)
    return lambda: next(left)


def test_the_ends_of_the_range() -> None:
    assert encode(0, 0) == "0" * 26
    assert encode(0, 1) == "0" * 25 + "1"
    assert encode(1, 0) == "0" * 9 + "1" + "0" * 16
    assert encode(2**48 - 1, 2**80 - 1) == "7" + "Z" * 25


@many
@given(times, chances)
def test_a_ulid_holds_its_time_and_its_chance(milliseconds: int, chance: int) -> None:
    ulid = encode(milliseconds, chance)
    assert is_ulid(ulid)
    assert milliseconds_of(ulid) == milliseconds
    value = 0
    for letter in ulid:
        value = value * 32 + "0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(letter)
    assert value == (milliseconds << 80) | chance


@many
@given(st.tuples(times, chances), st.tuples(times, chances))
def test_sorting_the_text_sorts_the_time(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert (encode(*one) < encode(*other)) is (one < other)


@many
@given(
    readings=st.lists(st.integers(0, 2**47), min_size=2, max_size=50),
    seed=st.integers(),
    nearly_full=st.booleans(),
)
def test_they_rise_strictly_under_any_clock(readings: list[int], seed: int, nearly_full: bool) -> None:
    chance = random.Random(seed).getrandbits if not nearly_full else (lambda bits: 2**bits - 1)
    source = UlidSource(scripted(readings), chance)
    made = [source() for _ in readings]
    assert all(before < after for before, after in pairwise(made))
    assert all(is_ulid(ulid) for ulid in made)
    assert milliseconds_of(made[0]) == readings[0]


def test_a_clock_that_goes_forward_is_followed() -> None:
    source = UlidSource(scripted([1_000, 2_000, 1_500, 3_000]), random.Random(1).getrandbits)
    assert [milliseconds_of(source()) for _ in range(4)] == [1_000, 2_000, 2_000, 3_000]


@pytest.mark.parametrize(("milliseconds", "chance"), [(-1, 0), (2**48, 0), (0, -1), (0, 2**80)])
def test_what_does_not_fit_is_refused(milliseconds: int, chance: int) -> None:
    with pytest.raises(ValueError, match="48 bits"):
        encode(milliseconds, chance)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0" * 25,
        "0" * 27,
        "8" + "0" * 25,
        "0" * 25 + "I",
        "0" * 25 + "u",
        "0" * 25 + "\u0660",
        "0" * 25 + "\n",
    ],
)
def test_what_is_no_ulid_is_reported(text: str) -> None:
    assert not is_ulid(text)


@few
@given(times, chances, st.text(max_size=10), st.text(max_size=10))
def test_a_derived_ulid_is_the_same_for_everyone_and_each_purpose_has_its_own(
    milliseconds: int, chance: int, purpose: str, other: str
) -> None:
    ulid = encode(milliseconds, chance)
    made = derive_ulid(ulid, purpose)
    assert made == derive_ulid(ulid, purpose)
    assert (made == derive_ulid(ulid, other)) is (purpose == other)
    assert made != ulid
    assert made != derive_ulid(encode(milliseconds, chance ^ 1), purpose)
    assert is_ulid(made)
    assert milliseconds_of(made) == milliseconds


def test_a_derived_ulid_stays_the_same_from_one_version_to_the_next() -> None:
    """Nodes of different versions must send the same one."""
    assert derive_ulid("01KCA0000000000000000000AA", "ApplyDeferred") == "01KCA000003NFBAC51YFDQ2SZ4"
