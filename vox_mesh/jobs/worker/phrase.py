"""The phrase of a job: an attempt at a job with a score, its phases, waits and status claims."""

from __future__ import annotations

from typing import Any, Final

from vox_mesh.errors import MeshError, PhaseOverrun
from vox_mesh.jobs.progress import Notebook
from vox_mesh.model.jobs.records import EXEC, Job
from vox_mesh.model.rhythm.claims import ClaimState
from vox_mesh.model.rhythm.costs import PhraseOutcome
from vox_mesh.rhythm.phrases.checkpoints import Checkpoints
from vox_mesh.rhythm.phrases.cutoff import Cutoff
from vox_mesh.rhythm.phrases.phrase import Phase, Phrase
from vox_mesh.rhythm.phrases.reporting import join_remarks
from vox_mesh.rhythm.phrases.spec import PhraseParts, PhraseSpec, RetryPosition


class AttemptDeadline(Cutoff):
    """The end of an attempt's phrase. Its worker enforces it, unless a phase or wait has its own deadline."""

    @property
    def is_due(self) -> bool:
        """Whether the attempt is to be stopped."""
        return not self._holds and self.at_ms <= self._times.now_ms

    def _arm(self) -> None:
        """Leave it to the worker."""


class JobPhrase(Phrase):
    """The phrase of one attempt. Its worker enforces its end, and records it.

    Until the handler enters a phase itself, the phases follow each other as the score says.
    """

    def __init__(
        self, parts: PhraseParts, spec: PhraseSpec, job: Job, number: int, notebook: Notebook, began_ms: int
    ) -> None:
        is_last = number >= spec.score.retry.max_phrases
        position = RetryPosition.LAST if is_last else RetryPosition.ALONE
        super().__init__(parts, spec, Checkpoints(parts.context, spec), number, position)
        self._is_command = job.kind == EXEC
        self._notebook = notebook
        self._automatic: str | None = None
        self._has_own_phases = False
        self.fallbacks: Final = dict(spec.fallbacks)
        """Functions that replace an exhausted wait, by their names in the score; the handler adds them."""
        self._waits.fallbacks = self.fallbacks
        self.cutoff = self._deadline = AttemptDeadline(parts.context.times, self._timer.begin(began_ms).at_ms)

    # --- phases ----------------------------------------------------------------------------------

    def begin_phase(self, phase: Phase) -> Cutoff:
        """Begin a phase that the handler enters; from now on it enters all of them."""
        outer = super().begin_phase(phase)
        self._has_own_phases = True
        return outer

    def advance(self, now_ms: int) -> int | None:
        """Enter the phase of this time, unless the handler enters phases; return when the next one begins."""
        if self._has_own_phases or self.outcome is not None:
            return None
        for phase, begins_ms, ends_ms in self._timer.spans():
            if now_ms < begins_ms:
                return begins_ms
            if self._automatic is None or self._order(phase) > self._order(self._automatic):
                self._automatic = phase
                at_ms = max(begins_ms, self.began_ms)
                self._timer.count_as(phase, at_ms)
                self._reporter.begin_phase(phase, self.beats_until(ends_ms), at_ms)
        return None

    def _order(self, phase: str) -> int:
        return list(self.beats).index(phase)

    # --- the work --------------------------------------------------------------------------------

    def covers(self, error: BaseException) -> bool:
        """Return whether a fallback has covered an error: its result is the job's."""
        return self._waits.has_covered(error)

    @property
    def is_due(self) -> bool:
        """Whether the phrase is over, and the attempt is to be stopped."""
        return self._deadline.is_due

    @property
    def is_command(self) -> bool:
        """Whether the attempt runs a command."""
        return self._is_command

    def overrun_error(self) -> MeshError:
        """Report that the phrase is over, and return the error of its attempt."""
        if self.outcome is None and not self._is_cut_short:
            self._is_cut_short = True
            self.overruns += 1
            self._reporter.report_overrun(self._timer.position)
        beats = sum(self.beats.values())
        return PhaseOverrun(f"its phrase of {beats:g} beats is over", phase=self._timer.position)

    async def checkpoint(self, value: Any) -> None:
        """Save a JSON value from which another attempt may resume."""
        await self._notebook.checkpoint(value)

    def report_progress(self, done: float | None, notes: str | None) -> None:
        """Claim the progress of the job."""
        if self.outcome is None and done is not None:
            self.progress(done, join_remarks([notes or ""]))

    # --- the end ---------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait for the messages of exhausted waits: what became of them is part of the end."""
        await self._waits.wait_until_emitted()

    def finish(self, outcome: PhraseOutcome, reason: str | None, ended_ms: int) -> PhraseOutcome:
        """End the phrase, claim its end, and return its outcome."""
        self.advance(ended_ms)
        self._timer.stop(ended_ms)
        if outcome is PhraseOutcome.DONE:
            if self._first_useful_ms is None:
                self._first_useful_ms = ended_ms
            outcome = self._outcome_of(None)
        self.outcome = outcome
        if reason:
            self._reporter.add_remark(reason)
        is_done = outcome in (PhraseOutcome.DONE, PhraseOutcome.DEGRADED)
        note = join_remarks(self._reporter.remarks)
        self._reporter.finish(ClaimState.DONE if is_done else ClaimState.FAILED, note, ended_ms)
        return outcome

    @property
    def used(self) -> dict[str, float]:
        """The beats used, by phase."""
        return self._timer.used

    @property
    def waited(self) -> dict[str, float]:
        """The beats waited, by wait budget."""
        return self._timer.waited

    @property
    def first_useful_ms(self) -> int | None:
        """When the first useful result was there."""
        return self._first_useful_ms

    @property
    def note(self) -> str:
        """The remarks on the attempt, in one line."""
        return join_remarks(self._reporter.remarks)
