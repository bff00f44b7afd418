"""Rows of tables of jobs, without manifests, and exact counts of what a filter selects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import orjson

from vox_mesh.jobs.queries import list_name
from vox_mesh.jobs.transitions import SQL
from vox_mesh.model.jobs.job_filter import JobFilter
from vox_mesh.model.jobs.records import JobState, matches
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.rows import Row, Rows

MAX_COUNTED: Final = 500_000
"""How many of the newest jobs are looked at to count by more than kind and state."""


class _Listed(Protocol):
    @property
    def id(self) -> int: ...


ListedJob = TypeVar("ListedJob", bound=_Listed)
ReadState = Callable[[JobState | None], Awaitable[Sequence[ListedJob]]]
"""Reads up to a limit of jobs in a state, or in any, newest first."""


@dataclass(frozen=True)
class JobRowView:
    """A job in a table. `title`: its name in its workflow, or else its kind; `agent`: who holds it."""

    job_id: str
    id: int
    kind: str
    state: str
    title: str
    ulid: str
    priority: int
    waits: int
    attempts: int
    max_attempts: int
    claimer: str | None
    agent: str | None
    created_ms: int
    not_before_ms: int
    started_ms: int | None
    ended_ms: int | None
    lease_until_ms: int | None
    exit_code: int | None
    reason: str | None
    retry_of: str | None
    progress: float | None
    message: str | None

    @classmethod
    def of(cls, row: Row) -> JobRowView:
        """Return the view of a row; bytes, which only a hostile row holds, come as text."""
        *columns, note = (f"0x{each.hex()}" if isinstance(each, bytes) else each for each in row)
        values: dict[str, Any] = dict(zip(cls.__dataclass_fields__, columns, strict=False))
        progress, message = orjson.loads(str(note)) if note else (None, None)
        title = str(values.pop("title") or values["kind"])
        return cls(**values, title=title, progress=progress, message=message)


@dataclass(frozen=True)
class JobTotalView:
    """How many jobs a filter selects; unless exact, there may be more among the oldest jobs."""

    jobs: int
    is_exact: bool


async def job_rows(
    mesh: MeshServices,
    states: Sequence[JobState],
    where: JobFilter,
    *,
    before: int,
    down_to: int,
    limit: int,
) -> list[JobRowView]:
    """Return the rows of jobs in one of these states, newest first; all states if none is given."""

    async def read(state: JobState | None) -> list[JobRowView]:
        rows = await _read(mesh, "rows", state, where, before, down_to, limit)
        return [JobRowView.of(row) for row in rows]

    return await merge_states(states, read, limit)


async def merge_states(
    states: Sequence[JobState], read: ReadState[ListedJob], limit: int, *, is_cut: bool = False
) -> list[ListedJob]:
    """Return the newest jobs in any of these states, which are read one after the other.

    With `is_cut`, less than the limit may be read although there is more: nothing older is returned then.
    """
    if not states or len(states) == len(JobState):
        return [*await read(None)]
    found = [await read(state) for state in dict.fromkeys(states)]
    cut = [jobs for jobs in found if is_cut and 0 < len(jobs) < limit] if len(found) > 1 else []
    oldest = max((jobs[-1].id for jobs in cut), default=0)
    merged = sorted((job for jobs in found for job in jobs if job.id >= oldest), key=lambda job: -job.id)
    return merged[:limit]


async def count_selected(mesh: MeshServices, states: Sequence[JobState], where: JobFilter) -> JobTotalView:
    """Return how many jobs are in one of these states, or in any, and match a filter."""
    wanted = [*dict.fromkeys(states)] or [*JobState]
    if where.is_by_kind:
        counts = await mesh.jobs.queries.counts()
        kinds = [each for kind, each in counts.items() if where.kind is None or matches(where.kind, kind)]
        return JobTotalView(sum(each.get(state, 0) for each in kinds for state in wanted), is_exact=True)
    newest = await mesh.jobs.queries.newest_position()
    down_to = max(0, newest - MAX_COUNTED)
    total = 0
    for state in wanted:
        total += (await _read(mesh, "count", state, where, newest + 1, down_to, 1)).value or 0
    return JobTotalView(total, is_exact=down_to == 0)


async def _read(
    mesh: MeshServices,
    form: str,
    state: JobState | None,
    where: JobFilter,
    before: int,
    down_to: int,
    limit: int,
) -> Rows:
    name = list_name(form, state, where.agent, where.ulids)
    ulids = where.ulids or (None, None)
    values = (where.kind, where.claimer, before, limit, state, down_to, where.agent, *ulids)
    return await mesh.store.read(SQL[name], (*mesh.store.mesh_id, *values))
