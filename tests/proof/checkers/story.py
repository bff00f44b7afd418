"""Histories that are made up for a test: who did what, and what the database held in the end."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from proof.final_state import TABLES
from proof.history import Event, History, Recorder, Step
from proof.verdicts import Check, evaluate
from proof.witness import WITNESSES

_COLUMNS = {table.name: {**dict.fromkeys(table.key + table.others), "id": 0} for table in TABLES}
_WITNESSES = {witness.name for witness in WITNESSES}


class Story:
    """Events, one after the other, a second apart."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._seconds = count(1)
        self._ids = count(1)

    def node(self, who: str, incarnation: int = 1) -> Recorder:
        """Writes what a player does."""
        return Recorder(who, incarnation, lambda: float(next(self._seconds)), self.events.append)

    def did(self, who: str, what: str, args: dict[str, Any], step: Step = Step.OK, **result: Any) -> None:
        """A deed and its end."""
        with self.node(who).operation(what, **args) as record:
            {Step.OK: record.ok, Step.NO: record.no, Step.UNKNOWN: record.unknown}[step](**result)

    def final(self, table: str, **row: Any) -> None:
        """A row that was there in the end; those of a witness are numbered, and mostly updates."""
        text = {"id": next(self._ids), "deed": "update"} if table in _WITNESSES else {}
        self.node("stage").note("final", table=table, row={**_COLUMNS[table], **text, **row})

    def history(self) -> History:
        """All of it."""
        return History(self.events)


def faults(checks: Iterable[Check], name: str, story: Story) -> list[str]:
    """What a check finds in a story. It must have looked at something."""
    (check,) = [each for each in checks if each.name == name]
    verdict = evaluate(check, story.history())
    assert verdict.looks or verdict.faults
    return list(verdict.faults)
