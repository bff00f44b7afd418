"""The details of the selected row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from vox_mesh.cli.support.output import fields, printable, table
from vox_mesh.errors import NotKnown
from vox_mesh.model.base.canonical import show_row
from vox_mesh.model.jobs.proof import iso_time
from vox_mesh.model.occ.merge import Columns
from vox_mesh.occ.conflicts import Conflict
from vox_mesh.occ.tables import WRITTEN_AT
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.agents.agents import AgentView
from vox_mesh.views.grants.approvals import ApprovalView
from vox_mesh.views.job_steps import step_progress
from vox_mesh.views.nodes import NodeView
from vox_mesh.views.overview import (
    ApprovalLine,
    ConflictLine,
    JobLine,
    KindLine,
    LockLine,
    MessageLine,
    WaiterLine,
)
from vox_mesh.views.rhythm import TaskStatusView

_SIDES: Final = ("base", "left", "right")
_NOT_SHOWN: Final = ("id", "seed", "manifest", "output_artifacts")
_FIRST: Final = ("job_id", "kind", "state", "reason")
_MOMENTS: Final = (
    *("_seen_ms", "consuming_ms", "progressing_ms", "left_ms", "started_ms", "created_ms", "ended_ms"),
    *("before_ms", "until_ms", "ack_by_ms", "expires_ms"),
)
_PIECES: Final = 1_000
_LOGGED: Final = 200
_PREDECESSORS: Final = 100
_SIDE: Final = 18


async def details(mesh: MeshServices, item: Any) -> list[str]:
    """Return the details of an item as printable lines."""
    match item:
        case JobLine():
            return await _job(mesh, item)
        case MessageLine():
            return await _message(mesh, item)
        case ConflictLine():
            return await _conflict(mesh, item)
        case ApprovalLine():
            view = ApprovalView.of(await mesh.approvals.find(item.approval_id))
            return [*_asked(view), "", *fields(view.texts)]
        case AgentView():
            jobs = ", ".join(f"{job.kind} {job.job_id}" for job in item.jobs)
            lists = {"locks": ", ".join(item.locks), "waits_for": ", ".join(item.waits_for), "jobs": jobs}
            return fields(_with_times(asdict(item) | lists))
        case TaskStatusView():
            waits = {"wait_for": ", ".join(item.wait_for), "waits_on": ", ".join(item.waits_on)}
            return fields(_with_times(asdict(item) | waits))
        case NodeView():
            kinds = ", ".join(item.kinds)
            return fields(_with_times(asdict(item) | {"kinds": kinds}))
        case KindLine():
            counts = {"kind": item.kind, **item.jobs, "oldest_ms": item.oldest_ms, "paused": item.is_paused}
            return fields(counts)
        case LockLine():
            waiters = [asdict(each) for each in item.waiters]
            return fields(asdict(item) | {"waiters": waiters or None})
        case WaiterLine():
            return fields(asdict(item))
    raise NotKnown("no details available")


async def _job(mesh: MeshServices, item: JobLine) -> list[str]:
    job = await mesh.jobs.find(item.job_id)
    note = await mesh.jobs.notes.of(job.job_id, fresh=True)
    row = job._asdict()
    first = {name: row.pop(name) for name in _FIRST}
    about = first | {name: value for name, value in row.items() if name not in _NOT_SHOWN}
    about |= {"progress": None if note.progress is None else f"{note.progress:.0%}", "message": note.message}
    if (steps := await step_progress(mesh, job)) is not None:
        about |= {"steps": steps.count, "last_step": steps.last}
        about["waits_for"] = [{"step": step, "what": what} for step, what in steps.waits_for]
    before = await mesh.jobs.queries.predecessors([job.job_id], _PREDECESSORS)
    about["predecessors"] = [each._asdict() for each in before]
    about["outputs"] = job.outputs
    lines = fields(_with_times({name: value for name, value in about.items() if value not in (None, [])}))
    lines += ["", "manifest", *_indented(json.dumps(job.core, ensure_ascii=False, indent=2))]
    pieces = await mesh.jobs.notes.logged(job.job_id, limit=_PIECES)
    logged = _indented("".join(piece.text for piece in pieces))[-_LOGGED:]
    return [*lines, "", "log", *logged] if logged else lines


async def _message(mesh: MeshServices, item: MessageLine) -> list[str]:
    message = await mesh.messages.queries.find(item.message_uuid)
    if message is None:
        raise NotKnown("message not found")
    about = message._asdict()
    del about["payload"], about["signature"]
    body = message.body
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, indent=2)
    return [*fields(_with_times(about)), "", "body", *_indented(text)]


async def _conflict(mesh: MeshServices, item: ConflictLine) -> list[str]:
    conflict = await mesh.conflicts.find(item.conflict_id)
    about = {name: value for name, value in asdict(conflict).items() if name not in _SIDES}
    about["row_key"] = json.dumps(show_row(conflict.row_key), ensure_ascii=False)
    known = {name: value for name, value in about.items() if value is not None}
    return [*fields(known), "", *_compared(conflict)]


async def sides(mesh: MeshServices, conflict_id: str) -> list[str]:
    """Return the differing fields of a conflict, shortened for a small terminal."""
    conflict = await mesh.conflicts.find(conflict_id)
    return _compared(conflict, most=_SIDE)


async def asked(mesh: MeshServices, approval_id: str) -> list[str]:
    """Return exactly what an approval would allow."""
    return _asked(ApprovalView.of(await mesh.approvals.find(approval_id)))


def _asked(view: ApprovalView) -> list[str]:
    return [*map(printable, view.asks_for), *view.argument_lines]


def _compared(conflict: Conflict, most: int | None = None) -> list[str]:
    """Return a table of all fields; with `most`, of differing fields with cells of at most that length."""
    rows = [getattr(conflict, side) or {} for side in _SIDES]
    names = dict.fromkeys(name for row in rows for name in row)
    rows_by_field = [{"field": name} | dict(zip(_SIDES, _cells(rows, name), strict=True)) for name in names]
    if most is None:
        return table(rows_by_field)
    different = [
        {name: cell if len(cell) <= most else f"{cell[: most - 1]}…" for name, cell in each.items()}
        for each in rows_by_field
        if each["field"] != WRITTEN_AT and len({each[side] for side in _SIDES if each[side]}) > 1
    ]
    return table(different)


def _cells(rows: Sequence[Columns], name: str) -> list[str]:
    return [json.dumps(show_row(row)[name], ensure_ascii=False) if name in row else "" for row in rows]


def _with_times(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with milliseconds as ISO times."""
    shown: dict[str, Any] = {}
    for name, value in record.items():
        is_moment = name.endswith(_MOMENTS)
        bare = name.removesuffix("_ms")
        shown_as = bare if is_moment and bare not in record else name
        shown[shown_as] = iso_time(value) if is_moment and isinstance(value, int) else value
    return shown


def _indented(text: str) -> list[str]:
    return [f"  {printable(line)}" for line in text.expandtabs().splitlines()]
