"""Views of the rhythm: the current beat, stamps, reports, promises and status claims."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import orjson

from vox_mesh.errors import BadValue
from vox_mesh.model.locks.records import iso_of
from vox_mesh.model.rhythm.claims import StatusClaim
from vox_mesh.model.rhythm.plan import LEAD_BARS, BeatFrame
from vox_mesh.model.rhythm.promises import HelpThread
from vox_mesh.model.rhythm.reports import BarReport
from vox_mesh.model.rhythm.tempo import window_id
from vox_mesh.model.rhythm.ucxl import Address, resolve
from vox_mesh.runtime.services import MeshServices

# --- beats ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BeatView:
    """A beat, with its bar and who leads. `deadline_at` is its end, `source` where its tempo is from."""

    cluster_id: str
    tempo_bpm: float
    beat_ms: int
    bar_len_beats: int
    beat_index: int
    beat_epoch: str
    downbeat: bool
    phase: str
    hlc: str
    policy_hash: str
    deadline_at: str
    source: str
    window: str
    next_downbeat_at: str
    leader: str | None

    @classmethod
    def of(cls, frame: BeatFrame, leader: str | None) -> BeatView:
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
    await mesh.rhythm.look()
    leader = await mesh.rhythm.leader()
    return BeatView.of(mesh.rhythm.frame(), None if leader is None else leader.node_id)


@dataclass(frozen=True)
class AgreementView:
    """Whether live nodes follow the announced policy; `differing` lists the nodes that do not."""

    tempo_bpm: float
    leader: str | None
    differing: list[str]


async def agreement_of(mesh: MeshServices) -> AgreementView:
    """Return the agreement of live nodes. A node may follow an older policy for two bars."""
    rhythm, now_ms = mesh.rhythm, mesh.rhythm.times.now_ms
    entry, leader = (await rhythm.policies.look(fresh=True)).at(now_ms), await rhythm.leader()
    differing: list[str] = []
    if now_ms - entry.anchor_ms >= LEAD_BARS * entry.tempo.bar_ms:
        live = {node.node_id for node in await mesh.nodes.live_nodes_from_db()}
        policies = await rhythm.policies.read_pulses()
        differing = sorted(
            node_id
            for node_id in live & policies.keys()
            if policies[node_id].policy_hash != entry.policy_hash
        )
    return AgreementView(entry.tempo.bpm, None if leader is None else leader.node_id, differing)


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


# --- bars ----------------------------------------------------------------------------------------


def report_of(document: str | None) -> BarReport | None:
    """Return a stored report; `None` if there is none, or a newer version wrote it."""
    if document is None:
        return None
    try:
        return BarReport.of_document(orjson.loads(document))
    except (KeyError, TypeError, ValueError):
        return None


# --- promises and claims -------------------------------------------------------------------------


@dataclass(frozen=True)
class PromiseView:
    """A request for help, what was promised to it, and what came of that."""

    thread_id: str
    asker: str
    task_id: str
    asked_ms: int
    closes_ms: int
    state: str
    helper: str | None
    promise_beats: int | None
    confidence: float | None
    fail_after_beats: int | None
    on_fail: str
    promised_ms: int | None
    due_ms: int | None
    ended_ms: int | None
    answer_id: str | None

    @classmethod
    def of(cls, thread: HelpThread) -> PromiseView:
        """Return the view of a help thread."""
        return cls(*thread)


@dataclass(frozen=True)
class StatusView:
    """What an agent said of a task, and the bar that it counts for."""

    agent_id: str
    task_id: str
    beat_index: int
    state: str
    wait_for: list[str]
    beats_left: int | None
    progress: float | None
    notes: str
    hlc: str
    window: str

    @classmethod
    def of(cls, mesh: MeshServices, claim: StatusClaim) -> StatusView:
        """Return the view of a claim, in the beat of its timestamp."""
        stamp = mesh.rhythm.stamp(claim.hlc)
        columns = {**asdict(claim), "wait_for": list(claim.wait_for), "beat_index": stamp.beat_index}
        return cls(**columns, window=stamp.window)


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
    await rhythm.look()
    now_ms, plan = rhythm.times.now_ms, rhythm.ground.plan
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
