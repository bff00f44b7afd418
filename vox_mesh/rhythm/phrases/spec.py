"""The specification of a phrase, and the services it uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from vox_mesh.messages.messages import Messages
from vox_mesh.model.rhythm.score import Score, Start
from vox_mesh.rhythm.budgets import Allowance, Budgets
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.rhythm.help import Help
from vox_mesh.rhythm.status_claims import StatusClaimWriter

WRITE_S: Final = 3.0
"""The timeout of every write of a phrase."""

Fallbacks = Mapping[str, Callable[[], Any]]
"""Functions or coroutine functions that replace an exhausted wait, by their names in the score."""

State = Callable[[], Any]
"""Returns the value to save as a checkpoint; may be a coroutine function."""


class RetryPosition(Enum):
    """The position of a phrase among the retries of its task."""

    ALONE = "alone"
    FOLLOWED = "followed"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class PhraseParts:
    """The services a phrase uses."""

    context: RhythmContext
    status: StatusClaimWriter
    messages: Messages
    budgets: Budgets
    help: Help


@dataclass(frozen=True, slots=True)
class PhraseSpec:
    """The specification of a phrase."""

    score: Score
    task: str
    agent: str
    allowance: Allowance
    fallbacks: Fallbacks = field(default_factory=dict)
    state: State | None = None
    start: Start = "now"
    job_id: str | None = None
    role: str = ""
    score_name: str | None = None
    """The address of the score file, or the kind of the job."""
