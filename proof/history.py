"""The operations and observations of nodes, as lines of JSON that can be checked later and repeatedly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any, Final

import orjson

from vox_mesh.errors import MeshError, OutcomeUnknown

Data = dict[str, Any]


class Step(StrEnum):
    """What a line records: the start of an operation, its outcome, or a note."""

    CALL = "call"
    OK = "ok"
    NO = "no"
    """It had no effect, and never will."""
    UNKNOWN = "unknown"
    """Outcome unknown: it may have had its effect, or may still have it."""
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a history."""

    at: float
    """In seconds, by a clock that all nodes of a run share and that never steps."""
    who: str
    incarnation: int
    """How often this node had started: nothing in its memory survives a restart."""
    what: str
    step: Step
    number: int
    """The number of the operation in this incarnation."""
    data: Data

    def line(self) -> bytes:
        """Return the line to write."""
        fields = (self.at, self.who, self.incarnation, self.what, self.step, self.number, self.data)
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def read(cls, line: bytes) -> Event:
        """Parse a line."""
        at, who, incarnation, what, step, number, data = orjson.loads(line)
        return cls(at, who, incarnation, what, Step(step), number, data)


@dataclass(slots=True)
class OperationRecord:
    """An operation in progress: record its outcome with `ok`, `no` or `unknown`."""

    _write: Callable[[Step, Data], None]
    step: Step | None = None

    def ok(self, **data: Any) -> None:
        """Record that it took effect."""
        self._end(Step.OK, data)

    def no(self, **data: Any) -> None:
        """Record that it was rejected, or never attempted."""
        self._end(Step.NO, data)

    def unknown(self, **data: Any) -> None:
        """Record that its outcome is unknown."""
        self._end(Step.UNKNOWN, data)

    @property
    def is_ok(self) -> bool:
        """Whether it is known to have taken effect."""
        return self.step is Step.OK

    def _end(self, step: Step, data: Data) -> None:
        assert self.step is None, "a deed ends once"
        self.step = step
        self._write(step, data)


class Recorder:
    """Write the events of one incarnation of a node, each when it happens."""

    def __init__(
        self, who: str, incarnation: int, now: Callable[[], float], keep: Callable[[Event], None]
    ) -> None:
        self.who = who
        self.incarnation = incarnation
        self.now = now
        self._keep = keep
        self._numbers = count(1)

    def note(self, what: str, **data: Any) -> None:
        """Write a note."""
        self._write(what, Step.NOTE, 0, data)

    @contextmanager
    def operation(self, what: str, **data: Any) -> Iterator[OperationRecord]:
        """Record an operation from start to outcome. A `MeshError` is its outcome, and is not raised again.

        An operation that ends otherwise without an outcome, because it was cancelled or crashed, is unknown.
        """
        number = next(self._numbers)
        self._write(what, Step.CALL, number, data)
        record = OperationRecord(lambda step, data: self._write(what, step, number, data))
        try:
            yield record
        except OutcomeUnknown as error:
            if record.step is None:
                record.unknown(error=type(error).__name__)
        except MeshError as error:
            if record.step is None:
                record.no(error=type(error).__name__)
        except BaseException as error:
            if record.step is None:
                record.unknown(error=type(error).__name__)
            raise
        else:
            assert record.step is not None, f"{what} ended without a word"

    def _write(self, what: str, step: Step, number: int, data: Data) -> None:
        self._keep(Event(self.now(), self.who, self.incarnation, what, step, number, data))


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation and its outcome."""

    who: str
    incarnation: int
    number: int
    what: str
    began: float
    args: Data
    ended: float = float("inf")
    """When its outcome was known; never, if its process was killed first."""
    step: Step = Step.UNKNOWN
    result: Data = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        """Whether it is known to have taken effect."""
        return self.step is Step.OK

    @property
    def may_have_happened(self) -> bool:
        """Whether it may have taken effect."""
        return self.step is not Step.NO

    def __str__(self) -> str:
        ended = "-" if self.ended == float("inf") else f"{self.ended:.3f}"
        data = f"{self.what} {self.args} → {self.step} {self.result}"
        return f"{self.who}.{self.incarnation}#{self.number} {self.began:.3f}…{ended} {data}"


class History:
    """All events of a run, in the order of their times."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events: Final = sorted(events, key=lambda event: event.at)
        self._notes: dict[str, list[Event]] = defaultdict(list)
        self._operations: dict[str, list[Operation]] = defaultdict(list)
        self._sort()

    @classmethod
    def read(cls, folder: Path) -> History:
        """Read the histories in a folder; a line that a killed process could not complete is left out."""
        whole = (path.read_bytes() for path in sorted(folder.glob("*.jsonl")))
        lines = (line for each in whole for line in each.splitlines(keepends=True))
        return cls(Event.read(line) for line in lines if line.endswith(b"\n"))

    def notes(self, what: str) -> list[Event]:
        """Return the notes of this kind, in order."""
        return self._notes.get(what, [])

    def operations(self, *what: str) -> list[Operation]:
        """Return the operations of these kinds, in the order of their starts."""
        found = [operation for each in what for operation in self._operations.get(each, [])]
        return sorted(found, key=lambda operation: operation.began)

    @property
    def all_operations(self) -> list[Operation]:
        """The operations of every kind."""
        return self.operations(*self._operations)

    def _sort(self) -> None:
        open_: dict[tuple[str, int, int], Event] = {}
        for event in self.events:
            key = event.who, event.incarnation, event.number
            if event.step is Step.NOTE:
                self._notes[event.what].append(event)
            elif event.step is Step.CALL:
                open_[key] = event
            else:
                call = open_.pop(key)
                self._operations[call.what].append(_operation(call, event))
        for call in open_.values():
            self._operations[call.what].append(_operation(call))


def _operation(call: Event, end: Event | None = None) -> Operation:
    known = (call.who, call.incarnation, call.number, call.what, call.at, call.data)
    return Operation(*known) if end is None else Operation(*known, end.at, end.step, end.data)
