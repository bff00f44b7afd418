"""Views of conflicts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from vox_mesh.model.base.canonical import show_row
from vox_mesh.occ.conflicts import Conflict, Resolution
from vox_mesh.views.record_view import RecordView

SIDES: Final = ("base", "left", "right")


@dataclass(frozen=True)
class ConflictView(Conflict):
    """A conflict by column, its rows as JSON."""

    @classmethod
    def of(cls, conflict: Conflict) -> ConflictView:
        """Return the view of a conflict, open or resolved."""
        row = asdict(conflict)
        for name in ("row_key", *SIDES):
            row[name] = None if row[name] is None else show_row(row[name])
        return cls(**row)


@dataclass(frozen=True)
class ResolutionView(RecordView, record=Resolution):
    """How a conflict was resolved, by which op; `written_at` is the row's new version, if it has one."""
