"""The page on reliability says all that is checked, and all that was planted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from proof.checkers.edits import EDIT_CHECKS
from proof.checkers.hostile import HOSTILE_CHECKS
from proof.mutants.hunt import FOLDERS
from proof.mutants.planted_bugs import PLANTS
from proof.suite import CHECKS
from proof.verdicts import Check

_ROOT: Final = Path(__file__).resolve().parents[2]
_PAGE: Final = (_ROOT / "docs" / "project" / "reliability.md").read_text()


@pytest.mark.parametrize("check", [*CHECKS, *HOSTILE_CHECKS, *EDIT_CHECKS], ids=lambda check: check.name)
def test_every_check_is_on_the_page(check: Check) -> None:
    assert f"| `{check.name}` | {check.promise} |" in _PAGE


@pytest.mark.parametrize("name", PLANTS)
def test_every_planted_bug_is_on_the_page(name: str) -> None:
    assert f"| `{name}` | {PLANTS[name].description} |" in _PAGE


def test_every_bug_is_meant_to_be_found_by_a_check_that_there_is() -> None:
    tests = "".join(path.read_text() for each in FOLDERS.values() for path in each.rglob("test_*.py"))
    known = {check.name for check in (*CHECKS, *HOSTILE_CHECKS, *EDIT_CHECKS)}
    known |= {*re.findall(r"def (test_\w+)\(", tests)}
    assert {plant.name for plant in PLANTS.values() if not {*plant.found_by} <= known} == set()
