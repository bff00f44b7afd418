"""The jobs that a command is about: by name, or all that fit, as many at a time as an answer can hold."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

import click

from vox_mesh.errors import TooLarge
from vox_mesh.jobs.jobs import MAX_AT_ONCE
from vox_mesh.mesh import Mesh
from vox_mesh.model.jobs import ENDS, Job, JobState

OPEN: Final = tuple(state for state in JobState if state not in ENDS)
"""The states of jobs that are still to be done."""

job_argument: Final = click.argument("reference", metavar="JOB")
kind_option: Final = click.option(
    "--kind", metavar="PATTERN", help="Only of this kind, or of those below it, as in 'cortex.*'."
)
limit_option: Final = click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most so many."
)


async def named(mesh: Mesh, references: Iterable[str]) -> list[Job]:
    """The jobs that are named, each once."""
    jobs = [await mesh.jobs.find(each) for each in references]
    return list({job.job_id: job for job in jobs}.values())


async def found(mesh: Mesh, job_ids: Iterable[str]) -> list[Job]:
    """Those of the jobs that are there, as they stand at the database and in this order."""
    rest, most = list(job_ids), MAX_AT_ONCE
    jobs: list[Job] = []
    while rest:
        try:
            page = await mesh.jobs.roster.find_all(rest[:most], fresh=True)
        except TooLarge:
            if most == 1:
                raise
            most //= 2
        else:
            jobs += [page[job_id] for job_id in rest[:most] if job_id in page]
            rest = rest[most:]
    return jobs


async def listed(
    mesh: Mesh,
    states: Sequence[JobState | None],
    *,
    kind: str | None = None,
    claimer: str | None = None,
    limit: int | None = None,
) -> AsyncIterator[list[Job]]:
    """Jobs in these states, or in any, in batches: state by state, the newest first."""
    left = limit
    for state in states:
        before: int | None = None
        while left is None or left > 0:
            wanted = MAX_AT_ONCE if left is None else min(MAX_AT_ONCE, left)
            page = await mesh.jobs.roster.listed(
                state=state, kind=kind, claimer=claimer, before=before, limit=wanted
            )
            if not page:
                break
            yield page
            before = page[-1].id
            left = None if left is None else left - len(page)
