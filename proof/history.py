"""What players did and saw, as lines of JSON that can be judged later, elsewhere, and more than once."""

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
    """What a line tells of a deed, or that it is a remark."""

    CALL = "call"
    OK = "ok"
    NO = "no"
    """It had no effect, and never will."""
    UNKNOWN = "unknown"
    """It may have had its effect, or may have it yet."""
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a history."""

    at: float
    """In seconds, by a clock that all players of a run share and that never steps."""
    who: str
    incarnation: int
    """How often this player had begun: what it knew before is gone."""
    what: str
    step: Step
    number: int
    """Of the deed, in this life."""
    data: Data

    def line(self) -> bytes:
        """As it is written."""
        fields = (self.at, self.who, self.incarnation, self.what, self.step, self.number, self.data)
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def read(cls, line: bytes) -> Event:
        """What was written as a line."""
        at, who, incarnation, what, step, number, data = orjson.loads(line)
        return cls(at, who, incarnation, what, Step(step), number, data)


@dataclass(slots=True)
class OperationRecord:
    """A deed that is under way: say how it ended."""

    _write: Callable[[Step, Data], None]
    step: Step | None = None

    def ok(self, **data: Any) -> None:
        """It took place."""
        self._end(Step.OK, data)

    def no(self, **data: Any) -> None:
        """It was refused, or never tried."""
        self._end(Step.NO, data)

    def unknown(self, **data: Any) -> None:
        """Nobody can say yet."""
        self._end(Step.UNKNOWN, data)

    @property
    def is_ok(self) -> bool:
        """Whether it is known to have taken place."""
        return self.step is Step.OK

    def _end(self, step: Step, data: Data) -> None:
        assert self.step is None, "a deed ends once"
        self.step = step
        self._write(step, data)


class Recorder:
    """Writes what one life of one player does, each line when it happens."""

    def __init__(
        self, who: str, incarnation: int, now: Callable[[], float], keep: Callable[[Event], None]
    ) -> None:
        self.who = who
        self.incarnation = incarnation
        self.now = now
        self._keep = keep
        self._numbers = count(1)

    def note(self, what: str, **data: Any) -> None:
        """Remark on something."""
        self._write(what, Step.NOTE, 0, data)

    @contextmanager
    def operation(self, what: str, **data: Any) -> Iterator[OperationRecord]:
        """Do something whose beginning and end matter. An error of the mesh is its end, and goes no further.

        What ends otherwise without a word, because it was cancelled or broke, nobody knows the fate of.
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
    """A call and what came of it."""

    who: str
    incarnation: int
    number: int
    what: str
    began: float
    args: Data
    ended: float = float("inf")
    """When its end was known; never, if its player died before."""
    step: Step = Step.UNKNOWN
    result: Data = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        """Whether it is known to have taken place."""
        return self.step is Step.OK

    @property
    def may_have_happened(self) -> bool:
        """Whether it took place, for all that is known."""
        return self.step is not Step.NO

    def __str__(self) -> str:
        ended = "-" if self.ended == float("inf") else f"{self.ended:.3f}"
        data = f"{self.what} {self.args} → {self.step} {self.result}"
        return f"{self.who}.{self.incarnation}#{self.number} {self.began:.3f}…{ended} {data}"


class History:
    """All lines of a run, in the order of their times."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events: Final = sorted(events, key=lambda event: event.at)
        self._notes: dict[str, list[Event]] = defaultdict(list)
        self._operations: dict[str, list[Operation]] = defaultdict(list)
        self._sort()

    @classmethod
    def read(cls, folder: Path) -> History:
        """What players wrote into a folder; a line that a killed one could not end is left out."""
        whole = (path.read_bytes() for path in sorted(folder.glob("*.jsonl")))
        lines = (line for each in whole for line in each.splitlines(keepends=True))
        return cls(Event.read(line) for line in lines if line.endswith(b"\n"))

    def notes(self, what: str) -> list[Event]:
        """The remarks of this kind, in order."""
        return self._notes.get(what, [])

    def operations(self, *what: str) -> list[Operation]:
        """The deeds of these kinds, in the order in which they began."""
        found = [operation for each in what for operation in self._operations.get(each, [])]
        return sorted(found, key=lambda operation: operation.began)

    @property
    def all_operations(self) -> list[Operation]:
        """The deeds of every kind."""
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
