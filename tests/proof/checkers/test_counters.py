"""What the judges of counters find, and what they have nothing against."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from proof.checkers.counters import COUNTER_CHECKS
from proof.history import Step
from proof.judge import evaluate_all
from proof.workloads.counters import COUNTERS
from tests.proof.calm import run_calmly
from tests.proof.checkers.timed import Lines, did, faults, final, noted

_KEY = "counter:1"
_NEW: list[Any] = [0, None, None]

Row = list[Any]


def _wrote(
    who: str,
    times: tuple[float, float],
    base: Row,
    values: dict[str, Any],
    step: Step = Step.OK,
    strategy: str = "TakeRight",
    **result: Any,
) -> Lines:
    text = {"over": base} if step is Step.OK else {}
    args = {"key": _KEY, "base": base, "values": values, "strategy": strategy}
    return did(who, "counter.write", times, args, step, **(text | result))


def _added(who: str, times: tuple[float, float], base: Row, step: Step = Step.OK, **result: Any) -> Lines:
    return _wrote(who, times, base, {"importance": base[0] + 1, "content": who}, step, **result)


def _updated(who: str, times: tuple[float, float], step: Step, **result: Any) -> Lines:
    return did(who, "counter.update", times, {"key": _KEY, "mark": who}, step, **result)


def _read(began: float, row: Row) -> Lines:
    return did("eve", "counter.read", (began, began + 0.5), {"key": _KEY}, row=row)


def _end(row: Row) -> Lines:
    importance, content, agent_id = row
    text = {"memory_key": _KEY, "importance": importance, "content": content, "agent_id": agent_id}
    return final("memories", text)


_BY_ADA: Row = [1, "ada", None]
_LOST = noted("stage", "store.went_back", 3.0, kept_until=0.5, lost_at=2.9, back_at=3.0)

POSSIBLE = {
    "one after another": [
        *(_added("ada", (1, 2), _NEW), _added("bob", (3, 4), _BY_ADA), _read(5, [2, "bob", None])),
        _end([2, "bob", None]),
    ],
    "one that lost, and was reported": [
        *(_added("ada", (1, 3), _NEW), _added("bob", (2, 4), _NEW, Step.NO, row=_BY_ADA)),
    ],
    "one that was cut off, and shows later": [
        *(_added("ada", (1, math.inf), _NEW), _read(3, _NEW), _read(5, _BY_ADA)),
    ],
    "one that was cut off, and shows in the end": [_added("ada", (1, math.inf), _NEW), _end(_BY_ADA)],
    "one that was cut off, and never shows": [
        *(_added("ada", (1, math.inf), _NEW), _added("bob", (3, 4), _NEW), _end([1, "bob", None])),
    ],
    "updates, one of them cut off": [
        *(_updated("ada", (1, math.inf), Step.UNKNOWN), _updated("bob", (3, 4), Step.OK, over=_BY_ADA)),
        _end([2, "bob", None]),
    ],
    "a merge of two": [
        *(_added("ada", (1, 2), _NEW), _read(0, _NEW)),
        _wrote("bob", (3, 4), _NEW, {"agent_id": "bob"}, strategy="Merge", over=_BY_ADA),
        _end([1, "ada", "bob"]),
    ],
    "a merge that was cut off": [
        *(_added("ada", (1, 2), _NEW), _read(0, _NEW)),
        _wrote("bob", (3, math.inf), _NEW, {"agent_id": "bob"}, strategy="Merge"),
        _read(6, [1, "ada", "bob"]),
    ],
    "one that overwrote another, and was reported": [
        _added("ada", (1, 2), _NEW),
        _wrote("bob", (3, 4), _NEW, {"content": "bob"}, strategy="TakeLeft", over=_BY_ADA),
        _read(5, [1, "bob", None]),
    ],
    "one that took its own side where a rollback had lost the row": [
        *(_added("ada", (1, 2), _NEW), _LOST, _read(4, _NEW)),
        _wrote("bob", (5, 6), _BY_ADA, {"importance": 2, "content": "bob"}, strategy="TakeLeft"),
        _read(7, [2, "bob", None]),
    ],
}

IMPOSSIBLE = {
    "two over the same version": [_added("ada", (1, 2), _NEW), _added("bob", (3, 4), _NEW)],
    "an old version read": [_added("ada", (1, 2), _NEW), _read(3, _NEW)],
    "a new version gone": [_added("ada", (1, math.inf), _NEW), _read(3, _BY_ADA), _read(5, _NEW)],
    "a refused write that shows": [_added("ada", (1, 2), _NEW, Step.NO, error="Unreachable"), _end(_BY_ADA)],
    "a write that is lost": [_added("ada", (1, 2), _NEW), _end(_NEW)],
    "based on a lost row": [
        *(_added("ada", (1, 2), _NEW), _LOST, _read(4, _NEW)),
        _added("bob", (5, 6), _BY_ADA),
    ],
    "seen before it was written": [_read(1, _BY_ADA), _added("ada", (3, math.inf), _NEW)],
}


@pytest.mark.parametrize("name", POSSIBLE)
def test_what_can_have_been_reported_of_a_row_passes(name: str) -> None:
    assert faults(COUNTER_CHECKS, "counters-linearizable", *POSSIBLE[name]) == []


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_can_not_have_been_reported_of_a_row_is_found(name: str) -> None:
    assert faults(COUNTER_CHECKS, "counters-linearizable", *IMPOSSIBLE[name])


@pytest.mark.parametrize(("count", "is_possible"), [(0, False), (1, True), (2, True), (3, False)])
def test_a_counter_counts_what_was_reported_and_at_most_what_may_have_been(
    count: int, is_possible: bool
) -> None:
    text = [_added("ada", (1, 2), _NEW), _updated("bob", (3, math.inf), Step.UNKNOWN)]
    refused = _added("cyd", (5, 6), _NEW, Step.NO, row=_BY_ADA)
    found = faults(COUNTER_CHECKS, "no-lost-update", *text, refused, _end([count, "", None]))
    assert (found == []) is is_possible


def test_a_calm_run_of_counters_breaks_no_promise(tmp_path: Path) -> None:
    history = run_calmly(tmp_path, COUNTERS, seconds=120.0)
    said = evaluate_all(history)
    assert [str(each) for each in said if not each.holds] == []
    looks = {each.name: each.looks for each in said}
    assert all(looks[check.name] > 10 for check in COUNTER_CHECKS), looks
    assert {operation.args["strategy"] for operation in history.operations("counter.write")} >= {
        "TakeLeft",
        "Merge",
        "Manual",
    }
