"""Phrases: how agents work on a task by its score, once or until it is done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from vox_mesh.errors import BadValue
from vox_mesh.messages.messages import Messages
from vox_mesh.model.rhythm.budgets import Budget
from vox_mesh.model.rhythm.claims import MAX_TASK
from vox_mesh.model.rhythm.costs import PhraseOutcome
from vox_mesh.model.rhythm.score import Score, ScoreFile, Start, parse_score
from vox_mesh.rhythm.budgets import Allowance, Budgets
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.rhythm.help import Help
from vox_mesh.rhythm.phrases.checkpoints import Checkpoints
from vox_mesh.rhythm.phrases.phrase import Phrase
from vox_mesh.rhythm.phrases.spec import Fallbacks, PhraseParts, PhraseSpec, RetryPosition, State
from vox_mesh.rhythm.status_claims import StatusClaimWriter

AnyScore = Score | ScoreFile | Path | str | None
"""A score, the path or text of a score file, or `None` for the built-in score."""

AnyBudget = Budget | Mapping[str, Any] | None


class Phrases:
    """Creates phrases; each is run by `async with`."""

    def __init__(
        self,
        context: RhythmContext,
        status: StatusClaimWriter,
        messages: Messages,
        budgets: Budgets,
        help_service: Help,
    ) -> None:
        self.parts: Final = PhraseParts(context, status, messages, budgets, help_service)

    def phrase(
        self,
        score: AnyScore = None,
        *,
        task: str,
        agent: str | None = None,
        fallbacks: Fallbacks | None = None,
        budget: AnyBudget = None,
        state: State | None = None,
        start: Start | None = None,
        job_id: str | None = None,
        role: str = "",
    ) -> Phrase:
        """Create one phrase. A phase that overruns may end it with `PhraseDeferred`.

        `fallbacks` run when a wait budget is exhausted, by their names in the score. `state` returns the
        value to save as a checkpoint on each downbeat, within half a beat. `start`: now, or with the next
        bar, whose phases it shares; by default as the score says, or now.
        """
        spec = self._make_spec(score, task, agent, fallbacks, budget, state, start, job_id, role)
        return Phrase(self.parts, spec, Checkpoints(self.parts.context, spec))

    async def phrases(
        self,
        score: AnyScore = None,
        *,
        task: str,
        agent: str | None = None,
        fallbacks: Fallbacks | None = None,
        budget: AnyBudget = None,
        state: State | None = None,
        start: Start | None = None,
        job_id: str | None = None,
        role: str = "",
    ) -> AsyncIterator[Phrase]:
        """Yield phrases until one is not deferred, each shorter than the last, up to the score's maximum.

        The last one raises `PhaseOverrun` instead of being deferred. All share one budget.
        """
        spec = self._make_spec(score, task, agent, fallbacks, budget, state, start, job_id, role)
        checkpoints, max_phrases = Checkpoints(self.parts.context, spec), spec.score.retry.max_phrases
        for attempt in range(1, max_phrases + 1):
            position = RetryPosition.FOLLOWED if attempt < max_phrases else RetryPosition.LAST
            phrase = Phrase(self.parts, spec, checkpoints, attempt, position)
            yield phrase
            if phrase.outcome is not PhraseOutcome.DEFERRED:
                return

    def _make_spec(
        self,
        score: AnyScore,
        task: str,
        agent: str | None,
        fallbacks: Fallbacks | None,
        budget: AnyBudget,
        state: State | None,
        start: Start | None,
        job_id: str | None,
        role: str,
    ) -> PhraseSpec:
        if not 0 < len(task) <= MAX_TASK or not task.isprintable():
            raise BadValue(f"task must be 1 to {MAX_TASK} printable characters, got {task!r}")
        if start not in (None, "now", "downbeat"):
            raise BadValue(f"start must be now or downbeat, got {start!r}")
        known, written, name = _load_score(score)
        agent = self.parts.messages.agent_or_default(agent)
        own = _parse_budget(written if budget is None else budget)
        allowance = Allowance(own, agent)
        begin = start or known.start or "now"
        return PhraseSpec(known, task, agent, allowance, fallbacks or {}, state, begin, job_id, role, name)


def _load_score(score: AnyScore) -> tuple[Score, Mapping[str, Any] | None, str | None]:
    """Return the score, and the budget and the address given in its file."""
    if score is None:
        return Score.built_in(), None, None
    if isinstance(score, Score):
        return score, None, None
    if not isinstance(score, ScoreFile):
        is_text = isinstance(score, str) and (":" in score or "\n" in score)
        score = parse_score(str(score)) if is_text else _read_score(Path(score))
    return score.score, score.budget, score.ucxl


def _read_score(path: Path) -> ScoreFile:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadValue(f"score {path} can't be read: {error.strerror}") from None
    return parse_score(text, str(path))


def _parse_budget(budget: AnyBudget) -> Budget:
    if isinstance(budget, Budget):
        return budget
    return Budget.of_document(budget or {})
