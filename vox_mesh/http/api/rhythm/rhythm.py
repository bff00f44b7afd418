"""The rhythm: the current beat, policies, bar reports, promises, status claims and budgets."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from vox_mesh.errors import BadValue
from vox_mesh.http.api.operations import Operations, RequestModel, Seconds, Text
from vox_mesh.http.api.pages import Page, PageQuery, bad_cursor
from vox_mesh.http.principals.needs import NOTHING, writes
from vox_mesh.http.principals.own_names import OwnAgent
from vox_mesh.model.documents.documents import MAX_BYTES
from vox_mesh.model.oplog import op_names
from vox_mesh.model.rhythm.budgets import Budget
from vox_mesh.model.rhythm.claims import MAX_NOTES, MAX_SCORE, MAX_TASK, MAX_WAITS, ClaimState, StatusClaim
from vox_mesh.model.rhythm.policy import TempoPolicy, parse_policy
from vox_mesh.model.rhythm.promises import HelpState, HelpThread
from vox_mesh.model.rhythm.reports import BarReport
from vox_mesh.model.rhythm.tempo import LONGEST_BAR
from vox_mesh.model.rhythm.ucxl import parse
from vox_mesh.rhythm.tempo.incidents import MAX_REASON
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.rhythm import (
    BeatView,
    BudgetView,
    DeclaredView,
    IncidentView,
    MomentView,
    PoliciesView,
    PolicyView,
    SpendingView,
    StatusFilter,
    StatusView,
    TaskStatusView,
    beat_of,
    incident_of,
    moment_of,
    policies_of,
    statuses_of,
)
from vox_mesh.views.tokens import SpendRowView

RHYTHM: Final = Operations("rhythm")

_Address = Annotated[str, Field(min_length=1, max_length=MAX_TASK)]
_Beat = Annotated[int, Field(ge=1, le=LONGEST_BAR)]


@RHYTHM.get("/v1/rhythm/beat", needs=NOTHING)
async def show_beat(mesh: MeshServices) -> BeatView:
    """Show the current beat, its phase, the tempo and the leader."""
    return await beat_of(mesh)


# --- the policy ----------------------------------------------------------------------------------


class PolicyRequest(RequestModel):
    """A tempo policy: an object, or YAML text, whose faults are reported by line."""

    policy: dict[str, Any] | Annotated[str, Field(max_length=MAX_BYTES)]


@RHYTHM.get("/v1/rhythm/policy")
async def show_policy(mesh: MeshServices) -> PoliciesView:
    """Show the tempo policy in force and announced changes."""
    return await policies_of(mesh)


@RHYTHM.put("/v1/rhythm/policy", needs=writes(op_names.SET_TEMPO))
async def set_policy(mesh: MeshServices, body: PolicyRequest) -> PolicyView:
    """Set the policy from the same downbeat on every node, at least two bars ahead."""
    given = body.policy
    wanted = parse_policy(given) if isinstance(given, str) else TempoPolicy.of_document(given)
    return PolicyView.of(await mesh.rhythm.policies.set(wanted))


# --- incidents -----------------------------------------------------------------------------------


class IncidentRequest(RequestModel):
    """Why the tempo is to be frozen."""

    reason: Annotated[str, Field(max_length=MAX_REASON)] = ""


@RHYTHM.get("/v1/rhythm/incident")
async def show_incident(mesh: MeshServices) -> DeclaredView:
    """Show the incident that freezes the tempo, or null."""
    return DeclaredView(await incident_of(mesh))


@RHYTHM.put("/v1/rhythm/incident", needs=writes(op_names.DECLARE_INCIDENT))
async def declare_incident(mesh: MeshServices, body: IncidentRequest) -> IncidentView:
    """Declare an incident: the tempo does not adapt until it is cleared."""
    return IncidentView.of(await mesh.rhythm.incidents.declare(body.reason))


@RHYTHM.delete("/v1/rhythm/incident", needs=writes(op_names.CLEAR_INCIDENT))
async def clear_incident(mesh: MeshServices) -> IncidentView:
    """Clear the incident: the tempo may adapt again."""
    return IncidentView.of(await mesh.rhythm.incidents.clear())


# --- reports and promises ------------------------------------------------------------------------


class PromisesQuery(PageQuery):
    """The filter of a list of promises, newest first."""

    state: HelpState | None = None


@RHYTHM.get("/v1/rhythm/reports")
async def list_reports(mesh: MeshServices, query: PageQuery) -> Page[BarReport]:
    """List the last revisions of bar reports, newest first, with missing bars."""
    found = await mesh.rhythm.bar_reporter.reports(query.limit, before_ms=query.number)
    return query.page(found, lambda report: report.start_ms)


@RHYTHM.get("/v1/rhythm/promises")
async def list_promises(mesh: MeshServices, query: PromisesQuery) -> Page[HelpThread]:
    """List requests for help, their promises and outcomes, newest first."""
    found = await mesh.rhythm.help.listed(state=query.state, before=query.text, limit=query.limit)
    return query.page(found, lambda view: view.thread_id)


# --- status --------------------------------------------------------------------------------------


class StatusQuery(PageQuery):
    """The filter of the status of tasks. `scope` must be the scope of the node."""

    scope: Annotated[str, Field(max_length=1_024)] | None = None
    score: Annotated[str, Field(min_length=1, max_length=MAX_SCORE)] | None = None
    agent: Text | None = None
    state: ClaimState | None = None


@RHYTHM.get("/v1/rhythm/status")
async def list_statuses(mesh: MeshServices, query: StatusQuery) -> Page[TaskStatusView]:
    """List the status of tasks: who is in which phase and state, and who waits for whom."""
    scope, _ = mesh.store.mesh_id
    if query.scope not in (None, scope):
        raise BadValue(
            f"scope must be {scope!r}, that of this node, got {query.scope!r}",
            hint="ask a node of the other scope",
        )
    wanted = StatusFilter(query.agent, query.state, query.score)
    found = await statuses_of(mesh, wanted, after=_position(query.position), limit=query.limit)
    return query.page(found.items, lambda view: (view.agent_id, view.task_id), scanned_to=found.next)


def _position(position: Any) -> tuple[str, str] | None:
    match position:
        case None:
            return None
        case [str(agent), str(task)]:
            return agent, task
    raise bad_cursor()


class StatusRequest(RequestModel):
    """A status claim on a task. `hlc` is now by default; `bar` and `beat` are deprecated.

    `score` names the score of the task.
    """

    agent_id: OwnAgent
    task_id: _Address
    state: Literal["planning", "executing", "waiting", "review", "done", "failed"]
    wait_for: Annotated[list[_Address], Field(max_length=MAX_WAITS, default_factory=list)]
    beats_left: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    progress: Annotated[float, Field(ge=0, le=1)] | None = None
    notes: Annotated[str, Field(max_length=MAX_NOTES)] = ""
    beat_index: _Beat | None = None
    hlc: Text | None = None
    score: Annotated[str, Field(min_length=1, max_length=MAX_SCORE)] | None = None
    bar: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    beat: _Beat | None = None


@RHYTHM.post("/v1/rhythm/status", needs=NOTHING, status=HTTPStatus.ACCEPTED)
async def claim_status(mesh: MeshServices, body: StatusRequest) -> StatusView:
    """Claim the status of a task. It counts for the beat of its `hlc`, and is written when this beat ends."""
    claimed = body.model_dump(mode="json", exclude_none=True, exclude={"score"})
    now: dict[str, Any] = {"hlc": str(mesh.clock.tick())}
    if not {"beat_index", "beat"} & claimed.keys():
        now["beat_index"] = mesh.rhythm.frame().beat_index
    claim = StatusClaim.of_document({**now, **claimed})
    mesh.rhythm.status.accept(claim, score=body.score)
    return StatusView.of(mesh, claim)


# --- addresses -----------------------------------------------------------------------------------


class AddressQuery(RequestModel):
    """An address with a time in beats."""

    address: Annotated[str, Field(min_length=1, max_length=2_048)]


@RHYTHM.get("/v1/ucxl")
async def resolve_address(mesh: MeshServices, query: AddressQuery) -> MomentView:
    """Resolve the time of an address by the mesh's tempo: `;beats=^^N`, `;beats=~~N`, `;phase=NAME`."""
    return await moment_of(mesh, parse(query.address))


# --- budgets -------------------------------------------------------------------------------------

BUDGETS: Final = Operations("budgets")

Subject = Annotated[str, Field(pattern=r"^(agent|account):\S{1,200}$", examples=["account:research"])]


class BudgetsQuery(PageQuery):
    """The subject, by default all."""

    subject: Subject | None = None


class SpendingQuery(BudgetsQuery):
    """The start of the period; by default, since the budgets count."""

    since: Seconds | None = None


class BudgetRequest(RequestModel):
    """A budget and its subject; null removes it. `anew` starts counting from now."""

    subject: Subject
    budget: dict[str, Any] | None
    anew: bool = False


@BUDGETS.get("/v1/budgets")
async def list_budgets(mesh: MeshServices, query: BudgetsQuery) -> Page[BudgetView]:
    """List the budgets."""
    found = await mesh.rhythm.budgets.show(query.subject)
    return query.page_of([BudgetView.of(each) for each in found], lambda view: view.subject)


@BUDGETS.put("/v1/budgets", needs=writes(op_names.SET_BUDGET))
async def set_budget(mesh: MeshServices, body: BudgetRequest) -> BudgetView:
    """Set or remove the budget of an agent or account."""
    budgets = mesh.rhythm.budgets
    if body.budget is None:
        (before,) = await budgets.show(body.subject)
        await budgets.remove(body.subject)
        return BudgetView.of(before)
    return BudgetView.of(await budgets.set(body.subject, Budget.of_document(body.budget), anew=body.anew))


@BUDGETS.get("/v1/budgets/report")
async def report_spending(mesh: MeshServices, query: SpendingQuery) -> Page[SpendingView]:
    """List the spending of agents and accounts: beats, cost, resources, tokens and money."""
    await mesh.rhythm.refresh()
    since_ms = None if query.since is None else mesh.clock.now_ms - round(query.since * 1_000)
    found = await mesh.rhythm.budgets.report(query.subject, since_ms=since_ms)
    return query.page_of([SpendingView.of(each) for each in found], lambda view: view.subject)


class TokensQuery(RequestModel):
    """The agent and the account, by default all, and the start of the period, by default 30 days ago."""

    agent: Text | None = None
    account: Text | None = None
    since: Seconds = 30 * 86_400.0


@BUDGETS.get("/v1/budgets/tokens")
async def report_tokens(mesh: MeshServices, query: TokensQuery) -> list[SpendRowView]:
    """List used tokens and their price by agent, account, kind, model and day; at most 1,000 rows."""
    since_ms = mesh.clock.now_ms - round(query.since * 1_000)
    found = await mesh.rhythm.tokens.totals(since_ms=since_ms, agent=query.agent, account=query.account)
    return [SpendRowView.of(each) for each in found]
