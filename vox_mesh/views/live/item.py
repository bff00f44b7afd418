"""One thing that needs a person."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

import orjson

from vox_mesh.errors import BadValue

T = TypeVar("T")

MAX_TITLE: Final = 200


class AttentionKind(StrEnum):
    """What it is about."""

    CONFLICT = "conflict"
    QUESTION = "question"
    APPROVAL = "approval"
    DEAD_LETTER = "dead_letter"
    OVERDUE_ACK = "overdue_ack"
    FAILED_JOB = "failed_job"
    BROKEN_PROMISE = "broken_promise"
    BUDGET = "budget"
    STUCK_AGENT = "stuck_agent"
    NODE_DEAD = "node_dead"


class Urgency(StrEnum):
    """How soon it needs a person. `now`: work waits for a decision."""

    NOW = "now"
    SOON = "soon"
    LATER = "later"


@dataclass(frozen=True, slots=True)
class ScreenLink:
    """The screen of the console that shows it, and its id there."""

    screen: str
    id: str


@dataclass(frozen=True, slots=True)
class AttentionItem:
    """One thing that needs a person. `id` is unique within its kind, `since_ms` a time since the epoch.

    `title` and `detail` contain texts of agents: show them as text. `more` is what its action needs.
    """

    kind: AttentionKind
    id: str
    title: str
    detail: str
    since_ms: int
    urgency: Urgency
    link: ScreenLink
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def mark(self) -> tuple[object, ...]:
        """Return what must differ for a change: the time that passes is none."""
        return self.kind, self.id, self.urgency, self.title, self.detail


def readable(records: str, make: Callable[[Sequence[Any]], T]) -> Iterator[T]:
    """Yield what is made of records in hex, without those of hostile rows."""
    for each in orjson.loads(records):
        with suppress(BadValue, ValueError, TypeError, OverflowError, KeyError, AttributeError):
            yield make(orjson.loads(bytes.fromhex(each)))
