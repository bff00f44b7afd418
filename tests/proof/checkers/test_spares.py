"""What the judge of announced heartbeats finds, and what it has nothing against."""

from __future__ import annotations

import math

import pytest

from proof.checkers.spares import SPARE_CHECKS
from tests.proof.checkers.timed import Lines, faults, noted

_PACE = noted("ada", "spares.pace", 0.0, tick_s=1.0, spare_s=4.0)


def _life(who: str, ended: float = math.inf) -> Lines:
    lines = noted("stage", "life.began", 0.0, player=who, life=1, node_id=f"node-{who}") + noted(
        who, "up", 0.1
    )
    if ended < math.inf:
        lines += noted("stage", "life.ended", ended, player=who, life=1, how="killed")
    return lines


def _looked(who: str, until: int, **states: str) -> Lines:
    seen = {f"node-{name}": state for name, state in states.items()}
    return [
        line for at in range(1, until) for line in noted(who, "spares.seen", at + 0.1, since=at, states=seen)
    ]


def _saw(at: float, state: str) -> Lines:
    return noted("ada", "spares.seen", at, since=at, states={"node-bob": state})


@pytest.mark.parametrize(("state", "is_found"), [("alive", False), ("warn", False), ("alert", True)])
def test_a_node_that_looks_all_the_time_may_hardly_be_late(state: str, is_found: bool) -> None:
    found = faults(SPARE_CHECKS, "spares-kept", _PACE, _life("bob"), _looked("bob", 30), _saw(20.5, state))
    assert bool(found) is is_found


@pytest.mark.parametrize(
    ("at", "state", "is_found"),
    [
        (18.0, "alive", True),
        (18.0, "warn", False),
        (27.0, "critical", True),
        (27.0, "left", True),
        (27.0, "dead", False),
    ],
)
def test_a_killed_node_is_late_after_what_it_has_announced_and_then_dead(
    at: float, state: str, is_found: bool
) -> None:
    lines = [_PACE, _life("bob", 10.0), _looked("bob", 10), _saw(5.5, "alive"), _saw(at, state)]
    assert bool(faults(SPARE_CHECKS, "spares-kept", *lines)) is is_found


def test_a_killed_node_may_seem_alive_for_as_long_as_it_has_announced() -> None:
    lines = [_PACE, _life("bob", 10.0), _looked("bob", 10), _saw(5.5, "alive"), _saw(16.0, "alive")]
    assert faults(SPARE_CHECKS, "spares-kept", *lines) == []
