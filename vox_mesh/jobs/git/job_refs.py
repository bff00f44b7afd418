"""The refs of all jobs in a repository, as they were last read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from vox_mesh.model.jobs.git_refs import JobRef, RefKind, parse_ref


class Refusal(NamedTuple):
    """A ref or a job that was refused, and why."""

    name: str
    reason: str


class JobRefs:
    """The object ids of refs, by job; refs with other names are `unknown`."""

    def __init__(self, object_ids: Mapping[str, str]) -> None:
        self._by_job: dict[str, dict[JobRef, str]] = {}
        self.unknown: list[str] = []
        for name, object_id in object_ids.items():
            ref = parse_ref(name)
            if ref is None:
                self.unknown.append(name)
            else:
                self._by_job.setdefault(ref.job_id, {})[ref] = object_id

    def __iter__(self) -> Iterator[str]:
        """Return the ids of the jobs."""
        return iter(self._by_job)

    def find(self, job_id: str, kind: RefKind) -> str | None:
        """Return the object that the manifest, result or end of a job is, or `None`."""
        return self._by_job.get(job_id, {}).get(JobRef(job_id, kind))

    def claims(self, job_id: str) -> dict[JobRef, str]:
        """Return the claims of a job."""
        refs = self._by_job.get(job_id, {})
        return {ref: object_id for ref, object_id in refs.items() if ref.kind is RefKind.CLAIM}

    def has_ended(self, job_id: str) -> bool:
        """Return whether there is a result or an end of a job."""
        return any(self.find(job_id, kind) is not None for kind in (RefKind.RESULT, RefKind.END))
