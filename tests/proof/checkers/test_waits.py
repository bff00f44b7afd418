"""The checks of waits find what was over too early, came from nowhere, was not undone, or not kept."""

from __future__ import annotations

from typing import Any

import pytest

from proof.checkers.waits import WAIT_CHECKS
from tests.proof.checkers.story import Story, faults

_Line = tuple[str, dict[str, Any]]
_SOUND: tuple[_Line, ...] = (
    ("wait.over", {"job": "j", "waited_ms": 4_100, "least_s": 4.0}),
    ("!wait.send", {"job": "j", "value": 7}),
    ("wait.received", {"job": "j", "value": 7}),
    ("wait.result", {"job": "c", "value": 8}),
    ("wait.returned", {"job": "j", "value": 8}),
    ("wait.registered", {"job": "s", "key": "k", "place": 1}),
    ("wait.registered", {"job": "s", "key": "k", "place": 2}),
    ("!wait.abort", {"key": "k"}),
    ("wait.undone", {"job": "u", "token": 1, "key": "k", "place": 2}),
    ("wait.undone", {"job": "u", "token": 3, "key": "k", "place": 2}),
    ("wait.undone", {"job": "u", "token": 3, "key": "k", "place": 1}),
    ("step.effect", {"job": "o", "place": 1, "value": 1}),
    ("step.seen", {"job": "o", "place": 1, "value": 1}),
    ("step.seen", {"job": "o", "place": 2, "value": 2}),
    ("!step.fork", {"of": "o", "place": 2}),
    ("step.seen", {"job": "f", "place": 1, "value": 1}),
    ("step.effect", {"job": "f", "place": 2, "value": 3}),
    ("step.seen", {"job": "f", "place": 2, "value": 3}),
)
_RESULTS: dict[str, dict[str, Any]] = {"wait.abort": {"moved": ["s"]}, "step.fork": {"job": "f"}}


def _story(*lines: _Line) -> Story:
    story = Story()
    for what, data in lines:
        if what.startswith("!"):
            story.did("ann", what[1:], data, **_RESULTS.get(what[1:], {}))
        else:
            story.node("ann").note(what, **data)
    return story


def test_waits_as_they_should_be_have_no_fault() -> None:
    assert [faults(WAIT_CHECKS, check.name, _story(*_SOUND)) for check in WAIT_CHECKS] == [[]] * 6


@pytest.mark.parametrize(
    ("check", "at", "changed"),
    [
        ("wait-not-early", 0, {"waited_ms": 900}),
        ("wait-came", 2, {"value": 9}),
        ("wait-came", 4, {"value": 9}),
        ("undo-all", 6, {"place": 3}),
        ("undo-all", 8, {"key": "other"}),
        ("undo-order", 10, {"place": 3}),
        ("undo-order", 10, {"place": 2}),
        ("fork-keeps", 15, {"value": 5}),
        ("fork-keeps", 17, {"value": 2}),
    ],
)
def test_what_should_not_be_is_found(check: str, at: int, changed: dict[str, Any]) -> None:
    what, data = _SOUND[at]
    lines = (*_SOUND[:at], (what, {**data, **changed}), *_SOUND[at + 1 :])
    assert len(faults(WAIT_CHECKS, check, _story(*lines))) == 1


def test_two_results_of_one_wait_are_found() -> None:
    story = _story(*_SOUND, ("wait.received", {"job": "j", "value": None}))
    assert faults(WAIT_CHECKS, "wait-once", story) == ["a wait of job j ended with 7 and None"]
