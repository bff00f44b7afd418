"""Three-way merge: what two sides made of one row, put together column by column."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

Columns = Mapping[str, Any]
"""The values of a row by column."""

_UNSAID: Final = object()


class FieldChange(StrEnum):
    """Who has changed a column: nobody, one side, both to the same value, or both to different ones."""

    NONE = ""
    LEFT = "left"
    RIGHT = "right"
    ALIKE = "both alike"
    CLASH = "both"


class ThreeWay(NamedTuple):
    """What came of a merge. `clashes` are the columns that both sides changed, to different values.

    Where there are any, `row` has the right side's values in them, and is no merge of the two.
    """

    row: dict[str, Any]
    clashes: tuple[str, ...]


def change_of(name: str, base: Columns | None, left: Columns, right: Columns) -> FieldChange:
    """Who has changed a column since `base`; without a base, whoever names it.

    A side that does not name a column has not changed it. A column that the base does not name is taken for
    changed, as nobody can tell. Values are compared as the database does: 1 and 1.0 are the same.
    """
    origin = _UNSAID if base is None else base.get(name, _UNSAID)
    ours, theirs = left.get(name, _UNSAID), right.get(name, _UNSAID)
    is_ours = ours is not _UNSAID and ours != origin
    is_theirs = theirs is not _UNSAID and theirs != origin
    if is_ours and is_theirs:
        return FieldChange.ALIKE if ours == theirs else FieldChange.CLASH
    return FieldChange.LEFT if is_ours else FieldChange.RIGHT if is_theirs else FieldChange.NONE


def three_way(base: Columns | None, left: Columns, right: Columns) -> ThreeWay:
    """Merge two rows that were both made from `base`."""
    names = {**right, **left}
    changes = {name: change_of(name, base, left, right) for name in names}
    row = {
        name: left[name] if change is FieldChange.LEFT or name not in right else right[name]
        for name, change in changes.items()
    }
    return ThreeWay(row, tuple(name for name, change in changes.items() if change is FieldChange.CLASH))


def differing(row: Columns, other: Columns) -> dict[str, Any]:
    """Those columns of a row that another has not, or with another value."""
    return {name: value for name, value in row.items() if other.get(name, _UNSAID) != value}
