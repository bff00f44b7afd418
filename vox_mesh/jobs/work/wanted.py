"""What an agent asks for when it takes jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

from vox_mesh.errors import BadValue
from vox_mesh.model.base.durations import Duration, checked_seconds
from vox_mesh.model.jobs.records import Tags, check_pattern, checked_tags

MAX_AT_ONCE: Final = 100
"""The jobs that one request may take."""

MAX_CAPACITY: Final = 10_000
"""The highest number of jobs that an agent may want to hold at most."""

MAX_KINDS: Final = 64
MIN_LEASE_S: Final = 1.0
MAX_LEASE_S: Final = 86_400.0


class WantedJobs(NamedTuple):
    """Which jobs an agent takes, how many, and for how long."""

    patterns: Sequence[str]
    at_once: int
    lease_ms: int | None
    capacity: int | None
    """How many jobs it wants to hold at most, including the ones that it holds already."""

    tags: Tags
    """The tags that a job may have."""

    @classmethod
    def of(
        cls,
        kinds: Sequence[str],
        count: int,
        lease: Duration | None,
        capacity: int | None,
        tags: Iterable[str],
    ) -> Self:
        """Return what an agent asks for. Raises `BadValue` if a value is out of range."""
        for name, number, most in (
            ("count", count, MAX_AT_ONCE),
            ("kinds", len(kinds), MAX_KINDS),
            ("capacity", 1 if capacity is None else capacity, MAX_CAPACITY),
        ):
            if not 1 <= number <= most:
                raise BadValue(f"{name} must be between 1 and {most}, got {number}")
        patterns = [check_pattern(each) for each in kinds]
        lease_ms = None if lease is None else lease_ms_of(lease)
        return cls(patterns, count, lease_ms, capacity, checked_tags(tags))


def lease_ms_of(lease: Duration) -> int:
    """Return a lease in ms. Raises `BadValue` if it is too short or too long."""
    hint = "for example 60s; the longest lease is 1d"
    return round(1_000 * checked_seconds("lease", lease, MIN_LEASE_S, MAX_LEASE_S, hint=hint))
