"""Jobs: their states, what moves them from one to another, and the records of the plane."""

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
"""The ops that move jobs."""

EXEC: Final = "exec"
"""The kind of jobs that are commands."""

DEFAULT_PRIORITY: Final = 1
DEFAULT_ATTEMPTS: Final = 3
DEFAULT_BACKOFF_MS: Final = 1_000
MAX_BACKOFF_MS: Final = 5 * 60_000
DEFAULT_LEASE_MS: Final = 60_000

_PATTERN: Final = re.compile(r"\*|[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)*(\.\*)?")
_MAX_PATTERN: Final = 128


class JobState(StrEnum):
    """Where a job stands."""

    PENDING = "pending"
    CLAIMED = "claimed"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABORTED = "aborted"

    @property
    def is_end(self) -> bool:
        """Whether nothing comes after it."""
        return self in ENDS


ENDS: Final = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.ABORTED})
"""The states that are terminal."""

HELD: Final = frozenset({JobState.CLAIMED, JobState.RUNNING})
"""The states in which a job is somebody's."""


GONE_WRONG: Final = frozenset({JobState.FAILED, JobState.ABORTED})
"""The ends that are no success."""


class Transition(NamedTuple):
    """An op that takes a job from one state to another; it begins with no state at all."""

    op: str
    source: JobState | None
    target: JobState


TRANSITIONS: Final = frozenset(
    {
        Transition(SCHEDULE, None, JobState.PENDING),
        Transition(CLAIM, JobState.PENDING, JobState.CLAIMED),
        Transition(CLAIM, JobState.CLAIMED, JobState.CLAIMED),  # a renewal, as is the next
        Transition(CLAIM, JobState.RUNNING, JobState.RUNNING),
        Transition(START, JobState.CLAIMED, JobState.RUNNING),
        Transition(COMPLETE, JobState.RUNNING, JobState.SUCCEEDED),
        Transition(COMPLETE, JobState.RUNNING, JobState.FAILED),
        Transition(YIELD, JobState.CLAIMED, JobState.PENDING),
        Transition(YIELD, JobState.RUNNING, JobState.PENDING),
        Transition(EXPIRE, JobState.CLAIMED, JobState.PENDING),
        Transition(EXPIRE, JobState.RUNNING, JobState.PENDING),
        Transition(EXPIRE, JobState.CLAIMED, JobState.FAILED),  # that was the last attempt, as is the next
        Transition(EXPIRE, JobState.RUNNING, JobState.FAILED),
        Transition(ABORT, JobState.PENDING, JobState.ABORTED),
        Transition(ABORT, JobState.CLAIMED, JobState.ABORTED),
        Transition(ABORT, JobState.RUNNING, JobState.ABORTED),
        # A job that waits for another fails with it, by the op that ended the other.
        Transition(COMPLETE, JobState.PENDING, JobState.FAILED),
        Transition(EXPIRE, JobState.PENDING, JobState.FAILED),
        Transition(ABORT, JobState.PENDING, JobState.FAILED),
    }
)
"""All that can happen to a job."""


def is_legal(op: str, source: JobState | None, target: JobState) -> bool:
    """Whether the op may take a job from one state to the other."""
    return Transition(op, source, target) in TRANSITIONS


def backoff_ms(base_ms: int, failures: int, chance: float) -> int:
    """How long to wait after so many failures: twice as long each time, and never quite the same."""
    longest = min(base_ms << min(failures - 1, 30), max(base_ms, MAX_BACKOFF_MS))
    return round(longest * (0.75 + 0.25 * chance))


class Job(NamedTuple):
    """A job as the roster has it."""

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
        """The manifest: what the id is the hash of."""
        core: Mapping[str, Any] = parse(self.manifest)
        return core

    @property
    def payload(self) -> Any:
        """What the handler is given."""
        return self.core.get("payload")

    @property
    def held_until(self) -> str | None:
        """The boundary that a claim of it holds until, `phase` or `bar`; mostly it is for a time instead."""
        return self.core.get("lease") if '"lease":' in self.manifest else None  # few have one: see whether

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """What the job has left: name, hash, size and type of each artifact."""
        outputs: list[dict[str, Any]] = orjson.loads(self.output_artifacts)
        return outputs

    @property
    def has_ended(self) -> bool:
        """Whether its state is terminal."""
        return JobState(self.state).is_end


def checked_pattern(pattern: str) -> str:
    """The pattern, if it is one: a kind, all kinds below one as in `cortex.extract.*`, or all there are."""
    if not _PATTERN.fullmatch(pattern) or len(pattern) > _MAX_PATTERN:
        raise BadValue(
            f"{pattern!r} is no kind of job", hint="for example cortex.extract, cortex.extract.* or *"
        )
    return pattern


def matches(pattern: str, kind: str) -> bool:
    """Whether a kind is of the pattern: the same, or below it as in `cortex.extract.*`."""
    return pattern == kind or (pattern.endswith("*") and kind.startswith(pattern[:-1]))


def most_specific(patterns: Iterable[str], kind: str) -> str | None:
    """The pattern that says most of those that the kind is of."""
    found = [each for each in patterns if matches(each, kind)]
    return max(found, key=lambda each: (not each.endswith("*"), len(each))) if found else None
