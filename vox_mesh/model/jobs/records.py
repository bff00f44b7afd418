"""Jobs: their states, legal transitions, and records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, Self

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import parse
from vox_mesh.model.base.json_text import COUNTER_LIMIT, MAX_STORED_DEPTH, check_depth, read_stored

SCHEDULE: Final = "ScheduleJob"
CLAIM: Final = "ClaimWork"
START: Final = "StartWork"
COMPLETE: Final = "CompleteJob"
YIELD: Final = "YieldWork"
EXPIRE: Final = "ExpireWork"
ABORT: Final = "AbortJob"

JOB_OPS: Final = (SCHEDULE, CLAIM, START, COMPLETE, YIELD, EXPIRE, ABORT)
"""The ops that change jobs."""

TASK: Final = "task"
"""The field of a job's entry in the op that schedules it with the hash of its task, if it has one."""

INFERENCE: Final = "RecordInference"
"""The op that records a model call of a running job."""

EXEC: Final = "exec"
"""The kind of command jobs."""

TAG: Final = r"[a-z0-9][a-z0-9_.:-]{0,63}"
"""The pattern of a tag."""

MAX_TAGS: Final = 16
"""The tags that a job may have."""

MAX_OWN_TAGS: Final = 64
"""The tags that a worker or agent may have."""

Tags = frozenset[str]
NO_TAGS: Final[Tags] = frozenset()

DEFAULT_PRIORITY: Final = 1
DEFAULT_ATTEMPTS: Final = 3
COMMAND_ATTEMPTS: Final = 1
"""The attempts of a command: one that fails is not retried unless its manifest says so."""

DEFAULT_INTERRUPTIONS: Final = 5
"""The interruptions after which a job is run again: of jobs whose op names no number, now and later."""

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
        Transition(EXPIRE, JobState.CLAIMED, JobState.FAILED),  # interrupted too often, like the next
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


def interrupted_too_often(limit: int, why: str) -> str:
    """Return the reason of a job that failed by one interruption too many; `why` is that of the last one."""
    return f"interrupted more often than max_interruptions ({limit}) allows: {why}"


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
    max_interruptions: int
    backoff_ms: int
    lease_ms: int | None
    claimer: str | None
    claim_token: int
    lease_until_ms: int | None
    attempts: int
    failures: int
    interruptions: int
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
    binding: str | None
    """What of the rhythm it waits for before each attempt."""
    manifest: str

    @classmethod
    def of_row(cls, row: Iterable[Any]) -> Self:
        """Return the job of a row; bytes, which only a hostile row holds, come as text that is no JSON."""
        values = tuple(row)
        if bytes in map(type, values):
            values = tuple(f"0x{value.hex()}" if isinstance(value, bytes) else value for value in values)
        return cls._make(values)

    @property
    def core(self) -> Mapping[str, Any]:
        """Return the core of the manifest, whose hash is the job's id. Raises `BadValue` if it has none."""
        core = parse(self.manifest)
        if not isinstance(core, dict):
            raise BadValue(f"the manifest of job {self.job_id} must be an object")
        check_depth(core, self.manifest, MAX_STORED_DEPTH)
        return core

    @property
    def account(self) -> str:
        """Return the account that pays for the job, empty if none does."""
        budget = self.core.get("budget")
        return str(budget.get("charge_to", "")) if isinstance(budget, dict) else ""

    @property
    def tags(self) -> Tags:
        """Return what a worker or agent must have to get the job."""
        if '"tags":' not in self.manifest:  # avoid parsing: few have any
            return NO_TAGS
        tags = self.core.get("tags")
        return frozenset(map(str, tags)) if isinstance(tags, list) else NO_TAGS

    @property
    def fault(self) -> str | None:
        """Return why the job can't be claimed by any node, or `None`: a column holds no such value."""
        if _JOB_ID.fullmatch(str(self.job_id)) is None:
            return "job_id must be 64 hexadecimal digits"
        for place in _COUNTER_PLACES:
            value = self[place]
            if type(value) is not int or not 0 <= value < COUNTER_LIMIT:
                name = self._fields[place]
                return f"{name} must be an integer from 0 to 2^53 - 1, got {str(value)[:32]}"
        return None

    @property
    def payload(self) -> Any:
        """Return the payload for the handler."""
        return self.core.get("payload")

    @property
    def held_until(self) -> str | None:
        """Return the boundary at which a claim ends, `phase` or `bar`, or `None` for a lease in time."""
        if '"lease":' not in self.manifest:  # avoid parsing: few have one
            return None
        with suppress(BadValue):  # an unreadable job fails when it is run, by name
            return self.core.get("lease")
        return None

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """Return the name, hash, size and type of each artifact."""
        outputs: list[dict[str, Any]] = read_stored(self.output_artifacts)
        return outputs

    @property
    def may_be_interrupted(self) -> bool:
        """Return whether it is run again if its attempt is interrupted."""
        return self.interruptions < self.max_interruptions

    @property
    def has_ended(self) -> bool:
        """Return whether its state is terminal."""
        return JobState(self.state).is_end


_JOB_ID: Final = re.compile(r"[0-9a-f]{64}")
_COUNTERS: Final = (
    *("priority", "waits", "not_before_ms", "max_attempts", "backoff_ms", "claim_token"),
    *("attempts", "failures", "created_ms", "max_interruptions", "interruptions"),
)
_COUNTER_PLACES: Final = tuple(map(Job._fields.index, _COUNTERS))


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


def checked_tags(tags: Iterable[str]) -> Tags:
    """Return the tags of a worker or agent. Raises `BadValue` if one is malformed or there are too many."""
    own = frozenset(tags)
    if len(own) > MAX_OWN_TAGS:
        raise BadValue(f"tags must be at most {MAX_OWN_TAGS}, got {len(own)}")
    for each in sorted(own):
        if not re.fullmatch(TAG, each):
            raise BadValue(
                f"a tag must be up to 64 of a-z, 0-9, _, ., : and -, got {each!r}", hint="for example gpu"
            )
    return own


def matches(pattern: str, kind: str) -> bool:
    """Return whether a pattern covers a kind: it is equal, or a prefix such as `cortex.extract.*`."""
    return pattern == kind or (pattern.endswith("*") and kind.startswith(pattern[:-1]))


def covers(kind: str, patterns: Sequence[str]) -> bool:
    """Return whether patterns cover a kind; commands must be named explicitly."""
    return kind in patterns if kind == EXEC else any(matches(each, kind) for each in patterns)


def most_specific(patterns: Iterable[str], kind: str) -> str | None:
    """Return the most specific pattern that covers a kind, or `None`."""
    matching = [each for each in patterns if matches(each, kind)]
    return max(matching, key=lambda each: (not each.endswith("*"), len(each))) if matching else None


class HasJobId(Protocol):
    """A job, or what stands for one."""

    @property
    def job_id(self) -> str:
        """Return the id of the job."""


class Scheduled(NamedTuple):
    """A job that was scheduled now or, if the manifest is identical, before.

    `spooled`: the database is unreachable, and the job is scheduled when it is back. If an identical one
    exists there, that one counts: refer to it by its id.
    """

    job_id: str
    ulid: str
    kind: str
    is_new: bool = True
    spooled: bool = False
