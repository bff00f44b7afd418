"""Jobs: their states, legal transitions, and records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import parse

SCHEDULE: Final = "ScheduleJob"
CLAIM: Final = "ClaimWork"
START: Final = "StartWork"
COMPLETE: Final = "CompleteJob"
YIELD: Final = "YieldWork"
EXPIRE: Final = "ExpireWork"
ABORT: Final = "AbortJob"

JOB_OPS: Final = (SCHEDULE, CLAIM, START, COMPLETE, YIELD, EXPIRE, ABORT)
"""The ops that change jobs."""

EXEC: Final = "exec"
"""The kind of command jobs."""

DEFAULT_PRIORITY: Final = 1
DEFAULT_ATTEMPTS: Final = 3
DEFAULT_BACKOFF_MS: Final = 1_000
MAX_BACKOFF_MS: Final = 5 * 60_000
DEFAULT_LEASE_MS: Final = 60_000

_PATTERN: Final = re.compile(r"\*|[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)*(\.\*)?")
_MAX_PATTERN: Final = 128


class JobState(StrEnum):
    """The state of a job."""

    PENDING = "pending"
    CLAIMED = "claimed"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABORTED = "aborted"

    @property
    def is_end(self) -> bool:
        """Return whether the state is terminal."""
        return self in ENDS


ENDS: Final = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.ABORTED})
"""The terminal states."""

HELD: Final = frozenset({JobState.CLAIMED, JobState.RUNNING})
"""The states in which a node holds the job."""

UNSUCCESSFUL: Final = frozenset({JobState.FAILED, JobState.ABORTED})
"""The terminal states without success."""


class Transition(NamedTuple):
    """An op that changes a job's state; the source is `None` before the job exists."""

    op: str
    source: JobState | None
    target: JobState


TRANSITIONS: Final = frozenset(
    {
        Transition(SCHEDULE, None, JobState.PENDING),
        Transition(CLAIM, JobState.PENDING, JobState.CLAIMED),
        Transition(CLAIM, JobState.CLAIMED, JobState.CLAIMED),  # a renewal, like the next
        Transition(CLAIM, JobState.RUNNING, JobState.RUNNING),
        Transition(START, JobState.CLAIMED, JobState.RUNNING),
        Transition(COMPLETE, JobState.RUNNING, JobState.SUCCEEDED),
        Transition(COMPLETE, JobState.RUNNING, JobState.FAILED),
        Transition(YIELD, JobState.CLAIMED, JobState.PENDING),
        Transition(YIELD, JobState.RUNNING, JobState.PENDING),
        Transition(EXPIRE, JobState.CLAIMED, JobState.PENDING),
        Transition(EXPIRE, JobState.RUNNING, JobState.PENDING),
        Transition(EXPIRE, JobState.CLAIMED, JobState.FAILED),  # after the last attempt, like the next
        Transition(EXPIRE, JobState.RUNNING, JobState.FAILED),
        Transition(ABORT, JobState.PENDING, JobState.ABORTED),
        Transition(ABORT, JobState.CLAIMED, JobState.ABORTED),
        Transition(ABORT, JobState.RUNNING, JobState.ABORTED),
        # A job fails with its predecessor, by the op that ended the predecessor.
        Transition(COMPLETE, JobState.PENDING, JobState.FAILED),
        Transition(EXPIRE, JobState.PENDING, JobState.FAILED),
        Transition(ABORT, JobState.PENDING, JobState.FAILED),
    }
)
"""The legal transitions."""


def is_legal(op: str, source: JobState | None, target: JobState) -> bool:
    """Return whether an op may change a job from one state to the other."""
    return Transition(op, source, target) in TRANSITIONS


def backoff_ms(base_ms: int, failures: int, chance: float) -> int:
    """Return the delay after a failure: exponential backoff with jitter, where `chance` is from 0 to 1."""
    delay_ms = min(base_ms << min(failures - 1, 30), max(base_ms, MAX_BACKOFF_MS))
    return round(delay_ms * (0.75 + 0.25 * chance))


class Job(NamedTuple):
    """A row of the table of jobs."""

    id: int
    job_id: str
    ulid: str
    kind: str
    state: str
    priority: int
    waits: int
    not_before_ms: int
    max_attempts: int
    backoff_ms: int
    lease_ms: int | None
    claimer: str | None
    claim_token: int
    lease_until_ms: int | None
    attempts: int
    failures: int
    created_ms: int
    started_ms: int | None
    ended_ms: int | None
    exit_code: int | None
    reason: str | None
    output_artifacts: str
    retry_of: str | None
    scheduled_by: str
    seed: str
    last_op: str
    manifest: str

    @property
    def core(self) -> Mapping[str, Any]:
        """Return the core of the manifest, whose hash is the job's id."""
        core: Mapping[str, Any] = parse(self.manifest)
        return core

    @property
    def payload(self) -> Any:
        """Return the payload for the handler."""
        return self.core.get("payload")

    @property
    def held_until(self) -> str | None:
        """Return the boundary at which a claim ends, `phase` or `bar`, or `None` for a lease in time."""
        return self.core.get("lease") if '"lease":' in self.manifest else None  # avoid parsing: few have one

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """Return the name, hash, size and type of each artifact."""
        outputs: list[dict[str, Any]] = orjson.loads(self.output_artifacts)
        return outputs

    @property
    def has_ended(self) -> bool:
        """Return whether its state is terminal."""
        return JobState(self.state).is_end


def check_pattern(pattern: str) -> str:
    """Return the pattern if it is a kind, a prefix such as `cortex.extract.*`, or `*`.

    Raises `BadValue` otherwise.
    """
    if not _PATTERN.fullmatch(pattern) or len(pattern) > _MAX_PATTERN:
        raise BadValue(
            f"a kind must be a name or a prefix pattern, got {pattern!r}",
            hint="for example cortex.extract, cortex.extract.* or *",
        )
    return pattern


def matches(pattern: str, kind: str) -> bool:
    """Return whether a pattern covers a kind: it is equal, or a prefix such as `cortex.extract.*`."""
    return pattern == kind or (pattern.endswith("*") and kind.startswith(pattern[:-1]))


def most_specific(patterns: Iterable[str], kind: str) -> str | None:
    """Return the most specific pattern that covers a kind, or `None`."""
    matching = [each for each in patterns if matches(each, kind)]
    return max(matching, key=lambda each: (not each.endswith("*"), len(each))) if matching else None
