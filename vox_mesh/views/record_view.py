"""Views with the fields of a record, so that each field is declared once."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self, get_type_hints


class RecordView:
    """A dataclass with the fields of a record: `class PieceView(RecordView, record=Piece)`.

    The fields are in the record's order. A field that the class declares again keeps its place and gets the
    new type. A field of the view alone comes after the field declared before it, or at the end.
    """

    def __init_subclass__(cls, *, record: type | None = None, without: Collection[str] = ()) -> None:
        if record is None:
            return
        fields = {name: kind for name, kind in get_type_hints(record).items() if name not in without}
        order, place = [*fields], len(fields)
        for name in (own := inspect.get_annotations(cls)):
            if name in fields:
                place = order.index(name) + 1
            else:
                order.insert(place, name)
                place += 1
        fields |= own
        cls.__annotations__ = {name: fields[name] for name in order}

    @classmethod
    def from_record(cls, record: Any, **values: Any) -> Self:
        """Return the view of a record, with these values for fields that the record does not have as such."""
        columns = record._asdict() if hasattr(record, "_asdict") else asdict(record)
        names = cls.__dataclass_fields__
        return cls(**{name: value for name, value in columns.items() if name in names} | values)

    if TYPE_CHECKING:  # the record's fields, which are not declared in the view
        __dataclass_fields__: dict[str, Any]

        def __init__(self, **fields: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...
