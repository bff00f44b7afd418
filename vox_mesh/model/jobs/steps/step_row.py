"""The stored rows of durable steps, and the links that make any change of one visible."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.model.base.json_text import read_stored

MAX_STEPS: Final = 10_000
"""The rows that one job may have."""

MAX_NAME: Final = 128
MAX_INLINE: Final = 16 * 1024
"""The maximum size in bytes of a result in its row; a larger one becomes an artifact."""

NO_LINK: Final = ""
"""The link before the first row."""

_NONE: Final = MappingProxyType[str, int]({})


class StepKind(StrEnum):
    """What a step does."""

    CALL = "call"
    SLEEP = "sleep"
    ASK = "ask"
    JOB = "job"
    MESSAGE = "message"
    CANCEL = "cancel"
    """A compensation, which runs if the job is aborted."""
    VALUE = "value"
    """A recorded value: a time, a random number or a version."""


class StepState(StrEnum):
    """How far a step is."""

    DONE = "done"
    FAILED = "failed"
    WAITING = "waiting"


class StepRow(NamedTuple):
    """One row: a result, a failure or a wait of the step at a place in the handler."""

    seq: int
    place: int
    name: str
    kind: str
    state: str
    value: str
    claim_token: int
    began_ms: int
    ended_ms: int
    link: str
    start_op: str
    signature: str | None

    @property
    def document(self) -> Any:
        """Return the value. Raises `BadValue` if it can't be read."""
        return read_stored(self.value)

    @property
    def digest(self) -> str:
        """Return the hash of the value."""
        return digest_of(self.value)

    def is_sound(self) -> bool:
        """Return whether the columns have the types that a worker writes: a hostile row may hold anything."""
        numbers = (self.seq, self.place, self.claim_token, self.began_ms, self.ended_ms)
        texts = (self.name, self.kind, self.state, self.value, self.link, self.start_op, self.signature or "")
        return all(type(each) is int for each in numbers) and all(type(each) is str for each in texts)

    def placed(self, seq: int, start_op: str, before: str) -> StepRow:
        """Return the row with its number, its attempt, and its link to the one before."""
        link = self._link(before, seq, start_op)
        return StepRow(seq, *self[1:9], link, start_op, self.signature)

    def follows(self, before: str) -> bool:
        """Return whether the row is linked to the one before, and was not changed since."""
        return self.link == self._link(before, self.seq, self.start_op)

    def _link(self, before: str, seq: int, start_op: str) -> str:
        _, place, name, kind, state, value, claim_token, began_ms, ended_ms, *_ = self
        what = (place, name, kind, state, digest_of(value))
        fields = (before, seq, *what, claim_token, began_ms, ended_ms, start_op)
        return hashlib.sha3_256(orjson.dumps(fields)).hexdigest()


def digest_of(value: str) -> str:
    """Return the hash of a stored value."""
    return hashlib.sha3_256(value.encode()).hexdigest()


def unbroken(rows: Iterable[StepRow], after: int = 0, link: str = NO_LINK) -> list[StepRow]:
    """Return the rows up to the first that is missing, changed or no row of a worker.

    `after` and `link`: the number and the link of the row before the first one.
    """
    found: list[StepRow] = []
    for seq, row in enumerate(rows, after + 1):
        if not row.is_sound() or row.seq != seq or not row.follows(link):
            break
        found.append(row)
        link = row.link
    return found


def by_place(rows: Sequence[StepRow]) -> dict[int, StepRow]:
    """Return the last row of each place, by place."""
    return {row.place: row for row in rows}


def occurrence_names(rows: Iterable[StepRow], before: Mapping[str, int] = _NONE) -> dict[int, str]:
    """Return the name of the step at each place, numbered from its second occurrence on: `fetch#2`.

    `before`: how many of the steps before these have a name.
    """
    names: dict[int, str] = {}
    counts = dict(before)
    for place, row in sorted(by_place(list(rows)).items()):
        counts[row.name] = count = counts.get(row.name, 0) + 1
        names[place] = row.name if count == 1 else f"{row.name}#{count}"
    return names
