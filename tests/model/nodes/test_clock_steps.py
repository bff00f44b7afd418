"""Steps of the database's clock: most live nodes decide, and a tie goes to the database."""

from __future__ import annotations

from typing import Final

import pytest

from vox_mesh.model.nodes.clock_steps import ClockStep, ClockWitness, StepDecision, judge

HOUR: Final = ClockStep(3_600_000, 3_600_040)
SAME: Final = ClockWitness(ClockStep(3_599_300, 3_599_350), 0, True)
OTHER: Final = ClockWitness(ClockStep(60_000, 60_010), 0, True)
SILENT: Final = ClockWitness(None, 0, True)
ONCE: Final = ClockWitness(None, 1, True)
FOLLOWS: Final = ClockWitness(None, 2, True)
OLDER: Final = ClockWitness(None, 5, False)


@pytest.mark.parametrize(
    ("others", "decision"),
    [
        ([], StepDecision.CORRECT),
        ([SAME], StepDecision.CORRECT),
        ([SAME, SILENT], StepDecision.CORRECT),
        ([SAME, FOLLOWS], StepDecision.CORRECT),
        ([SILENT], StepDecision.WAIT),
        ([ONCE], StepDecision.WAIT),
        ([OTHER], StepDecision.WAIT),
        ([SAME, SILENT, SILENT], StepDecision.WAIT),
        ([FOLLOWS], StepDecision.ACCEPT),
        ([SAME, FOLLOWS, FOLLOWS], StepDecision.ACCEPT),
        ([SILENT, FOLLOWS], StepDecision.ACCEPT),
        ([SAME, OLDER], StepDecision.ACCEPT),
    ],
)
def test_most_live_nodes_decide(others: list[ClockWitness], decision: StepDecision) -> None:
    assert judge(HOUR, others, own_clock_stepped_too=False).decision is decision


def test_the_correction_is_what_the_middle_witness_has_seen() -> None:
    early, late = (ClockWitness(ClockStep(3_600_000 + by, 3_600_100 + by), 0, True) for by in (-200, 200))
    judgement = judge(HOUR, [early, late], own_clock_stepped_too=False)
    assert (judgement.step_ms, judgement.witnesses) == (HOUR.high_ms, 3)


def test_a_machine_that_stood_still_is_believed_only_by_itself() -> None:
    assert judge(HOUR, [], own_clock_stepped_too=True).decision is StepDecision.ACCEPT
    assert judge(HOUR, [SAME], own_clock_stepped_too=True).decision is StepDecision.CORRECT


def test_a_slow_answer_leaves_room_and_still_agrees() -> None:
    assert ClockStep(3_570_000, 3_600_000).agrees_with(HOUR)
    assert not ClockStep(-3_600_000, -3_570_000).agrees_with(HOUR)


def test_nodes_that_never_agree_go_by_the_one_in_the_middle() -> None:
    less, more = OTHER, ClockWitness(ClockStep(7_200_000, 7_200_010), 0, True)
    assert judge(HOUR, [less, more], own_clock_stepped_too=False).decision is StepDecision.WAIT
    overdue = judge(HOUR, [less, more], own_clock_stepped_too=False, is_overdue=True)
    assert overdue == (StepDecision.CORRECT, HOUR.high_ms, 3)
    assert (
        judge(HOUR, [FOLLOWS], own_clock_stepped_too=False, is_overdue=True).decision is StepDecision.ACCEPT
    )


def test_a_database_whose_clock_has_come_right_is_believed() -> None:
    judgement = judge(HOUR, [SAME, SAME], own_clock_stepped_too=False, has_come_right=True)
    assert judgement.decision is StepDecision.ACCEPT


def test_a_step_that_is_known_exactly_counts_more_than_a_rough_one() -> None:
    rough = ClockStep(-60_000, -30_000)
    exact = ClockWitness(ClockStep(-38_010, -38_000), 0, True)
    assert judge(rough, [exact], own_clock_stepped_too=False).step_ms == -38_000


def test_a_slow_answer_does_not_move_the_time_of_the_mesh_ahead() -> None:
    slow, quick = ClockStep(3_237_540, 3_238_349), ClockWitness(ClockStep(3_238_334, 3_238_346), 0, True)
    assert judge(slow, [quick], own_clock_stepped_too=False).step_ms == 3_238_346


def test_of_rough_steps_the_one_that_ends_no_lease_too_soon_is_corrected() -> None:
    other = ClockWitness(ClockStep(-61_000, -31_000), 0, True)
    judgement = judge(ClockStep(-60_000, -30_000), [other], own_clock_stepped_too=False)
    assert (judgement.decision, judgement.step_ms) == (StepDecision.CORRECT, -31_000)
