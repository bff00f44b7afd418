"""Promises of help: what a helper says it will do within how many beats, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from vox_mesh.errors import BadValue
from vox_mesh.model.base.ulid import is_ulid
from vox_mesh.model.documents.json_shapes import short

THREAD: Final = "hmmm://thread/"
"""What the address of a thread begins with."""

MAX_HELP_BEATS: Final = 100_000
MAX_ON_FAIL: Final = 1_024


class HelpState(StrEnum):
    """What became of a request for help. `asked` and `promised` are open."""

    ASKED = "asked"
    PROMISED = "promised"
    KEPT = "kept"
    """There was an answer in time."""
    BROKEN = "broken"
    """The answer was late, or the promise taken back."""
    EXPIRED = "expired"
    """There was a promise, and nothing more."""
    UNANSWERED = "unanswered"
    """There was not even a promise."""


class HelpThread(NamedTuple):
    """A request for help, and all that was said to it. Times are by the database's clock."""

    thread_id: str
    asker: str
    task_id: str
    asked_ms: int
    closes_ms: int
    """Then it is over, if nothing came of it before."""
    state: str = HelpState.ASKED
    helper: str | None = None
    promise_beats: int | None = None
    confidence: float | None = None
    fail_after_beats: int | None = None
    on_fail: str = ""
    promised_ms: int | None = None
    due_ms: int | None = None
    """By then an answer keeps the promise."""
    ended_ms: int | None = None
    answer_id: str | None = None

    @property
    def address(self) -> str:
        """Its address, as others write it."""
        return THREAD + self.thread_id

    @property
    def is_open(self) -> bool:
        """Whether nobody has said yet what came of it."""
        return self.ended_ms is None


@dataclass(frozen=True, slots=True)
class HelpPromise:
    """An answer within `promise_beats`; after `fail_after_beats` the thread closes, with or without one."""

    thread_id: str
    promise_beats: int
    confidence: float
    fail_after_beats: int
    on_fail: str = ""
    """What the asker should do instead, if it comes to nothing."""

    def __post_init__(self) -> None:
        thread_of(self.thread_id)
        checked_beats("promise_beats", self.promise_beats)
        checked_beats("fail_after_beats", self.fail_after_beats, least=self.promise_beats)
        if type(self.confidence) not in (int, float) or not 0 <= self.confidence <= 1:
            raise BadValue(f"a confidence of {short(self.confidence)}?", hint="a number from 0 to 1")
        if type(self.on_fail) is not str or len(self.on_fail) > MAX_ON_FAIL:
            raise BadValue(f"on_fail is {short(self.on_fail)}", hint=f"up to {MAX_ON_FAIL} characters")

    @classmethod
    def parse(cls, document: Any) -> Self:
        """A promise as somebody sent it."""
        if not isinstance(document, Mapping):
            raise BadValue(f"{short(document)} is no promise")
        names = cls.__slots__
        if unknown := document.keys() - set(names):
            raise BadValue(
                f"a promise has no {short(min(unknown, key=str))}", hint=f"it has {', '.join(names)}"
            )
        for name in names[:-1]:
            if name not in document:
                raise BadValue(f"the promise has no {name}")
        return cls(**document)

    def document(self) -> dict[str, Any]:
        """The promise as it is sent."""
        return asdict(self) | {"thread_id": THREAD + thread_of(self.thread_id)}


def thread_of(text: Any) -> str:
    """The id of a thread, from itself or from its address."""
    thread_id = text.removeprefix(THREAD) if isinstance(text, str) else ""
    if not is_ulid(thread_id):
        raise BadValue(f"{short(text)} is no thread of help", hint=f"{THREAD} and an id, or the id alone")
    return thread_id


def checked_beats(name: str, beats: Any, *, least: int = 1) -> int:
    """A number of beats that somebody may be made to wait."""
    if type(beats) is not int or not least <= beats <= MAX_HELP_BEATS:
        raise BadValue(f"{name} is {short(beats)}", hint=f"an integer from {least} to {MAX_HELP_BEATS}")
    return beats


def verdict(due_ms: int | None, closes_ms: int, answered_ms: int | None = None) -> HelpState:
    """What came of a thread, by when the answer was due, if one was promised, and when it came, if it did.

    An answer that nobody had promised is in time as long as the thread is open.
    """
    if answered_ms is None or answered_ms >= closes_ms:
        return HelpState.UNANSWERED if due_ms is None else HelpState.EXPIRED
    return HelpState.KEPT if due_ms is None or answered_ms <= due_ms else HelpState.BROKEN
