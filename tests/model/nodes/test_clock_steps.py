"""Steps of the database's clock: most live nodes decide, and a tie goes to the database."""

from __future__ import annotations

from typing import Final

import pytest

from vox_mesh.model.nodes.clock_steps import Decision, Step, Witness, judge

HOUR: Final = Step(3_600_000, 3_600_040)
SAME: Final = Witness(Step(3_599_300, 3_599_350), 0, True)
OTHER: Final = Witness(Step(60_000, 60_010), 0, True)
SILENT: Final = Witness(None, 0, True)
ONCE: Final = Witness(None, 1, True)
FOLLOWS: Final = Witness(None, 2, True)
OLDER: Final = Witness(None, 5, False)


@pytest.mark.parametrize(
    ("others", "decision"),
    [
        ([], Decision.CORRECT),
        ([SAME], Decision.CORRECT),
        ([SAME, SILENT], Decision.CORRECT),
        ([SAME, FOLLOWS], Decision.CORRECT),
        ([SILENT], Decision.WAIT),
        ([ONCE], Decision.WAIT),
        ([OTHER], Decision.WAIT),
        ([SAME, SILENT, SILENT], Decision.WAIT),
        ([FOLLOWS], Decision.ACCEPT),
        ([SAME, FOLLOWS, FOLLOWS], Decision.ACCEPT),
        ([SILENT, FOLLOWS], Decision.ACCEPT),
        ([SAME, OLDER], Decision.ACCEPT),
    ],
)
def test_most_live_nodes_decide(others: list[Witness], decision: Decision) -> None:
    assert judge(HOUR, others, own_clock_stepped_too=False).decision is decision


def test_the_correction_is_what_the_middle_witness_has_seen() -> None:
    early, late = (Witness(Step(3_600_000 + by, 3_600_100 + by), 0, True) for by in (-200, 200))
    judgement = judge(HOUR, [early, late], own_clock_stepped_too=False)
    assert (judgement.step_ms, judgement.witnesses) == (HOUR.high_ms, 3)


def test_a_machine_that_stood_still_is_believed_only_by_itself() -> None:
    assert judge(HOUR, [], own_clock_stepped_too=True).decision is Decision.ACCEPT
    assert judge(HOUR, [SAME], own_clock_stepped_too=True).decision is Decision.CORRECT


def test_a_slow_answer_leaves_room_and_still_agrees() -> None:
    assert Step(3_570_000, 3_600_000).agrees_with(HOUR)
    assert not Step(-3_600_000, -3_570_000).agrees_with(HOUR)


def test_nodes_that_never_agree_go_by_the_one_in_the_middle() -> None:
    less, more = OTHER, Witness(Step(7_200_000, 7_200_010), 0, True)
    assert judge(HOUR, [less, more], own_clock_stepped_too=False).decision is Decision.WAIT
    overdue = judge(HOUR, [less, more], own_clock_stepped_too=False, is_overdue=True)
    assert overdue == (Decision.CORRECT, HOUR.high_ms, 3)
    assert judge(HOUR, [FOLLOWS], own_clock_stepped_too=False, is_overdue=True).decision is Decision.ACCEPT


def test_a_database_whose_clock_has_come_right_is_believed() -> None:
    judgement = judge(HOUR, [SAME, SAME], own_clock_stepped_too=False, has_come_right=True)
    assert judgement.decision is Decision.ACCEPT


def test_a_step_that_is_known_exactly_counts_more_than_a_rough_one() -> None:
    rough = Step(-60_000, -30_000)
    exact = Witness(Step(-38_010, -38_000), 0, True)
    assert judge(rough, [exact], own_clock_stepped_too=False).step_ms == -38_000


def test_a_slow_answer_does_not_move_the_time_of_the_mesh_ahead() -> None:
    slow, quick = Step(3_237_540, 3_238_349), Witness(Step(3_238_334, 3_238_346), 0, True)
    assert judge(slow, [quick], own_clock_stepped_too=False).step_ms == 3_238_346


def test_of_rough_steps_the_one_that_ends_no_lease_too_soon_is_corrected() -> None:
    other = Witness(Step(-61_000, -31_000), 0, True)
    judgement = judge(Step(-60_000, -30_000), [other], own_clock_stepped_too=False)
    assert (judgement.decision, judgement.step_ms) == (Decision.CORRECT, -31_000)
