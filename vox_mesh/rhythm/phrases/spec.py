"""What a phrase is played from, and who plays in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal

from vox_mesh.messages.bus import Bus
from vox_mesh.model.rhythm.score import Score
from vox_mesh.rhythm.budgets.allowance import Allowance
from vox_mesh.rhythm.budgets.budgets import Budgets
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.rhythm.help.help import Help
from vox_mesh.rhythm.reports.status import StatusDesk

WRITE_S: Final = 3.0
"""Whatever a phrase writes, it waits no longer for it."""

Start = Literal["now", "downbeat"]
"""When a phrase begins."""

Fallbacks = Mapping[str, Callable[[], Any]]
"""What is done instead, by its name in the score: plain functions, or such as are awaited."""

State = Callable[[], Any]
"""Tells what a checkpoint should keep; it may be awaited."""


class RetryPosition(Enum):
    """Where a phrase stands among the retries of its task."""

    ALONE = "alone"
    FOLLOWED = "followed"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class PhraseParts:
    """What plays together in a phrase."""

    ground: RhythmContext
    status: StatusDesk
    bus: Bus
    budgets: Budgets
    help: Help


@dataclass(frozen=True, slots=True)
class PhraseSpec:
    """What is to be played."""

    score: Score
    task: str
    agent: str
    allowance: Allowance
    fallbacks: Fallbacks = field(default_factory=dict)
    state: State | None = None
    start: Start = "now"
    job_id: str | None = None
    role: str = ""
