"""The end of a phrase: its usage, waits and outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from vox_mesh.model.rhythm.costs import Resources


class PhraseOutcome(StrEnum):
    """The outcome of a phrase."""

    DONE = "done"
    DEGRADED = "degraded"
    DEFERRED = "deferred"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PhraseBegin:
    """The beginning of an attempt at a job, kept until its end is recorded."""

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
    """The recorded end of a phrase. Its cost and bar are derived from it."""

    phrase_id: str
    """A ULID."""
    agent_id: str
    task_id: str
    outcome: PhraseOutcome
    began_ms: int
    ended_ms: int
    beats: Mapping[str, float] = field(default_factory=dict)
    """Beats used, by phase."""
    waited: Mapping[str, float] = field(default_factory=dict)
    """Beats waited, by wait budget."""
    attempt: int = 1
    overruns: int = 0
    first_useful_ms: int | None = None
    resources: Resources = Resources()  # noqa: RUF009 - it is frozen
    account: str = ""
    """The account that is charged."""
    role: str = ""
    """The role whose rate is charged; empty for the default rate."""
    job_id: str | None = None
    note: str = ""

    @property
    def bu(self) -> float:
        """The total beats used: the unit of cost."""
        return sum(self.beats.values())
