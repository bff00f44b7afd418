"""Conflicts: optimistic writes that wait for a resolution."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from vox_mesh.errors import BadValue
from vox_mesh.http.api.operations import Operations, RequestModel, Text
from vox_mesh.http.api.pages import Page, PageQuery
from vox_mesh.http.principals.needs import writes
from vox_mesh.model.base.canonical import decode_row
from vox_mesh.model.oplog.op_names import RESOLVE
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.conflicts import ConflictView, ResolutionView

CONFLICTS: Final = Operations("conflicts")

MAX_COLUMNS: Final = 1_000
"""The maximum number of columns that a resolution takes from a side."""


class ConflictsQuery(PageQuery):
    """The filter of a list of conflicts."""

    open: bool = False
    table: Text | None = None


class ResolveRequest(RequestModel):
    """The resolution of a conflict: a side, the merge, or values; and the version of the row it is for.

    `columns` names columns that get their value of a side, exactly; `value` has other ones. The rest stays.
    """

    take: Literal["left", "right", "merge"] | None = None
    value: dict[str, Any] | None = None
    columns: Annotated[dict[str, Literal["base", "left"]], Field(max_length=MAX_COLUMNS)] | None = None
    reason: Text | None = None
    onto: Text | None = None


@CONFLICTS.get("/v1/conflicts")
async def list_conflicts(mesh: MeshServices, query: ConflictsQuery) -> Page[ConflictView]:
    """List conflicts, oldest first."""
    after = query.text or ""
    found = await mesh.conflicts.after(after, query.limit, open_only=query.open, table=query.table)
    return query.page([ConflictView.of(each) for each in found], lambda view: view.conflict_id)


@CONFLICTS.get("/v1/conflicts/{conflict_id}")
async def show_conflict(mesh: MeshServices, conflict_id: Text) -> ConflictView:
    """Show a conflict, by its id or a unique prefix."""
    return ConflictView.of(await mesh.conflicts.find(conflict_id))


@CONFLICTS.post("/v1/conflicts/{conflict_id}/resolve", needs=writes(RESOLVE))
async def resolve_conflict(mesh: MeshServices, conflict_id: Text, body: ResolveRequest) -> ResolutionView:
    """Resolve a conflict, if the row is still the right side or the version `onto`."""
    if (body.take is None) == (body.value is None and body.columns is None):
        raise BadValue("either `take`, or `value` and `columns`, must be given")
    value = None if body.take else decode_row(body.value or {})
    if value is not None and body.columns:
        value |= await mesh.conflicts.read_columns(conflict_id, body.columns)
    done = await mesh.conflicts.resolve(
        conflict_id, take=body.take, value=value, reason=body.reason, onto=body.onto
    )
    return ResolutionView.from_record(done)
