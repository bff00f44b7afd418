"""Views of op log entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from vox_mesh.model.base.json_text import MAX_STORED_DEPTH
from vox_mesh.model.jobs.records import JOB_OPS
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.op_names import (
    CLEAR_INCIDENT,
    DECLARE_INCIDENT,
    END_PHRASE,
    OFFER,
    RESOLVE,
    SET_TEMPO,
    TEMPO_DECISION,
)
from vox_mesh.model.oplog.verification import (
    APPROVE,
    DENY,
    DESIGNATE,
    INITIALISE,
    REKEY,
    REQUEST,
    ROUTE,
    TRANSFER,
    TRUST_SCOPE,
    ChainReport,
)
from vox_mesh.oplog.archive.entry_lines import record_of
from vox_mesh.oplog.pending_ops import PendingOp
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.record_view import RecordView
from vox_mesh.views.rhythm import stamp_of

_TOPICS: Final = {
    **dict.fromkeys(JOB_OPS, "job"),
    **dict.fromkeys((INITIALISE, OFFER, TRANSFER, DESIGNATE, ROUTE, REKEY, TRUST_SCOPE), "role"),
    RESOLVE: "conflict",
    **dict.fromkeys((REQUEST, APPROVE, DENY), "approval"),
    **dict.fromkeys((SET_TEMPO, TEMPO_DECISION, DECLARE_INCIDENT, CLEAR_INCIDENT), "tempo"),
    END_PHRASE: "phrase",
}
_OTHER: Final = "op"

ENTRY_TOPICS: Final = frozenset({*_TOPICS.values(), _OTHER})
"""The topics of entries."""


def topic_of(entry: LogEntry) -> str:
    """Return the topic of an entry."""
    return _TOPICS.get(entry.kind, _OTHER)


def stamped_record(mesh: MeshServices, entry: LogEntry) -> dict[str, Any]:
    """Return an entry for a JSON encoder, with the bar and beat of its timestamp."""
    record = record_of(entry, max_depth=MAX_STORED_DEPTH)
    acting = {"agent": entry.agent, "grant": entry.grant}
    return {**record, **acting, **stamp_of(mesh, entry.hlc)._asdict()}


@dataclass(frozen=True)
class EntryView(RecordView, record=LogEntry):
    """An entry by column, with the bar and the beat of its time.

    Payload and dependencies are the values, if they are canonical JSON.
    """

    hlc: str
    window: str | None
    beat_index: int | None
    causal_deps: Any
    payload: Any
    accepted: bool | int

    @classmethod
    def of(cls, mesh: MeshServices, entry: LogEntry) -> EntryView:
        """Return the view of an entry."""
        columns = {**entry._asdict(), **stamped_record(mesh, entry)}
        return cls(**{name: columns[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class ChainView(RecordView, record=ChainReport):
    """What was found in one chain: `problem` is the first thing wrong with it, `seq` where that is."""


@dataclass(frozen=True)
class OpStateView:
    """How an op stands: applied, refused, waiting for others, or dropped for good."""

    op_id: str
    node_id: str
    kind: str
    state: str
    reason: str | None
    waits_for: list[dict[str, Any]]

    @classmethod
    def of(cls, waits: PendingOp) -> OpStateView:
        """Return the view of an op that was not applied."""
        state = "waiting" if waits.dropped is None else "dropped"
        return cls(waits.op_id, waits.node_id, waits.kind, state, waits.dropped, waits.waits_for)


async def find_op_state(mesh: MeshServices, op_id: str) -> OpStateView:
    """Return the state of an op."""
    entry = await mesh.oplog.find(op_id)
    waits = await mesh.pending_ops.waiting_for(op_id)
    if waits is not None:
        return OpStateView.of(waits)
    state = "applied" if entry.accepted else "refused"
    return OpStateView(op_id, entry.node_id, entry.kind, state, entry.reason, [])
