"""Promises of help: an answer within a number of beats, and the outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, Self

from vox_mesh.errors import BadValue
from vox_mesh.model.base.ulid import is_ulid
from vox_mesh.model.documents.documents import short
from vox_mesh.model.messages.records import THREAD

MAX_HELP_BEATS: Final = 100_000
MAX_ON_FAIL: Final = 1_024
MAX_REASON: Final = 1_024
"""The length of the reason for which a promise is withdrawn."""


class HelpState(StrEnum):
    """What became of a request for help. `asked` and `promised` are open."""

    ASKED = "asked"
    PROMISED = "promised"
    KEPT = "kept"
    """Answered in time."""
    BROKEN = "broken"
    """Answered late, or the promise was withdrawn."""
    EXPIRED = "expired"
    """Promised, but not answered."""
    UNANSWERED = "unanswered"
    """Not even promised."""


@dataclass(frozen=True)
class HelpThread:
    """A request for help with its promise and outcome. Times are by the database's clock."""

    thread_id: str
    asker: str
    task_id: str
    asked_ms: int
    closes_ms: int
    """When the thread closes without an answer."""
    state: str = HelpState.ASKED
    helper: str | None = None
    promise_beats: int | None = None
    confidence: float | None = None
    fail_after_beats: int | None = None
    on_fail: str = ""
    promised_ms: int | None = None
    due_ms: int | None = None
    """Until when an answer keeps the promise."""
    ended_ms: int | None = None
    answer_id: str | None = None
    asked_of: str | None = None
    """The agent or role that was asked, as long as the request is kept."""

    @property
    def address(self) -> str:
        """The thread's address."""
        return THREAD + self.thread_id

    @property
    def is_open(self) -> bool:
        """Whether the thread has no outcome yet."""
        return self.ended_ms is None


@dataclass(frozen=True, slots=True)
class HelpPromise:
    """An answer within `promise_beats`; after `fail_after_beats` the thread closes."""

    thread_id: str
    promise_beats: int
    confidence: float
    fail_after_beats: int
    on_fail: str = ""
    """The fallback for the asker."""

    def __post_init__(self) -> None:
        thread_of(self.thread_id)
        checked_beats("promise_beats", self.promise_beats)
        checked_beats("fail_after_beats", self.fail_after_beats, minimum=self.promise_beats)
        if type(self.confidence) not in (int, float) or not 0 <= self.confidence <= 1:
            raise BadValue(f"confidence must be a number from 0 to 1, got {short(self.confidence)}")
        if type(self.on_fail) is not str or len(self.on_fail) > MAX_ON_FAIL:
            raise BadValue(
                f"on_fail must be a text of at most {MAX_ON_FAIL} characters, got {short(self.on_fail)}"
            )

    @classmethod
    def parse(cls, document: Any) -> Self:
        """Return the promise of a received document."""
        if not isinstance(document, Mapping):
            raise BadValue(f"promise must be an object, got {short(document)}")
        names = cls.__slots__
        if unknown := document.keys() - set(names):
            raise BadValue(
                f"fields of a promise must be among {', '.join(names)}, got {short(min(unknown, key=str))}"
            )
        for name in names[:-1]:
            if name not in document:
                raise BadValue(f"promise must have the field {name}")
        return cls(**document)

    def document(self) -> dict[str, Any]:
        """Return the promise as a JSON object."""
        return asdict(self) | {"thread_id": THREAD + thread_of(self.thread_id)}


def thread_of(text: Any) -> str:
    """Return the id of a thread, given as an id or address."""
    thread_id = text.removeprefix(THREAD) if isinstance(text, str) else ""
    if not is_ulid(thread_id):
        raise BadValue(f"help thread must be an id, with or without {THREAD}, got {short(text)}")
    return thread_id


def checked_beats(name: str, beats: Any, *, minimum: int = 1) -> int:
    """Return the number of beats if it is in bounds, else raise `BadValue`."""
    if type(beats) is not int or not minimum <= beats <= MAX_HELP_BEATS:
        raise BadValue(f"{name} must be an integer from {minimum} to {MAX_HELP_BEATS}, got {short(beats)}")
    return beats


def verdict(due_ms: int | None, closes_ms: int, answered_ms: int | None = None) -> HelpState:
    """Return the outcome of a thread from its due time, closing time and answer time.

    An answer without a promise is in time while the thread is open.
    """
    if answered_ms is None or answered_ms >= closes_ms:
        return HelpState.UNANSWERED if due_ms is None else HelpState.EXPIRED
    return HelpState.KEPT if due_ms is None or answered_ms <= due_ms else HelpState.BROKEN
