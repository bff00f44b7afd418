"""Filters of lists of jobs, by which also actions on many jobs select them."""

from __future__ import annotations

from typing import Final, NamedTuple


class JobFilter(NamedTuple):
    """Which jobs: of a kind or pattern, of a node that has claimed them, held by an agent, of a run."""

    kind: str | None = None
    claimer: str | None = None
    agent: str | None = None
    """The agent on whose behalf they are held."""
    ulids: tuple[str, str] | None = None
    """The first and the last ULID of a run of a workflow."""

    @property
    def is_by_kind(self) -> bool:
        """Return whether nothing but the kind decides."""
        return self._replace(kind=None) == NO_FILTER


NO_FILTER: Final = JobFilter()
