"""Views with the fields of a record, so that each field is declared once."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, get_type_hints


class RecordView:
    """A dataclass that begins with the fields of a record: `class PieceView(RecordView, record=Piece)`.

    The fields are in the record's order. A field that the class declares itself replaces the record's field
    of that name, or comes after them.
    """

    def __init_subclass__(cls, *, record: type | None = None, without: Collection[str] = ()) -> None:
        if record is not None:
            fields = {name: kind for name, kind in get_type_hints(record).items() if name not in without}
            cls.__annotations__ = fields | inspect.get_annotations(cls)

    if TYPE_CHECKING:  # the record's fields, which are not declared in the view

        def __getattr__(self, name: str) -> Any: ...
