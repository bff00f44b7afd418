"""The three-way merge, against the same rules spelt out case by case."""

from __future__ import annotations

from itertools import product
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vox_mesh.model.occ.merge import FieldChange, change_of, changed_columns, three_way

_NAMES: Final = ("a", "b", "c", "d")
_VALUES: Final = st.sampled_from([None, 0, 1, 2.5, "x", "", b"x"])
_FULL: Final = st.fixed_dictionaries(dict.fromkeys(_NAMES, _VALUES))
_PARTIAL: Final = st.dictionaries(st.sampled_from(_NAMES), _VALUES)
_BASES: Final = st.none() | _PARTIAL | _FULL


def _case_by_case(base: dict[str, Any] | None, left: dict[str, Any], right: dict[str, Any]) -> Any:
    """The value that each column has in the end, as a list of one; an empty list where both disagree."""
    merged = {}
    for name in _NAMES:
        known = base is not None and name in base
        match name in left, name in right:
            case False, False:
                continue
            case True, False:
                merged[name] = [left[name]]
            case False, True:
                merged[name] = [right[name]]
            case _ if left[name] == right[name]:
                merged[name] = [right[name]]
            case _ if known and base is not None and base[name] == left[name]:
                merged[name] = [right[name]]
            case _ if known and base is not None and base[name] == right[name]:
                merged[name] = [left[name]]
            case _:
                merged[name] = []
    return merged


@given(_BASES, _PARTIAL, _PARTIAL | _FULL)
def test_a_merge_is_what_the_rules_say_case_by_case(
    base: dict[str, Any] | None, left: dict[str, Any], right: dict[str, Any]
) -> None:
    expected = _case_by_case(base, left, right)
    row, clashes = three_way(base, left, right)
    assert {*clashes} == {name for name, values in expected.items() if not values}
    for name, values in expected.items():
        assert [row[name]] == (values or [right[name]])
    assert row.keys() == expected.keys()


@given(_BASES, _FULL, _FULL)
def test_it_makes_no_difference_which_side_is_called_left(
    base: dict[str, Any] | None, left: dict[str, Any], right: dict[str, Any]
) -> None:
    one, other = three_way(base, left, right), three_way(base, right, left)
    assert {*one.clashes} == {*other.clashes}
    agreed = {*_NAMES} - {*one.clashes}
    assert {name: one.row[name] for name in agreed} == {name: other.row[name] for name in agreed}


@given(_FULL, _FULL, _FULL)
def test_no_change_of_either_side_is_lost_in_silence(
    base: dict[str, Any], left: dict[str, Any], right: dict[str, Any]
) -> None:
    row, clashes = three_way(base, left, right)
    for side in (left, right):
        for name, value in changed_columns(side, base).items():
            assert row[name] == value or name in clashes
    for name in _NAMES:
        if left[name] == base[name] == right[name]:
            assert row[name] == base[name]


@given(_FULL, _FULL)
def test_merging_with_a_side_that_changed_nothing_gives_the_other(
    base: dict[str, Any], other: dict[str, Any]
) -> None:
    assert three_way(base, base, other) == (other, ())
    assert three_way(base, other, base).row == other
    assert three_way(base, {}, other) == (other, ())
    assert three_way(base, other, other).clashes == ()


@pytest.mark.parametrize(("ours", "theirs"), [*product((1, 2, 3), repeat=2)])
def test_who_changed_a_column_is_notified(ours: int, theirs: int) -> None:
    answer = change_of("a", {"a": 1}, {"a": ours}, {"a": theirs})
    match ours != 1, theirs != 1:
        case True, True:
            assert answer is (FieldChange.ALIKE if ours == theirs else FieldChange.CLASH)
        case True, False:
            assert answer is FieldChange.LEFT
        case False, True:
            assert answer is FieldChange.RIGHT
        case _:
            assert answer is FieldChange.NONE


def test_two_who_both_made_the_row_clash_where_they_differ_and_nowhere_else() -> None:
    row, clashes = three_way(None, {"a": 1, "b": 2}, {"a": 1, "b": 3, "c": None})
    assert (row, clashes) == ({"a": 1, "b": 3, "c": None}, ("b",))
