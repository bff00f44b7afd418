"""Walks: rules applied in any order, by chance, and compared with a plain model after each."""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.support.running.lengths import SOAK

_PHASES: Final = tuple(Phase) if SOAK else (Phase.explicit, Phase.reuse, Phase.generate)
"""To make a walk that failed shorter takes minutes: a test run shows it as it was instead."""


def walk(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> None:
    """This many walks of this many steps."""
    few = settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=_PHASES,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=few)
