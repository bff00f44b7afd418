"""The seed of a test run: drawn once, printed first, and kept when failed tests run again."""

from __future__ import annotations

import os
import secrets
from random import Random
from typing import Final

VARIABLE: Final = "VOX_TEST_SEED"
PROPERTY: Final = "seed"
"""Set on the report of every test that draws from the seed of the run."""

_SEEDS: Final = 10**6


def seed_of_run() -> int:
    """Return the seed of this run, and draw it if the environment has none.

    Worker processes inherit it.
    """
    return int(os.environ.setdefault(VARIABLE, str(secrets.randbelow(_SEEDS))))


def seed_of_test(node_id: str) -> int:
    """Return the seed of one test, which does not depend on the tests that run before it."""
    return Random(f"{seed_of_run()} {node_id}").randrange(_SEEDS)
