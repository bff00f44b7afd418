"""Views of the rhythm: beats, stamps, status claims, addresses, tempo policies and budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.locks.records import iso_of
from vox_mesh.model.rhythm.claims import StatusClaim
from vox_mesh.model.rhythm.plan import BeatFrame, PlanEntry
from vox_mesh.model.rhythm.tempo import BeatStamp, window_id
from vox_mesh.model.rhythm.ucxl import Address, resolve
from vox_mesh.rhythm.budgets import SetBudget, Spending
from vox_mesh.rhythm.task_status import MAX_LIMIT, Position, TaskStatus
from vox_mesh.rhythm.tempo.incidents import Incident
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.record_view import RecordView
from vox_mesh.views.tokens import LimitView, TokensView

# --- beats ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BeatView(BeatFrame):
    """A beat, with its bar and its leader. `deadline_at` is its end, `source` the origin of its tempo."""

    window: str = field(kw_only=True)
    next_downbeat_at: str = field(kw_only=True)
    leader: str | None = field(kw_only=True)

    @classmethod
    def of_frame(cls, frame: BeatFrame, leader: str | None) -> BeatView:
        """Return the view of a frame."""
        window_ms = frame.epoch_ms - (frame.beat_index - 1) * frame.beat_ms
        return cls(
            **frame.document(),
            window=window_id(frame.cluster_id, window_ms),
            next_downbeat_at=iso_of(window_ms + frame.bar_len_beats * frame.beat_ms),
            leader=leader,
        )


async def beat_of(mesh: MeshServices) -> BeatView:
    """Return the current beat."""
    await mesh.rhythm.refresh()
    leader = await mesh.rhythm.leader()
    return BeatView.of_frame(mesh.rhythm.frame(), None if leader is None else leader.node_id)


@dataclass(frozen=True)
class AgreementView:
    """Whether live nodes follow the announced policy; `differing` lists the nodes that do not."""

    tempo_bpm: float
    leader: str | None
    differing: list[str]
    incident: IncidentView | None


async def agreement_of(mesh: MeshServices) -> AgreementView:
    """Return the agreement of live nodes."""
    rhythm = mesh.rhythm
    entry = (await rhythm.policies.refresh(fresh=True)).at(rhythm.times.now_ms)
    leader = await rhythm.leader()
    live = {node.node_id for node in await mesh.nodes.live_nodes_from_db()}
    return AgreementView(
        tempo_bpm=entry.tempo.bpm,
        leader=None if leader is None else leader.node_id,
        differing=await rhythm.policies.differing_nodes(live),
        incident=await incident_of(mesh),
    )


# --- stamps --------------------------------------------------------------------------------------


class Stamped(NamedTuple):
    """The bar and beat of an event; empty if its time is unknown."""

    window: str | None
    beat_index: int | None


def stamp_of(mesh: MeshServices, hlc: Any) -> Stamped:
    """Return the bar and beat of a hybrid timestamp; empty if it is malformed."""
    try:
        stamp = mesh.rhythm.stamp(hlc)
    except (BadValue, TypeError, AttributeError):
        return Stamped(None, None)
    return Stamped(stamp.window, stamp.beat_index)


async def announced_stamp(mesh: MeshServices) -> BeatStamp | None:
    """Return the bar and beat of now, or `None` if no tempo was announced."""
    now_ms = await mesh.nodes.now_ms()
    await mesh.rhythm.refresh()
    return mesh.rhythm.context.plan.announced_stamp_at(now_ms)


# --- status claims -------------------------------------------------------------------------------


@dataclass(frozen=True)
class StatusView(RecordView, record=StatusClaim):
    """What an agent said of a task, and the bar that it counts for."""

    state: str
    wait_for: list[str]
    hlc: str
    window: str

    @classmethod
    def of(cls, mesh: MeshServices, claim: StatusClaim) -> StatusView:
        """Return the view of a claim, in the beat of its timestamp."""
        stamp = mesh.rhythm.stamp(claim.hlc)
        return cls.from_record(
            claim, wait_for=list(claim.wait_for), beat_index=stamp.beat_index, window=stamp.window
        )


@dataclass(frozen=True)
class TaskStatusView(RecordView, record=TaskStatus):
    """The current status of a task: its last claim, since when that holds, and the bar of the claim."""

    state: str
    since: str
    since_ms: int
    wait_for: list[str]
    waits_on: list[str]
    window: str

    @classmethod
    def of(cls, mesh: MeshServices, status: TaskStatus) -> TaskStatusView:
        """Return the view of a status."""
        return cls.from_record(
            status,
            state=status.state.value,
            since=iso_of(status.since_ms),
            wait_for=list(status.wait_for),
            waits_on=list(status.waits_on),
            window=mesh.rhythm.stamp(status.hlc).window,
        )


class StatusFilter(NamedTuple):
    """Which tasks to show: all of a scope by default."""

    agent: str | None = None
    state: str | None = None
    score: str | None = None


class StatusViews(NamedTuple):
    """Some statuses, where to continue if there may be more, and how many were left out as forged."""

    items: list[TaskStatusView]
    next: Position | None
    forged: int


async def statuses_of(
    mesh: MeshServices,
    wanted: StatusFilter = StatusFilter(),  # noqa: B008 - it is immutable
    *,
    after: Position | None = None,
    limit: int = MAX_LIMIT,
) -> StatusViews:
    """Return the status of tasks by agent and task, after a position."""
    await mesh.rhythm.refresh()
    page = await mesh.rhythm.status_queries.page(**wanted._asdict(), after=after, limit=limit)
    return StatusViews([TaskStatusView.of(mesh, each) for each in page.items], page.next, page.forged)


# --- addresses -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class MomentView:
    """When an address means, by the tempo of the mesh."""

    address: str
    at: str
    at_ms: int
    delta_beats: int
    beat_index: int
    beat_epoch: str
    phase: str
    window: str
    window_ms: int


async def moment_of(mesh: MeshServices, address: Address) -> MomentView:
    """Return the time an address refers to, relative to now."""
    rhythm = mesh.rhythm
    await rhythm.refresh()
    now_ms, plan = rhythm.times.now_ms, rhythm.context.plan
    resolved = resolve(address, plan, now_ms)
    return MomentView(
        address=str(address),
        at=iso_of(resolved.at_ms),
        at_ms=resolved.at_ms,
        delta_beats=plan.timeline.delta_beats(now_ms, resolved.at_ms),
        beat_index=resolved.beat.index,
        beat_epoch=iso_of(resolved.beat.epoch_ms),
        phase=resolved.phase,
        window=window_id(plan.at(resolved.at_ms).policy.cluster_id, resolved.beat.window_ms),
        window_ms=resolved.beat.window_ms,
    )


# --- tempo policies ------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyView:
    """A policy, and the tempo that it has come to. One that is built in holds from the anchor 0."""

    policy_hash: str
    tempo_bpm: float
    beat_ms: int
    bar_len_beats: int
    phases: dict[str, int]
    policy: dict[str, Any]
    anchor_ms: int
    announced_ms: int | None
    reason: str
    op_id: str | None

    @classmethod
    def of(cls, entry: PlanEntry) -> PolicyView:
        """Return the view of a plan entry."""
        return cls(
            policy_hash=entry.policy_hash,
            tempo_bpm=entry.tempo.bpm,
            beat_ms=entry.tempo.beat_ms,
            bar_len_beats=entry.tempo.bar_len,
            phases=entry.policy.phase_beats,
            policy=entry.policy.model_dump(mode="json"),
            anchor_ms=entry.anchor_ms,
            announced_ms=entry.announced_ms if entry.op_id else None,
            reason=entry.reason if entry.op_id else "built in",
            op_id=entry.op_id or None,
        )


@dataclass(frozen=True)
class PoliciesView:
    """What is in force, and what was announced to follow it."""

    in_force: PolicyView
    announced: Sequence[PolicyView]
    now_ms: int
    incident: IncidentView | None


async def policies_of(mesh: MeshServices) -> PoliciesView:
    """Return the policies of a mesh, read from the primary."""
    plan, now_ms = await mesh.rhythm.policies.refresh(fresh=True), mesh.rhythm.times.now_ms
    coming = [PolicyView.of(entry) for entry in plan.entries if entry.anchor_ms > now_ms]
    return PoliciesView(PolicyView.of(plan.at(now_ms)), coming, now_ms, await incident_of(mesh))


# --- incidents -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class IncidentView(RecordView, record=Incident):
    """A declared incident: the tempo does not adapt until it is cleared."""

    declared_at: str

    @classmethod
    def of(cls, incident: Incident) -> IncidentView:
        """Return the view of an incident."""
        return cls.from_record(incident, declared_at=iso_of(incident.declared_ms))


@dataclass(frozen=True)
class DeclaredView:
    """The declared incident, if any."""

    incident: IncidentView | None


async def incident_of(mesh: MeshServices) -> IncidentView | None:
    """Return the declared incident, read from the primary."""
    incident = await mesh.rhythm.incidents.current()
    return None if incident is None else IncidentView.of(incident)


# --- budgets -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BudgetView:
    """A budget that is set. `budget` is as it was written."""

    subject: str
    since_ms: int
    budget: dict[str, Any]

    @classmethod
    def of(cls, found: SetBudget) -> BudgetView:
        """Return the view of a budget."""
        return cls(found.subject, found.since_ms, found.budget.document())


@dataclass(frozen=True)
class SpendingView:
    """The spending of an agent or account. Resources that were not measured are absent."""

    subject: str
    phrases: int
    bu: float
    cost: float
    resources: dict[str, Any]
    max_bu: float | None
    since_ms: int | None
    verdict: str
    ecu: float | None
    tokens: list[TokensView]
    limits: list[LimitView]

    @classmethod
    def of(cls, found: Spending) -> SpendingView:
        """Return the view of a subject's spending."""
        return cls(
            found.subject,
            found.phrases,
            found.bu,
            found.cost,
            found.resources.as_json(),
            None if found.budget is None else found.budget.max_bu,
            found.since_ms,
            found.verdict.value,
            found.ecu,
            [TokensView.of(*each) for each in found.tokens.items()],
            [LimitView.of(each) for each in found.limits],
        )
