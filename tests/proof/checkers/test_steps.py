"""The checks of steps find another result, steps out of order, and what a late worker has stored."""

from __future__ import annotations

from typing import Any

from proof.checkers.steps import STEP_CHECKS
from tests.proof.checkers.story import Story, faults

_Note = tuple[str, str, int, dict[str, Any]]


def _story(*notes: _Note) -> Story:
    story = Story()
    for who, what, token, more in notes:
        story.node(who).note(what, job="j", token=token, **more)
    return story


def _first(value: int) -> dict[str, Any]:
    return {"place": 1, "value": value}


_SOUND: tuple[_Note, ...] = (
    ("ann", "step.began", 1, {}),
    ("ann", "step.effect", 1, _first(7)),
    ("ann", "step.seen", 1, _first(7)),
    ("ben", "step.began", 2, {}),
    ("ben", "step.seen", 2, _first(7)),
    ("ben", "step.effect", 2, {"place": 2, "value": 8}),
    ("ben", "step.seen", 2, {"place": 2, "value": 8}),
)


def test_steps_as_they_should_be_have_no_fault() -> None:
    assert [faults(STEP_CHECKS, check.name, _story(*_SOUND)) for check in STEP_CHECKS] == [[], [], []]


def test_another_result_in_a_later_attempt_is_found() -> None:
    story = _story(*_SOUND[:4], ("ben", "step.seen", 2, _first(9)))
    assert faults(STEP_CHECKS, "step-once", story) == ["step 1 of job j had the results 7 and 9"]


def test_a_step_out_of_order_is_found() -> None:
    story = _story(*_SOUND[:3], ("ann", "step.seen", 1, {"place": 3, "value": 5}))
    assert faults(STEP_CHECKS, "step-order", story) == ["an attempt at job j got step 3 out of order"]


def test_a_result_that_a_late_worker_has_stored_is_found() -> None:
    effect: _Note = ("ann", "step.effect", 1, {"place": 2, "value": 6})
    refused, stored = _story(*_SOUND, effect), _story(*_SOUND, effect, ("ann", "step.seen", 1, effect[3]))
    assert faults(STEP_CHECKS, "no-zombie-step", refused) == []
    assert faults(STEP_CHECKS, "no-zombie-step", stored) == ["ann stored step 2 of job j too late"]
