"""Conflicts: optimistic writes that wait for a resolution."""

from __future__ import annotations

from typing import Any, Final, Literal

from vox_mesh.errors import BadValue
from vox_mesh.http.api.operations import Operations, RequestModel, Text
from vox_mesh.http.api.pages import Page, PageQuery
from vox_mesh.http.principals.needs import writes
from vox_mesh.model.base.canonical import decode_row
from vox_mesh.model.oplog.op_names import RESOLVE
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.conflicts import ConflictView, ResolutionView

CONFLICTS: Final = Operations("conflicts")


class ConflictsQuery(PageQuery):
    """The filter of a list of conflicts."""

    open: bool = False
    table: Text | None = None


class ResolveRequest(RequestModel):
    """The resolution of a conflict: a side, the merge or values; and the version of the row it is for."""

    take: Literal["left", "right", "merge"] | None = None
    value: dict[str, Any] | None = None
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
    if (body.take is None) == (body.value is None):
        raise BadValue("exactly one of `take` and `value` must be given")
    value = None if body.value is None else decode_row(body.value)
    done = await mesh.conflicts.resolve(
        conflict_id, take=body.take, value=value, reason=body.reason, onto=body.onto
    )
    return ResolutionView.from_record(done)
