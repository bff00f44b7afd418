"""Views of conflicts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from vox_mesh.model.base.row_json import show_row
from vox_mesh.occ.conflicts import Conflict

SIDES: Final = ("base", "left", "right")


@dataclass(frozen=True)
class ConflictView:
    """A conflict by column."""

    conflict_id: str
    table_name: str
    row_key: dict[str, Any]
    base: dict[str, Any] | None
    left: dict[str, Any]
    right: dict[str, Any] | None
    left_node: str
    left_agent: str | None
    right_node: str | None
    strategy: str
    deferred_to: str | None
    state: str
    created_at: str
    resolved_at: str | None
    resolved_by: str | None
    resolved_agent: str | None
    resolution: str | None
    reason: str | None

    @classmethod
    def of(cls, conflict: Conflict) -> ConflictView:
        """Return the view of a conflict, open or resolved."""
        row = asdict(conflict)
        for name in ("row_key", *SIDES):
            row[name] = None if row[name] is None else show_row(row[name])
        return cls(**row)


@dataclass(frozen=True)
class ResolutionView:
    """How a conflict was resolved, by which op; `written_at` is the row's new version, if it has one."""

    conflict_id: str
    op_id: str
    resolution: str
    written_at: str | None
