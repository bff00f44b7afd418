"""The durable steps of a job, as commands and HTTP show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vox_mesh.model.jobs.steps.step_row import StepRow, StepState, by_place, occurrence_names
from vox_mesh.runtime.services import MeshServices


@dataclass(frozen=True)
class StepView:
    """A step: its place in the handler, how far it is, and what is stored of it.

    `is_signed`: whether a worker that started the job has signed it; what is not signed is run again.
    `attempt` is the claim token of the attempt that stored it.
    """

    place: int
    name: str
    kind: str
    state: str
    failures: int
    attempt: int
    began_ms: int
    ended_ms: int
    value: Any
    digest: str
    is_signed: bool


async def steps_of(mesh: MeshServices, job_id: str) -> list[StepView]:
    """Return the steps of a job, in the order of the handler."""
    stored = [row for row in await mesh.jobs.steps.stored(job_id) if row.is_sound()]
    signed = await mesh.jobs.steps.verified(job_id)
    names, last_signed = occurrence_names(stored), by_place(signed)
    return [
        _view(row, names[place], _failures(stored, place), is_signed=last_signed.get(place) == row)
        for place, row in sorted(by_place(stored).items())
    ]


def _failures(rows: Sequence[StepRow], place: int) -> int:
    return sum(row.place == place and row.state == StepState.FAILED for row in rows)


def _view(row: StepRow, name: str, failures: int, *, is_signed: bool) -> StepView:
    return StepView(
        place=row.place,
        name=name,
        kind=row.kind,
        state=row.state,
        failures=failures,
        attempt=row.claim_token,
        began_ms=row.began_ms,
        ended_ms=row.ended_ms,
        value=row.document if is_signed else None,
        digest=row.digest,
        is_signed=is_signed,
    )
