"""What the judges of effects and of small writes find, and what they have nothing against."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from proof import tables
from proof.checkers.effects import EFFECT_CHECKS
from proof.history import Step
from proof.judge import evaluate_all
from proof.workloads.effects import EFFECTS
from proof.workloads.writes import WRITES
from tests.proof.calm import run_calmly
from tests.proof.checkers.timed import Lines, did, faults, final, noted


def _tried(step: Step, began: float = 1.0, incarnation: int = 1) -> Lines:
    ended = math.inf if step is Step.UNKNOWN else began + 1
    return did("ada", "effect", (began, ended), {"key": "k", "number": 1}, step, incarnation=incarnation)


def _there(*parts: int) -> Lines:
    return final(
        tables.EFFECTS, *({"effect": "k", "part": part, "player": "ada", "number": 1} for part in parts)
    )


_OUTSIDE = noted("ada", "outside.effect", 2.0, key="k")


def test_an_effect_that_was_had_once_passes() -> None:
    assert faults(EFFECT_CHECKS, "effect-once", _there(1, 2), _OUTSIDE) == []


@pytest.mark.parametrize("lines", [[_there(1, 2, 1, 2)], [_there(1)], [_there(1, 2), _OUTSIDE, _OUTSIDE]])
def test_an_effect_that_was_had_twice_or_in_part_is_found(lines: list[Lines]) -> None:
    assert faults(EFFECT_CHECKS, "effect-once", *lines)


_OLD_AFTER_NEW_WAS_LOST = (
    noted("stage", "life.began", 1.0, player="ada", life=1, node_id="ada"),
    noted("stage", "life.began", 5.0, player="ada", life=2, node_id="ada"),
    did("ada", "effect.last", (5.0, 5.5), {}, incarnation=2),
    noted("stage", "store.went_back", 7.0, kept_until=4.0, lost_at=7.0, back_at=7.0),
)


@pytest.mark.parametrize(
    ("first", "second", "is_excused"),
    [((8.0, 1), (9.0, 2), True), ((8.0, 2), (9.0, 2), False), ((8.0, 2), (9.0, 1), False)],
)
def test_only_a_life_whose_registration_was_lost_may_repeat_what_an_older_one_did(
    first: tuple[float, int], second: tuple[float, int], is_excused: bool
) -> None:
    twice = [noted("ada", "outside.effect", at, incarnation, key="k") for at, incarnation in (first, second)]
    found = faults(EFFECT_CHECKS, "effect-once", _there(1, 2), *_OLD_AFTER_NEW_WAS_LOST, *twice)
    assert (found == []) is is_excused


def test_a_life_that_registered_before_the_lost_window_repeats_nothing() -> None:
    twice = [
        noted("ada", "outside.effect", at, incarnation, key="k") for at, incarnation in ((8.0, 1), (9.0, 2))
    ]
    began = [
        noted("stage", "life.began", 1.0, player="ada", life=incarnation, node_id="ada")
        for incarnation in (1, 2)
    ]
    up, loss = did("ada", "effect.last", (1.5, 2.0), {}, incarnation=2), _OLD_AFTER_NEW_WAS_LOST[-1]
    assert faults(EFFECT_CHECKS, "effect-once", _there(1, 2), *began, up, loss, *twice)


@pytest.mark.parametrize(
    ("tries", "is_there", "is_possible"),
    [
        ([_tried(Step.OK)], True, True),
        ([_tried(Step.OK)], False, False),
        ([_tried(Step.NO)], False, True),
        ([_tried(Step.NO)], True, False),
        ([_tried(Step.UNKNOWN)], True, True),
        ([_tried(Step.UNKNOWN)], False, True),
        ([_tried(Step.UNKNOWN), _tried(Step.OK, 5.0, incarnation=2)], False, False),
        ([_tried(Step.UNKNOWN), _tried(Step.NO, 5.0, incarnation=2)], True, True),
    ],
)
def test_an_effect_is_there_if_and_only_if_that_was_reported(
    tries: list[Lines], is_there: bool, is_possible: bool
) -> None:
    found = faults(EFFECT_CHECKS, "effect-none-lost", *tries, _there(*((1, 2) if is_there else ())))
    assert (found == []) is is_possible


@pytest.mark.parametrize(("last", "is_possible"), [((1, 2), True), ((2, 1), True), ((1, 1), False)])
def test_the_last_write_that_was_reported_is_there_or_a_later_one(
    last: tuple[int, int], is_possible: bool
) -> None:
    wrote: list[dict[str, Any]] = [{"number": 1}, {"number": 2}]
    lines = [did("ada", "write", (n, n + 0.5), args) for n, args in enumerate(wrote)]
    lines.append(did("ada", "write", (5.0, math.inf), {"number": 1}, incarnation=2))
    lines.append(final(tables.WRITES, {"player": "ada", "life": last[0], "number": last[1]}))
    assert (faults(EFFECT_CHECKS, "writes-none-lost", *lines) == []) is is_possible


def test_a_calm_run_of_effects_and_writes_breaks_no_promise(tmp_path: Path) -> None:
    history = run_calmly(tmp_path, EFFECTS, WRITES, seconds=60.0)
    said = evaluate_all(history)
    assert [str(each) for each in said if not each.holds] == []
    looks = {each.name: each.looks for each in said}
    assert all(looks[check.name] > 10 for check in EFFECT_CHECKS), looks
