"""The op log: reading, exporting and verifying it."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final, Literal

from pydantic import Field

from vox_mesh.errors import NotKnown
from vox_mesh.http.access import Scope
from vox_mesh.http.admission import Load
from vox_mesh.http.api.operations import JsonLines, Operations, RequestModel, Text
from vox_mesh.http.api.pages import MAX_SCANNED, Page, PageQuery, read_page
from vox_mesh.http.principals.needs import OWNER
from vox_mesh.oplog.export import Export
from vox_mesh.oplog.pages import MAX_POSITION, EntryFilter
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.slices import in_slices
from vox_mesh.views.op_causes import AuthenticityView, CausesView, check_authenticity, find_causes
from vox_mesh.views.oplog import ChainView, EntryView, OpStateView, find_op_state
from vox_mesh.views.rhythm import announced_stamp

OPLOG: Final = Operations("oplog")

_VERIFY_TIMEOUT_S: Final = 600.0


class EntriesQuery(PageQuery):
    """The filter of a list of entries: of a chain, a kind, an agent, a job; in commit order, or reversed."""

    order: Literal["oldest", "newest"] = "oldest"
    after: Annotated[int, Field(ge=0, lt=2**63)] = 0
    node: Text | None = None
    kind: Text | None = None
    agent: Text | None = None
    job: Text | None = None


class ChainQuery(RequestModel):
    """The chain, by default all."""

    node: Text | None = None


@OPLOG.get("/v1/oplog")
async def list_entries(mesh: MeshServices, query: EntriesQuery) -> Page[EntryView]:
    """List entries in commit order, or with `order=newest` from the last one back to `after`."""
    if query.order == "newest":
        return await _newest_entries(mesh, query)
    after = (query.number if query.cursor is not None else query.after) or 0
    up_to = min(after + MAX_SCANNED, MAX_POSITION)
    is_last = await mesh.oplog.last_id() <= up_to
    job_id = None if query.job is None else (await mesh.jobs.find(query.job)).job_id
    entries = partial(
        mesh.oplog.after,
        node_id=query.node,
        kind=query.kind,
        agent=query.agent,
        job_id=job_id,
        up_to=up_to,
    )
    found, goes_on = await read_page(
        entries,
        after,
        query.limit,
        lambda entry: entry.id,
        lambda entry: len(entry.payload),
    )
    views = await in_slices(EntryView.of(mesh, entry) for entry in found)
    return query.page(views, lambda view: view.id, goes_on=goes_on, scanned_to=None if is_last else up_to)


async def _newest_entries(mesh: MeshServices, query: EntriesQuery) -> Page[EntryView]:
    start = query.number if query.cursor is not None else await mesh.oplog.last_id() + 1
    first = query.after + 1
    down_to = max(first, (start or 0) - MAX_SCANNED)
    job_id = None if query.job is None else (await mesh.jobs.find(query.job)).job_id
    wanted = EntryFilter(query.node, query.kind, query.agent, job_id)
    found, goes_on = await read_page(
        lambda before, limit: mesh.oplog.before(before, limit, wanted, down_to=down_to),
        start,
        query.limit,
        lambda entry: entry.id,
        lambda entry: len(entry.payload),
    )
    if not goes_on and found:  # the answer may have fewer than there are
        goes_on = bool(await mesh.oplog.before(found[-1].id, 1, wanted, down_to=down_to))
    views = await in_slices(EntryView.of(mesh, entry) for entry in found)
    scanned_to = None if down_to == first else down_to
    return query.page(views, lambda view: view.id, goes_on=goes_on, scanned_to=scanned_to)


@OPLOG.get("/v1/oplog/waiting")
async def list_waiting(mesh: MeshServices, query: PageQuery) -> Page[OpStateView]:
    """List ops that wait for other ops to be applied."""
    views = [OpStateView.of(each) for each in await mesh.pending_ops.waiting()]
    return query.page_of(views, lambda view: view.op_id)


@OPLOG.get("/v1/oplog/verify", takes_s=_VERIFY_TIMEOUT_S, load=Load.SCAN)
async def verify_chains(mesh: MeshServices, query: ChainQuery) -> list[ChainView]:
    """Verify every hash, number, link and signature; name the first broken entry of each chain."""
    reports = await mesh.oplog.verify(query.node)
    if query.node is not None and not reports:
        raise NotKnown(f"chain {query.node!r} not found")
    return [ChainView.from_record(report) for report in reports]


@OPLOG.get("/v1/oplog/export", needs=OWNER, scope=Scope.WRITE, load=Load.STREAM)
async def export_log(mesh: MeshServices) -> JsonLines:
    """Export the whole log with its keys; without its last line it is incomplete."""
    export = await Export.begin(mesh.oplog, *mesh.store.mesh_id, await announced_stamp(mesh))
    return JsonLines(export.parts())


@OPLOG.get("/v1/oplog/{op_id}")
async def show_entry(mesh: MeshServices, op_id: Text) -> EntryView:
    """Show the entry of an op."""
    return EntryView.of(mesh, await mesh.oplog.find(op_id))


@OPLOG.get("/v1/oplog/{op_id}/standing")
async def show_standing(mesh: MeshServices, op_id: Text) -> OpStateView:
    """Show the state of an op: applied, refused, waiting or dropped."""
    return await find_op_state(mesh, op_id)


@OPLOG.get("/v1/oplog/{op_id}/causes")
async def show_causes(mesh: MeshServices, op_id: Text) -> CausesView:
    """Show an op and the ops that it names as causes, with theirs; newest first and without payloads."""
    return await find_causes(mesh, op_id)


@OPLOG.get("/v1/oplog/{op_id}/authenticity")
async def show_authenticity(mesh: MeshServices, op_id: Text) -> AuthenticityView:
    """Show whether its author has signed an entry, and whether its verdict was changed afterwards."""
    return await check_authenticity(mesh, op_id)


@OPLOG.post("/v1/oplog/anchor", needs=OWNER)
async def anchor_chains(mesh: MeshServices) -> EntryView:
    """Record the ends of all other chains, so that a truncation is detected."""
    outcome = await mesh.oplog.anchor()
    return EntryView.of(mesh, await mesh.oplog.find(outcome.key))
