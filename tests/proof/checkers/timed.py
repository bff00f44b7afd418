"""Lines of a history that is made up for a test, each at a time of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import count
from typing import Any

from proof.history import Event, History, Step
from proof.verdicts import Check, evaluate

_numbers = count(1)

Lines = list[Event]


def did(
    who: str,
    what: str,
    times: tuple[float, float],
    args: dict[str, Any],
    step: Step = Step.OK,
    *,
    incarnation: int = 1,
    **result: Any,
) -> Lines:
    """A deed and its end, if it has one."""
    number, (began, ended) = next(_numbers), times
    call = Event(began, who, incarnation, what, Step.CALL, number, args)
    return [call] if ended == math.inf else [call, Event(ended, who, incarnation, what, step, number, result)]


def noted(who: str, what: str, at: float, incarnation: int = 1, /, **data: Any) -> Lines:
    """A remark."""
    return [Event(at, who, incarnation, what, Step.NOTE, 0, data)]


def final(table: str, *rows: dict[str, Any]) -> Lines:
    """Rows that were there in the end; that it was looked at, if there is none."""
    whole = rows or ({"table": "none"},)
    return [
        line
        for row in whole
        for line in noted("stage", "final", 1_000.0, table=table if rows else "none", row=row)
    ]


def faults(checks: Iterable[Check], name: str, *lines: Lines) -> list[str]:
    """What a check finds in these lines. It must have looked at something."""
    (check,) = [each for each in checks if each.name == name]
    verdict = evaluate(check, History(line for each in lines for line in each))
    assert verdict.looks or verdict.faults
    return list(verdict.faults)
