"""Define the values and rows that the database stores and returns unchanged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from vox_mesh.errors import BadValue, DatabaseFault

Value = int | float | str | bytes | None
"""A column's value. A `bool` is stored as an integer."""

_INT_LIMIT: Final = 1 << 63


def check_values(values: Iterable[Value]) -> int:
    """Reject values that a backend would not return unchanged. Return their approximate size in bytes."""
    weight = 64
    for value in values:
        if type(value) is str and value.isascii():  # most are: each caller of the store comes through here
            weight += len(value)
        elif type(value) is int and -_INT_LIMIT <= value < _INT_LIMIT:
            weight += 8
        elif value is not None:
            weight += _checked_weight(value)
    return weight


def _checked_weight(value: Value) -> int:
    """Return the approximate size of any other value; raise `BadValue` if it would not return unchanged."""
    if isinstance(value, str):
        if value.isascii():
            return len(value)
        _check_text(value)
        return 4 * len(value)
    if isinstance(value, int):
        if not -_INT_LIMIT <= value < _INT_LIMIT:
            raise BadValue(f"the integer {value} has more than 64 bits")
        return 8
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadValue(f"the float {value} is not a finite number")
        return 8
    if isinstance(value, bytes):
        return len(value)
    kind = type(value).__name__
    raise BadValue(f"a {kind} can't be stored", hint="use int, float, str, bytes or None")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadValue("the text holds half of a surrogate pair and is not valid Unicode") from None


def whole_number(value: Any, what: str) -> int:
    """Return a number that was read. Raises `DatabaseFault` if the database holds something else there."""
    if type(value) is not int:
        raise DatabaseFault(
            f"{what} must be a whole number, and the database holds {repr(value)[:40]}",
            hint="it was changed past the mesh: restore a backup, or correct the row",
        )
    return value


class Row(tuple[Value, ...]):
    """A tuple with access by column name, `row["fence_token"]`."""

    columns: tuple[str, ...]
    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            try:
                return tuple.__getitem__(self, self.columns.index(key))
            except ValueError:
                raise KeyError(f"no column {key!r}; there are {', '.join(self.columns)}") from None
        return tuple.__getitem__(self, key)

    def as_dict(self) -> dict[str, Any]:
        """Return the row as a dictionary by column name."""
        return dict(zip(self.columns, self, strict=True))


@lru_cache(maxsize=1_024)
def _row_type(columns: tuple[str, ...]) -> type[Row]:
    """Return the row class for these columns. A class per set of columns keeps rows as small as tuples."""
    return type("Row", (Row,), {"columns": columns, "__slots__": ()})


class Rows(Sequence[Row]):
    """The rows of an answer, in order, with their column names.

    `age_s` is the maximum age of the answer in seconds; 0 if it came from the database itself.
    """

    __slots__ = ("_rows", "age_s", "columns")

    def __init__(self, columns: tuple[str, ...], rows: Iterable[Iterable[Value]]) -> None:
        self.columns = columns
        self.age_s = 0.0
        self._rows: list[Row] = list(map(_row_type(columns), rows))

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and (self.columns, self._rows) == (other.columns, other._rows)

    def __hash__(self) -> int:
        return hash((self.columns, tuple(self._rows)))

    def __repr__(self) -> str:
        return f"Rows({self.columns!r}, {[tuple(row) for row in self._rows]!r})"

    @property
    def value(self) -> Any:
        """Return the first value of the first row, or `None` without rows."""
        return self._rows[0][0] if self._rows else None


NO_ROWS: Final = Rows((), ())
