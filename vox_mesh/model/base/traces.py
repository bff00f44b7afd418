"""Trace contexts, as W3C writes them, and the one that every job has by its id alone."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

_WRITTEN: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED: Final = 1


class Trace(NamedTuple):
    """Where in which trace something stands: both ids are lowercase hex."""

    trace_id: str
    span_id: str
    is_sampled: bool = True

    @classmethod
    def of_job(cls, job_id: str) -> Self:
        """The trace of a job: from its id, so that all processes agree though nothing is stored or sent."""
        return cls(job_id[:32], job_id[32:48])

    @classmethod
    def read(cls, traceparent: str | None) -> Self | None:
        """The trace that a `traceparent` names; `None` if it names none."""
        found = None if traceparent is None else _WRITTEN.fullmatch(traceparent)
        if found is None or not int(found[1], 16) or not int(found[2], 16):
            return None
        return cls(found[1], found[2], bool(int(found[3], 16) & _SAMPLED))

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"
