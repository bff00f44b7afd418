"""The result of an attempt, and its recorded end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from vox_mesh.jobs.proof.artifacts import Artifact
from vox_mesh.model.jobs.proof import AgentAttestation, CommandAttestation, sanitize_error
from vox_mesh.model.jobs.question import Question
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.model.jobs.steps.step_summary import StepSummary
from vox_mesh.model.jobs.steps.suspension import Wake
from vox_mesh.model.rhythm.costs import NOTHING, PhraseEnd, PhraseOutcome, Resources
from vox_mesh.model.rhythm.tokens import NO_TOKENS, TokenUsage
from vox_mesh.store.script import Statement


class AttemptEnd(NamedTuple):
    """The recorded end of an attempt: its usage and cost, and what the op log has of it."""

    make: Callable[[], PhraseEnd]
    """Makes the record; that of an attempt that is only counted is made if its result is not accepted."""
    logged: Mapping[str, Any] | None
    """The end of its phrase; an attempt without a score has none."""
    began_ms: int
    ended_ms: int
    is_brief: bool = False
    """Whether it is only counted: it is the first, and has succeeded within a beat and without a budget."""

    def failed(self, note: str) -> AttemptEnd:
        """Return the end of an attempt whose result was not accepted."""
        end = replace(self.make(), outcome=PhraseOutcome.FAILED, first_useful_ms=None, note=note)
        logged = self.logged and {**self.logged, "outcome": end.outcome.value, "note": note}
        return AttemptEnd(lambda: end, logged, self.began_ms, self.ended_ms)


class WrittenEnd(NamedTuple):
    """The op by which a result was written, and its time."""

    op_id: str
    at_ms: int


class AttemptResult(NamedTuple):
    """The result of an attempt. With `delay_ms` the job returns to the queue without counting as failed.

    With `is_interrupted`, the attempt ended with its worker, and has no result.
    """

    job: Job
    state: JobState
    reason: str | None = None
    exit_code: int | None = None
    artifacts: Sequence[Artifact] = ()
    finished_ms: int = 0
    may_retry: bool = True
    delay_ms: int | None = None
    is_interrupted: bool = False
    attested: CommandAttestation | None = None
    inferences: Sequence[str] = ()
    """The ops that recorded its model calls."""
    agent: AgentAttestation | None = None
    """The agent that did the work, if its node reports it on an agent's behalf."""
    question: Question | None = None
    """What must be answered before the job can go on."""
    awaited_jobs: Sequence[str] = ()
    """The jobs that must end before the job can go on."""
    wake: Wake | None = None
    """The op that wakes the job, if one of its own does."""
    step_rows: Sequence[Statement] = ()
    """The statements that store what its steps wait for."""
    steps: StepSummary | None = None
    """The durable steps of the job."""
    end: AttemptEnd | None = None
    """The end of a metered attempt, which is recorded together with the result."""
    usage: Resources = NOTHING
    """The resources that the attempt has used, as far as they were measured."""
    tokens: TokenUsage = NO_TOKENS
    """The tokens of language models that it has used and was not charged for yet."""
    written: WrittenEnd | None = None
    """How it was written; `None` before."""

    @property
    def causes(self) -> Sequence[str]:
        """Return the ops that led to this result."""
        return (self.job.last_op, *self.inferences)

    @property
    def is_requeued(self) -> bool:
        """Return whether the job returns to the queue."""
        if self.delay_ms is not None:
            return True
        if self.is_interrupted:
            return self.job.may_be_interrupted
        has_another = self.may_retry and self.job.failures + 1 < self.job.max_attempts
        return self.state is JobState.FAILED and has_another

    def cut_off(self, reason: str) -> AttemptResult:
        """Return the result of the attempt if a limit has stopped it."""
        return self._replace(state=JobState.FAILED, reason=reason, delay_ms=None, is_interrupted=False)

    def ended_job(self) -> Job:
        """Return the job as the op that was written has ended it."""
        assert self.written is not None
        outputs = [artifact.output.document() for artifact in self.artifacts]
        return self.job._replace(
            state=self.state.value,
            lease_until_ms=None,
            failures=self.job.failures + (self.state is JobState.FAILED),
            ended_ms=self.written.at_ms,
            exit_code=self.exit_code,
            reason=None if self.reason is None else sanitize_error(self.reason),
            output_artifacts=orjson.dumps(outputs).decode(),
            last_op=self.written.op_id,
        )
