"""The rhythm: the current beat, policies, bar reports, promises and status claims."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from vox_mesh.http.api.operations import Asked, Operations, Text
from vox_mesh.http.api.pages import Page, PageAsked
from vox_mesh.model.documents.documents import MAX_BYTES
from vox_mesh.model.rhythm.claims import MAX_NOTES, MAX_TASK, MAX_WAITS, StatusClaim
from vox_mesh.model.rhythm.policy import TempoPolicy, parse_policy
from vox_mesh.model.rhythm.promises import HelpState, HelpThread
from vox_mesh.model.rhythm.reports import BarReport
from vox_mesh.model.rhythm.tempo import LONGEST_BAR
from vox_mesh.model.rhythm.ucxl import parse
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.rhythm import (
    BeatView,
    MomentView,
    PoliciesView,
    PolicyView,
    StatusView,
    beat_of,
    moment_of,
    policies_of,
)

RHYTHM: Final = Operations("rhythm")

_Address = Annotated[str, Field(min_length=1, max_length=MAX_TASK)]
_Beat = Annotated[int, Field(ge=1, le=LONGEST_BAR)]


@RHYTHM.get("/v1/rhythm/beat")
async def show_beat(mesh: MeshServices) -> BeatView:
    """Show the beat of now: its place in the bar, its phase, the tempo, and who leads."""
    return await beat_of(mesh)


# --- the policy ----------------------------------------------------------------------------------


class ToSet(Asked):
    """A tempo policy: as an object, or as the text of a file of YAML, whose faults are told by line."""

    policy: dict[str, Any] | Annotated[str, Field(max_length=MAX_BYTES)]


@RHYTHM.get("/v1/rhythm/policy")
async def show_policy(mesh: MeshServices) -> PoliciesView:
    """Show the policy in force, and what was announced to follow it."""
    return await policies_of(mesh)


@RHYTHM.put("/v1/rhythm/policy")
async def set_policy(mesh: MeshServices, body: ToSet) -> PolicyView:
    """Have a policy in force from a downbeat two or more bars ahead, on every node at the same one."""
    said = body.policy
    wanted = parse_policy(said) if isinstance(said, str) else TempoPolicy.of_document(said)
    return PolicyView.of(await mesh.rhythm.policies.set(wanted))


# --- what became of bars and promises ------------------------------------------------------------


class PromisesAsked(PageAsked):
    """The filter of a list of promises, newest first."""

    state: HelpState | None = None


@RHYTHM.get("/v1/rhythm/reports")
async def list_reports(mesh: MeshServices, query: PageAsked) -> Page[BarReport]:
    """List what became of bars, each in its last revision, the newest first; missing ones are there too."""
    found = await mesh.rhythm.reverb.reports(query.limit, before_ms=query.number)
    return query.page(found, lambda report: report.start_ms)


@RHYTHM.get("/v1/rhythm/promises")
async def list_promises(mesh: MeshServices, query: PromisesAsked) -> Page[HelpThread]:
    """List who asked for help, what was promised, and what came of it; the newest first."""
    found = await mesh.rhythm.help.listed(state=query.state, before=query.text, limit=query.limit)
    return query.page(found, lambda view: view.thread_id)


# --- status --------------------------------------------------------------------------------------


class StatusSaid(Asked):
    """What an agent says of a task. Without `hlc` it is said now; `bar` and `beat` are of old."""

    agent_id: Text
    task_id: _Address
    state: Literal["planning", "executing", "waiting", "review", "done", "failed"]
    wait_for: Annotated[list[_Address], Field(max_length=MAX_WAITS, default_factory=list)]
    beats_left: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    progress: Annotated[float, Field(ge=0, le=1)] | None = None
    notes: Annotated[str, Field(max_length=MAX_NOTES)] = ""
    beat_index: _Beat | None = None
    hlc: Text | None = None
    bar: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    beat: _Beat | None = None


@RHYTHM.post("/v1/rhythm/status", status=HTTPStatus.ACCEPTED)
async def claim_status(mesh: MeshServices, body: StatusSaid) -> StatusView:
    """Say how a task stands. It counts for the beat of its time, and is written at the end of this one."""
    said = body.model_dump(mode="json", exclude_none=True)
    now: dict[str, Any] = {"hlc": str(mesh.clock.tick())}
    if not {"beat_index", "beat"} & said.keys():
        now["beat_index"] = mesh.rhythm.frame().beat_index
    claim = StatusClaim.of_document({**now, **said})
    mesh.rhythm.status.accept(claim)
    return StatusView.of(mesh, claim)


# --- addresses -----------------------------------------------------------------------------------


class AddressAsked(Asked):
    """An address with a time in beats."""

    address: Annotated[str, Field(min_length=1, max_length=2_048)]


@RHYTHM.get("/v1/ucxl")
async def resolve_address(mesh: MeshServices, query: AddressAsked) -> MomentView:
    """When an address means, by the tempo of the mesh: `;beats=^^N`, `;beats=~~N`, `;phase=NAME`."""
    return await moment_of(mesh, parse(query.address))
