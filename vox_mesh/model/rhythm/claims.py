"""Status claims: the state of an agent's task in a beat."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, Self

from vox_mesh.errors import BadValue
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.documents.documents import Fields, is_count, is_unicode, is_word, shape_faults, short
from vox_mesh.model.rhythm.tempo import LONGEST_BAR

MAX_NOTES: Final = 1_000
MAX_TASK: Final = 1_000
MAX_SCORE: Final = 2_048
MAX_WAITS: Final = 16
"""The number of things a task may wait for at once."""


class ClaimState(StrEnum):
    """The state of a task."""

    PLANNING = "planning"
    EXECUTING = "executing"
    WAITING = "waiting"
    REVIEW = "review"
    DONE = "done"
    FAILED = "failed"


OVER: Final = frozenset({ClaimState.DONE, ClaimState.FAILED})
"""The terminal states of a task."""

USEFUL: Final = frozenset({ClaimState.PLANNING, ClaimState.EXECUTING, ClaimState.REVIEW, ClaimState.DONE})
"""The states in which a beat counts as useful."""

PHASE_OF: Final[Mapping[str, str]] = {
    ClaimState.PLANNING: "plan",
    ClaimState.EXECUTING: "work",
    ClaimState.REVIEW: "review",
}
"""The phase of a task by its state, where the state determines it."""

_RESULT_STATES: Final = frozenset({ClaimState.REVIEW, ClaimState.DONE})


def _is_address(value: Any) -> bool:
    return type(value) is str and 0 < len(value) <= MAX_TASK and value.isprintable()


def _is_beat(value: Any) -> bool:
    return type(value) is int and 1 <= value <= LONGEST_BAR


def _is_state(value: Any) -> bool:
    return isinstance(value, str) and value in frozenset(ClaimState)


def _are_waits(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) <= MAX_WAITS and all(map(_is_address, value))


def _is_fraction(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and math.isfinite(value) and 0 <= value <= 1)


def _are_notes(value: Any) -> bool:
    return type(value) is str and len(value) <= MAX_NOTES and "\0" not in value and is_unicode(value)


def _is_hlc(value: Any) -> bool:
    try:
        return type(value) is str and bool(Hlc.parse(value))
    except BadValue:
        return False


_FIELDS: Final[Fields] = {
    "agent_id": (is_word, "1 to 255 printable characters"),
    "task_id": (_is_address, f"1 to {MAX_TASK} printable characters"),
    "beat_index": (_is_beat, f"an integer from 1 to {LONGEST_BAR}"),
    "state": (_is_state, f"one of {', '.join(ClaimState)}"),
    "wait_for": (_are_waits, f"at most {MAX_WAITS} texts of 1 to {MAX_TASK} printable characters"),
    "beats_left": (lambda value: value is None or is_count(value), "an integer that is not negative"),
    "progress": (_is_fraction, "a number from 0 to 1"),
    "notes": (_are_notes, f"a text of at most {MAX_NOTES} characters"),
    "hlc": (_is_hlc, "a time such as 1800000000000-00000-NODE or 2025-09-03T02:12:27.183Z+17"),
}
_DEFAULTS: Final[Mapping[str, Any]] = {"wait_for": (), "beats_left": None, "progress": None, "notes": ""}
_OLD_BAR: Final = "bar"
_OLD_BEAT: Final = "beat"


@dataclass(frozen=True, slots=True)
class StatusClaim:
    """The state of an agent's task at a time. Raises `BadValue` with all faults."""

    agent_id: str
    task_id: str
    beat_index: int
    state: ClaimState
    wait_for: tuple[str, ...]
    beats_left: int | None
    progress: float | None
    notes: str
    hlc: str

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in _FIELDS}
        if faults := shape_faults("a status claim", values, _FIELDS):
            raise BadValue("; ".join(faults))
        object.__setattr__(self, "state", ClaimState(self.state))
        object.__setattr__(self, "wait_for", tuple(self.wait_for))

    @classmethod
    def of_document(cls, document: Any) -> Self:
        """Return the claim of a JSON object. The old form's `beat` is `beat_index`; its `bar` is dropped.

        A time in the form of a beat frame is taken for one of the agent.
        """
        if not isinstance(document, Mapping):
            raise BadValue(f"status claim must be an object, got {short(document)}")
        fields = {**_DEFAULTS, **document}
        fields.pop(_OLD_BAR, None)
        old_beat = fields.pop(_OLD_BEAT, None)
        if "beat_index" not in fields and old_beat is not None:
            fields["beat_index"] = old_beat
        with suppress(BadValue, KeyError, TypeError):
            fields["hlc"] = str(Hlc.read(fields["hlc"], fields["agent_id"]))
        if faults := shape_faults("a status claim", fields, _FIELDS):
            raise BadValue("; ".join(faults))
        return cls(**fields)

    def document(self) -> dict[str, Any]:
        """Return the claim as a JSON object."""
        return {**asdict(self), "wait_for": list(self.wait_for)}

    @property
    def is_over(self) -> bool:
        """Whether this is the last claim of the task."""
        return self.state in OVER

    @property
    def shows_use(self) -> bool:
        """Whether the task has shown a result: progress, a review, or completion."""
        return self.state in _RESULT_STATES or bool(self.progress)


def checked_score(name: Any) -> str | None:
    """Return the name of a score if it may be one, or `None`; else raise `BadValue`."""
    if name is None or (type(name) is str and 0 < len(name) <= MAX_SCORE and name.isprintable()):
        return name
    raise BadValue(f"score must be 1 to {MAX_SCORE} printable characters, got {short(name)}")
