"""The durable steps of a job, as commands and HTTP show them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.jobs.steps.job_steps import StepPage
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.jobs.proof import iso_time
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.model.jobs.steps.step_row import StepKind, StepRow, StepState, by_place, occurrence_names
from vox_mesh.runtime.services import MeshServices

_MAX_WAIT: Final = 200

CANCELLED: Final = "cancelled"
"""The state of a wait whose job has ended before it was over."""


@dataclass(frozen=True)
class StepView:
    """A step: its place in the handler, how far it is, and what is stored of it.

    `is_signed`: whether a worker that started the job has signed it; what is not signed is run again.
    `attempt` is the claim token of the attempt that stored it. A sleep is `done` when its time has come; any
    wait is `cancelled` if its job has ended before.
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


@dataclass(frozen=True)
class StepProgress:
    """How far a job is in its durable steps: how many it has, the last one, and what it waits for."""

    count: int
    last: str
    waits_for: tuple[tuple[str, str], ...]
    """Of each wait the step and what it waits for."""


class _Reached(NamedTuple):
    """How far a step is at a time, which its row alone does not say: the row of a wait is never changed."""

    state: str
    ended_ms: int

    @classmethod
    def by(cls, row: StepRow, job: Job, now_ms: int) -> _Reached:
        """Return how far the last row of a step and its job show it to be."""
        if row.state != StepState.WAITING:
            return cls(row.state, row.ended_ms)
        until_ms = _sleeps_until(row)
        end_ms = now_ms if job.ended_ms is None else job.ended_ms
        if until_ms is not None and until_ms <= end_ms:
            return cls(StepState.DONE, until_ms)
        return cls(row.state, row.ended_ms) if job.ended_ms is None else cls(CANCELLED, job.ended_ms)


def _sleeps_until(row: StepRow) -> int | None:
    """Return the time until which a step sleeps, or `None` if it is no sleep, or its row can't be read."""
    try:
        until_ms = row.document["until_ms"] if row.kind == StepKind.SLEEP else None
    except (KeyError, TypeError, BadValue):
        return None
    return until_ms if type(until_ms) is int else None


async def step_progress(mesh: MeshServices, job: Job) -> StepProgress | None:
    """Return how far a job is, as its workers have signed it, or `None` if it has no steps."""
    rows = await mesh.jobs.steps.verified(job.job_id)
    if not rows:
        return None
    names, last, now_ms = occurrence_names(rows), rows[-1], mesh.clock.now_ms
    is_suspended = job.state == JobState.PENDING
    waits = [
        (names[place], wait)
        for place, row in sorted(by_place(rows).items())
        if is_suspended and (wait := _wait_of(row, job, now_ms)) is not None
    ]
    state = _Reached.by(last, job, now_ms).state
    return StepProgress(len(names), f"{names[last.place]} ({last.kind}, {state})", tuple(waits))


async def steps_of(mesh: MeshServices, job: Job) -> list[StepView]:
    """Return the steps of a job, in the order of the handler."""
    steps = mesh.jobs.steps
    stored = await steps.stored(job.job_id)
    signed = await steps.signed_of(job.job_id, stored)
    return _views(mesh, job, StepPage([row for row in stored if row.is_sound()], signed, {}))


async def page_of_steps(mesh: MeshServices, job: Job, after: int, limit: int) -> list[StepView]:
    """Return the steps of a job after a place, in the order of the handler. Only their rows are read.

    A row that was changed is not signed, nor are the ones after it, but on this page only.
    """
    return _views(mesh, job, await mesh.jobs.steps.page(job.job_id, after, limit))


def _views(mesh: MeshServices, job: Job, page: StepPage) -> list[StepView]:
    names, last_signed = occurrence_names(page.rows, page.names), by_place(page.signed)
    failures = Counter(row.place for row in page.rows if row.state == StepState.FAILED)
    now_ms = mesh.clock.now_ms
    return [
        _view(
            row,
            names[place],
            _Reached.by(row, job, now_ms),
            failures[place],
            is_signed=last_signed.get(place) == row,
        )
        for place, row in sorted(by_place(page.rows).items())
    ]


def _view(row: StepRow, name: str, reached: _Reached, failures: int, *, is_signed: bool) -> StepView:
    return StepView(
        place=row.place,
        name=name,
        kind=row.kind,
        state=reached.state,
        failures=failures,
        attempt=row.claim_token,
        began_ms=row.began_ms,
        ended_ms=reached.ended_ms,
        value=row.document if is_signed else None,
        digest=row.digest,
        is_signed=is_signed,
    )


def _wait_of(row: StepRow, job: Job, now_ms: int) -> str | None:
    """Return what a suspended job waits for at a step, or `None` if the wait is over."""
    try:
        document = row.document
        if row.state == StepState.FAILED:
            return _until(document.get("retry_ms"), now_ms, "its next try")
        if _Reached.by(row, job, now_ms).state != StepState.WAITING:
            return None
        if row.kind == StepKind.SLEEP:
            return _until(document.get("until_ms"), now_ms, "a time")
        what, deadline_ms = _awaited(row.kind, document)[:_MAX_WAIT], document.get("deadline_ms")
        return what if deadline_ms is None else f"{what}, until {iso_time(deadline_ms)}"
    except (AttributeError, TypeError, BadValue):  # the workers of a mesh need not have the same version
        return "unknown"


def _until(at_ms: int | None, now_ms: int, what: str) -> str | None:
    return None if at_ms is None or at_ms <= now_ms else f"{what} at {iso_time(at_ms)}"


def _awaited(kind: str, document: Any) -> str:
    if kind == StepKind.ASK:
        return f"an answer to: {document.get('question')}"
    if kind == StepKind.JOB:
        return f"the end of job {document.get('job_id')}"
    about = {name: value for name, value in document.get("awaited", {}).items() if value}
    return f"a message with {canonical(about)}"
