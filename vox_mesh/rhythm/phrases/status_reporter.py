"""What a phrase says of its task, while it is played."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from vox_mesh.model.rhythm.claims import ClaimState
from vox_mesh.rhythm.reports.status import StatusDesk

PLAN: Final = "plan"
WORK: Final = "work"
REVIEW: Final = "review"

_STATES: Final = {PLAN: ClaimState.PLANNING, WORK: ClaimState.EXECUTING, REVIEW: ClaimState.REVIEW}


class StatusReporter:
    """Claims how the task stands, and remembers what is to be told of it in the end."""

    def __init__(self, status: StatusDesk, agent: str, task: str) -> None:
        self._status = status
        self._who = (agent, task)
        self._state = ClaimState.PLANNING
        self._progress: float | None = None
        self._notes = ""
        self._has_ended = False
        self._remarks: dict[str, None] = {}

    def remark(self, remark: str) -> None:
        """Remember this for the end; once, however often it is so."""
        self._remarks[remark] = None

    @property
    def remarks(self) -> list[str]:
        """What is to be told, in the order in which it came."""
        return list(self._remarks)

    def phase(self, name: str, beats_left: float) -> None:
        """A phase has begun."""
        self._state = _STATES[name]
        self._claim(self._state, beats_left)

    def progress(self, done: float, notes: str, beats_left: float) -> None:
        """The task got on."""
        self._status.claim(
            *self._who, self._state, beats_left=math.ceil(beats_left), progress=done, notes=notes
        )
        self._progress, self._notes = done, notes

    def waits(self, wait_for: Sequence[str], beats_left: float) -> None:
        """It waits, for so many beats at the most."""
        self._claim(ClaimState.WAITING, beats_left, wait_for=wait_for)

    def goes_on(self, beats_left: float) -> None:
        """It waits no longer."""
        self._claim(self._state, beats_left)

    def overran(self, phase: str) -> None:
        """A phase has taken all its beats."""
        self.remark(f"{phase} overran")
        self._claim(self._state, 0.0, overran=True)

    def falls_back(self, name: str, beats_left: float) -> None:
        """Something else is done instead."""
        self._claim(ClaimState.REVIEW, beats_left, notes=f"falls back on {name}")

    def ends(self, state: ClaimState, note: str) -> None:
        """The phrase is over. What still goes on of it says nothing any more."""
        self._claim(state, notes=note or self._notes)
        self._has_ended = True

    def _claim(
        self,
        state: ClaimState,
        beats_left: float | None = None,
        *,
        wait_for: Sequence[str] = (),
        notes: str | None = None,
        overran: bool = False,
    ) -> None:
        if self._has_ended:
            return
        self._status.claim(
            *self._who,
            state,
            wait_for=wait_for,
            beats_left=None if beats_left is None else math.ceil(beats_left),
            progress=self._progress,
            notes=self._notes if notes is None else notes,
            overran=overran,
        )
