"""Scores: the phases of a task's phrase, its wait budgets, retries and escalation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from vox_mesh.errors import BadAddress, BadScore, BadValue
from vox_mesh.model.documents.validation import Texts, build_model, flaw, flaws_of, read_model, shown
from vox_mesh.model.rhythm import ucxl
from vox_mesh.model.rhythm.budgets import Budget
from vox_mesh.model.rhythm.policy import DEFAULT_BAR, PHASES, STRICT, divide_beats
from vox_mesh.model.rhythm.tempo import FASTEST_BPM, LONGEST_BAR, SLOWEST_BPM

EMIT: Final = "emit"
FALLBACK: Final = "fallback"
CHECKPOINT: Final = "checkpoint"
DEFER: Final = "defer:next-phrase"

Start = Literal["now", "downbeat"]
"""When a phrase begins: at once, or with a bar of the mesh."""

MAX_PHRASES: Final = 16
MAX_STEPS: Final = 8

_DOCUMENT_NAME: Final = "score"
_NAMED_STEP: Final = re.compile(rf"({EMIT}|{FALLBACK}):[A-Za-z0-9][A-Za-z0-9._-]{{0,63}}")


class Span(NamedTuple):
    """The beginning and end of a phase, in beats from the beginning of the phrase."""

    phase: str
    begins: int
    ends: int


def _check_unique(steps: tuple[str, ...]) -> tuple[str, ...]:
    if len(steps) > MAX_STEPS:
        raise flaw(f"has {len(steps)}; at most {MAX_STEPS} fit")
    for index, step in enumerate(steps):
        if step in steps[:index]:
            raise flaw(f"{shown(step)} is written twice", index)
    return steps


def _check_exhausted_steps(steps: tuple[str, ...]) -> tuple[str, ...]:
    for index, step in enumerate(steps):
        if not _NAMED_STEP.fullmatch(step):
            raise flaw(f"{shown(step)} is no step", index)
    fallbacks = [index for index, step in enumerate(steps) if step.startswith(FALLBACK)]
    if len(fallbacks) > 1:
        raise flaw("there is a fallback before, and one is enough", fallbacks[1])
    return steps


def _check_overrun_steps(steps: tuple[str, ...]) -> tuple[str, ...]:
    for index, step in enumerate(steps):
        if step not in (CHECKPOINT, DEFER):
            raise flaw(f"{shown(step)} is no step", index)
    return steps


_Steps = Annotated[Texts, AfterValidator(_check_unique)]
_Beats = Annotated[int, Field(ge=1, le=LONGEST_BAR)]
_BEATS_TEXT: Final = f"beats, an integer from 1 to {LONGEST_BAR}"
_Waiting = Annotated[int, Field(ge=0, le=LONGEST_BAR)]
_WAITING_TEXT: Final = f"beats, an integer from 0 to {LONGEST_BAR}"


class Phases(BaseModel):
    """The beats of each phase."""

    model_config = STRICT

    plan: _Beats = Field(description=_BEATS_TEXT)
    work: _Beats = Field(description=_BEATS_TEXT)
    review: _Beats = Field(description=_BEATS_TEXT)


class WaitBudget(BaseModel):
    """The beats of a phrase that may be spent waiting: hard limits."""

    model_config = STRICT

    help: _Waiting = Field(2, description=_WAITING_TEXT)
    io: _Waiting = Field(1, description=_WAITING_TEXT)


class Retry(BaseModel):
    """The number of phrases, including the first, and whether they get shorter."""

    model_config = STRICT

    max_phrases: Annotated[int, Field(ge=1, le=MAX_PHRASES)] = Field(
        2, description=f"an integer from 1 to {MAX_PHRASES}"
    )
    backoff: Literal["geometric", "none"] = Field("geometric", description="geometric or none")


class Escalation(BaseModel):
    """The steps taken when a wait budget is exhausted or a phase overruns."""

    model_config = STRICT

    on_wait_exhausted: Annotated[_Steps, AfterValidator(_check_exhausted_steps)] = Field(
        ("emit:needs-attention",),
        description=f"an array of {EMIT}:NAME and one {FALLBACK}:NAME; "
        "names are 1 to 64 letters, digits, dots, dashes and underscores",
    )
    on_overrun: Annotated[_Steps, AfterValidator(_check_overrun_steps)] = Field(
        (CHECKPOINT, DEFER), description=f"an array of {CHECKPOINT} and {DEFER}"
    )

    @property
    def fallback(self) -> str | None:
        """The fallback for an exhausted wait."""
        return next(iter(self._names_of(FALLBACK)), None)

    @property
    def emits(self) -> list[str]:
        """The events emitted for an exhausted wait."""
        return self._names_of(EMIT)

    def _names_of(self, kind: str) -> list[str]:
        parts = (step.partition(":") for step in self.on_wait_exhausted)
        return [name for found, _, name in parts if found == kind]


class Score(BaseModel):
    """The score of a task. Without phases, the bar is divided among them 1 : 2 : 1."""

    model_config = STRICT

    tempo: Annotated[float, Field(ge=SLOWEST_BPM, le=FASTEST_BPM)] | None = Field(
        None,
        description=f"beats a minute, a number from 1/60 to {FASTEST_BPM:g}; a hint, the cluster's holds",
    )
    bar_len: Annotated[int, Field(ge=len(PHASES), le=LONGEST_BAR)] = Field(
        DEFAULT_BAR, description=f"an integer from {len(PHASES)} to {LONGEST_BAR}"
    )
    phases: Phases = Field(
        description="beats for plan, work and review that sum to bar_len, or to a multiple of it"
    )
    start: Start | None = Field(
        None, description="downbeat: with a bar of the mesh, whose phases it shares; or now"
    )
    wait_budget: WaitBudget = Field(WaitBudget.model_construct(), description="beats for help and io")
    retry: Retry = Field(Retry.model_construct(), description="a map of max_phrases and backoff")
    escalation: Escalation = Field(
        Escalation.model_construct(), description="a map of on_wait_exhausted and on_overrun"
    )

    @model_validator(mode="before")
    @classmethod
    def _add_default_phases(cls, fields: Any) -> Any:
        if not isinstance(fields, Mapping) or "phases" in fields:
            return fields
        bar = fields.get("bar_len", DEFAULT_BAR)
        is_bar = type(bar) is int and len(PHASES) <= bar <= LONGEST_BAR
        beats = divide_beats(bar if is_bar else DEFAULT_BAR, {"plan": 1, "work": 2, "review": 1})
        return {**fields, "phases": beats}

    @model_validator(mode="after")
    def _check_bar_length(self) -> Self:
        if (total := sum(self.attempt(1).values())) % self.bar_len:
            wrong = f"they sum to {total} beats, and bar_len is {self.bar_len}"
            advice = f"set bar_len: {total}, or change them" if total <= LONGEST_BAR else "change them"
            raise flaw(f"{wrong}; {advice}", "phases")
        return self

    @classmethod
    def built_in(cls) -> Self:
        """Return the default score."""
        return cls.of_document({})

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Self:
        """Return the score of a stored document, or of fields made in code."""
        return build_model(cls, document, called=_DOCUMENT_NAME, bad=BadScore)

    def document(self) -> dict[str, Any]:
        """Return the document to store; defaults are omitted."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def attempt(self, number: int) -> dict[str, int]:
        """Return the beats of each phase in the n-th phrase, from 1."""
        if number < 1:
            raise BadValue(f"attempt must be at least 1, got {number}")
        shrink = 2 ** min(number - 1, LONGEST_BAR) if self.retry.backoff == "geometric" else 1
        return {phase: max(1, getattr(self.phases, phase) // shrink) for phase in PHASES}

    def boundaries(self, attempt: int) -> list[Span]:
        """Return the beginning and end of each phase in the n-th phrase."""
        spans: list[Span] = []
        for phase, beats in self.attempt(attempt).items():
            begins = spans[-1].ends if spans else 0
            spans.append(Span(phase, begins, begins + beats))
        return spans


def _check_address(text: str) -> str:
    try:
        ucxl.parse(text)
    except BadAddress as bad:
        raise flaw(str(bad)) from None
    return text


def _check_budget(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields unchanged if they are those of a budget."""
    try:
        Budget.model_validate(fields)
    except ValidationError as error:
        for path, wrong in flaws_of(error.errors(include_url=False), Budget, "a budget"):
            raise flaw(wrong, *path) from None
    return fields


class ScoreFile(BaseModel):
    """A score file: the score, its deliverable and its budget."""

    model_config = STRICT

    score: Score = Field(
        description="a map of tempo, bar_len, phases, start, wait_budget, retry and escalation"
    )
    ucxl: Annotated[str, AfterValidator(_check_address)] | None = Field(
        None, description="the address of a deliverable, such as ucxl://proj:any/*/task/ingest"
    )
    budget: Annotated[dict[str, Any], AfterValidator(_check_budget)] | None = None


def parse_score(text: str | bytes, name: str = _DOCUMENT_NAME) -> ScoreFile:
    """Return the score of a YAML or JSON text. Raises `BadScore` with all faults, by line."""
    return read_model(ScoreFile, text, name, called=_DOCUMENT_NAME, bad=BadScore)
