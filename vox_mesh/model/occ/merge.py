"""Three-way merge: combine two changed versions of one row, column by column."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

Columns = Mapping[str, Any]
"""The values of a row by column."""

_ABSENT: Final = object()


class FieldChange(StrEnum):
    """Which side changed a column: none, one, both to the same value, or both to different ones."""

    NONE = ""
    LEFT = "left"
    RIGHT = "right"
    ALIKE = "both alike"
    CLASH = "both"


class ThreeWay(NamedTuple):
    """The result of a merge. `clashes` are the columns that both sides changed to different values.

    With clashes, `row` has the right side's values in these columns, and is not a valid merge.
    """

    row: dict[str, Any]
    clashes: tuple[str, ...]


def change_of(name: str, base: Columns | None, left: Columns, right: Columns) -> FieldChange:
    """Return which side changed a column since `base`; without a base, each side that has the column.

    A side without the column has not changed it. A column that is not in the base counts as changed. Values
    are compared as the database does: 1 equals 1.0.
    """
    origin = _ABSENT if base is None else base.get(name, _ABSENT)
    ours, theirs = left.get(name, _ABSENT), right.get(name, _ABSENT)
    is_ours = ours is not _ABSENT and ours != origin
    is_theirs = theirs is not _ABSENT and theirs != origin
    if is_ours and is_theirs:
        return FieldChange.ALIKE if ours == theirs else FieldChange.CLASH
    return FieldChange.LEFT if is_ours else FieldChange.RIGHT if is_theirs else FieldChange.NONE


def three_way(base: Columns | None, left: Columns, right: Columns) -> ThreeWay:
    """Merge two rows that were both derived from `base`."""
    names = {**right, **left}
    changes = {name: change_of(name, base, left, right) for name in names}
    row = {
        name: left[name] if change is FieldChange.LEFT or name not in right else right[name]
        for name, change in changes.items()
    }
    return ThreeWay(row, tuple(name for name, change in changes.items() if change is FieldChange.CLASH))


def changed_columns(row: Columns, other: Columns) -> dict[str, Any]:
    """Return the columns of a row that the other lacks, or has with another value."""
    return {name: value for name, value in row.items() if other.get(name, _ABSENT) != value}
