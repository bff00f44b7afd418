"""Reports: how an agent says that its attempt went."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.base.durations import Duration, checked_seconds
from vox_mesh.model.jobs.proof import sanitize_error
from vox_mesh.model.jobs.question import NEEDS_INPUT, Question
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.model.rhythm.costs import Resources
from vox_mesh.model.rhythm.usage import NO_USAGE, Usage

MAX_DELAY_S: Final = 365 * 86_400


class ReportedOutcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    YIELDED = "yielded"
    NEEDS_INPUT = "needs_input"


class Report(NamedTuple):
    """The outcome of an attempt."""

    outcome: ReportedOutcome
    reason: str | None = None
    """Why it failed or was yielded."""
    result: Any = None
    """The result of a success, a JSON value."""
    exit_code: int | None = None
    may_retry: bool = True
    """Whether a failed job may have another attempt, if it has any left."""
    delay_ms: int | None = None
    """When a yielded job may be taken again, by default after its backoff."""
    usage: Usage = NO_USAGE
    """What the attempt has used, as far as the agent knows, and was not reported with its progress."""
    question: Question | None = None
    """What must be answered before the job can go on."""

    def is_written(self, job: Job, claim_token: int) -> bool:
        """Return whether a job shows that this report was written, and is repeated."""
        if job.claim_token != claim_token:
            return False
        reason = None if self.reason is None else sanitize_error(self.reason)
        if job.has_ended:
            return job.state == self.outcome.value and job.reason == reason
        is_requeued = self.outcome is not ReportedOutcome.SUCCEEDED
        return is_requeued and job.state == JobState.PENDING and job.reason == reason


ReportedUsage = Mapping[str, Any] | Usage | Resources
"""Usage as an agent reports it, for example `{"input_tokens": 900, "output_tokens": 80, "model": "m"}`."""


def usage_of(reported: ReportedUsage | None) -> Usage:
    """Return the usage that was reported. Raises `BadValue` if it is malformed."""
    if reported is None:
        return NO_USAGE
    if isinstance(reported, Resources):
        return Usage(reported)
    return reported if isinstance(reported, Usage) else Usage.of(reported)


def succeeded(
    result: Any = None, *, exit_code: int | None = None, usage: ReportedUsage | None = None
) -> Report:
    """Return the report of a success."""
    return Report(ReportedOutcome.SUCCEEDED, result=result, exit_code=exit_code, usage=usage_of(usage))


def failed(
    reason: str, *, retry: bool = True, exit_code: int | None = None, usage: ReportedUsage | None = None
) -> Report:
    """Return the report of a failure; with `retry`, the job has another attempt if it has any left."""
    if not reason:
        raise BadValue("the reason of a failure must not be empty")
    used = usage_of(usage)
    return Report(ReportedOutcome.FAILED, reason, exit_code=exit_code, may_retry=retry, usage=used)


def yielded(
    reason: str = "yielded by its agent",
    delay: Duration | None = None,
    *,
    usage: ReportedUsage | None = None,
) -> Report:
    """Return the report of an attempt that goes back to the queue without counting as a failure."""
    delay_ms = None
    if delay is not None:
        seconds = checked_seconds("delay", delay, 0, MAX_DELAY_S, hint="the longest delay is 365d")
        delay_ms = round(seconds * 1_000)
    return Report(ReportedOutcome.YIELDED, reason, delay_ms=delay_ms, usage=usage_of(usage))


def needs_input(question: Question | str, *, usage: ReportedUsage | None = None) -> Report:
    """Return the report of an attempt that asks a question; the job is taken again with the answer."""
    asked = (Question(question) if isinstance(question, str) else question).checked()
    used = usage_of(usage)
    return Report(ReportedOutcome.NEEDS_INPUT, NEEDS_INPUT, delay_ms=0, question=asked, usage=used)
