"""The seed of a test run: drawn once, printed first, and kept when failed tests run again."""

from __future__ import annotations

import os
import secrets
from functools import cache
from random import Random
from typing import Final

VARIABLE: Final = "VOX_TEST_SEED"
PROPERTY: Final = "seed"
"""Set on the report of every test that draws from the seed of the run."""

_SEEDS: Final = 10**6


@cache
def seed_of_run() -> int:
    """Return the seed of this run, and draw it if the environment has none.

    Worker processes inherit it. Tests do not: a command would warn of a variable that it does not know.
    """
    return int(os.environ.setdefault(VARIABLE, str(secrets.randbelow(_SEEDS))))


def seed_of_test(node_id: str, seed: int) -> int:
    """Return the seed of one test in a run, which does not depend on the tests that run before it."""
    return Random(f"{seed} {node_id}").randrange(_SEEDS)
