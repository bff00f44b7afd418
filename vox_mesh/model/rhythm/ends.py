"""How a phrase ended: what it used, what it waited, what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from vox_mesh.model.rhythm.costs import Resources


class PhraseOutcome(StrEnum):
    """What came of a phrase."""

    DONE = "done"
    DEGRADED = "degraded"
    DEFERRED = "deferred"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PhraseBegin:
    """The beginning of an attempt at a job, which is kept until its end is recorded."""

    phrase_id: str
    job_id: str
    claim_token: int
    agent_id: str
    account: str
    role: str
    attempt: int
    began_ms: int


@dataclass(frozen=True, slots=True)
class PhraseEnd:
    """The end of a phrase, as it is recorded. What it cost, and its bar, follow from it."""

    phrase_id: str
    """A ULID."""
    agent_id: str
    task_id: str
    outcome: PhraseOutcome
    began_ms: int
    ended_ms: int
    beats: Mapping[str, float] = field(default_factory=dict)
    """How many were used, by phase."""
    waited: Mapping[str, float] = field(default_factory=dict)
    """How many of them were waited, by wait budget."""
    attempt: int = 1
    overruns: int = 0
    first_useful_ms: int | None = None
    resources: Resources = Resources()  # noqa: RUF009 - it is frozen
    account: str = ""
    """Who is charged."""
    role: str = ""
    """By whose rate beats are charged; empty for the default one."""
    job_id: str | None = None
    note: str = ""

    @property
    def bu(self) -> float:
        """How many beats it used in all: a beat is the unit of cost."""
        return sum(self.beats.values())
