"""Trace contexts in the W3C format, and the one that every job has by its id."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED: Final = 1


class Trace(NamedTuple):
    """A position in a trace; both ids are lowercase hex."""

    trace_id: str
    span_id: str
    is_sampled: bool = True

    @classmethod
    def of_job(cls, job_id: str) -> Self:
        """Return the trace of a job, derived from its id so that all processes agree."""
        return cls(job_id[:32], job_id[32:48])

    @classmethod
    def read(cls, traceparent: str | None) -> Self | None:
        """Return the trace that a `traceparent` names; `None` if it is invalid."""
        match = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent)
        if match is None or not int(match[1], 16) or not int(match[2], 16):
            return None
        return cls(match[1], match[2], bool(int(match[3], 16) & _SAMPLED))

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"
