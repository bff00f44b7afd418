"""Planted bugs: they are where they should be, and a few of them are hunted in every test run."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from proof.mutants.hunt import hunt
from proof.mutants.planted_bug import Code, Instrument, PlaceNotFound, PlantedBug, Sql
from proof.mutants.planted_bugs import PLANTS

_HUNTED: Final = ("token-reused", "version-not-checked", "link-skipped")
_AT_LEAST: Final = 20


def test_there_are_enough_of_them() -> None:
    assert len(PLANTS) >= _AT_LEAST


@pytest.mark.parametrize("plant", PLANTS.values(), ids=lambda plant: plant.name)
def test_its_place_is_there(plant: PlantedBug) -> None:
    for change in plant.changes:
        assert change.changed()
    functions = [change.place for change in plant.changes if isinstance(change, Code)]
    assert len({*functions}) == len(functions)  # of two changes to one function the first would be lost


@pytest.mark.parametrize(
    "change",
    [
        Sql("locks", "take_fast", "no such words", ""),
        Sql("locks", "no_such_statement", "x", ""),
        Code("vox_mesh.model.nodes.liveness:missed_ticks", "no such words", ""),
        Code("vox_mesh.model.nodes.liveness:no_such_function", "x", ""),
    ],
)
def test_a_place_that_is_gone_is_reported(change: Sql | Code) -> None:
    with pytest.raises(PlaceNotFound):
        change.changed()


@pytest.mark.parametrize("name", _HUNTED)
def test_a_planted_bug_is_found(name: str) -> None:
    assert PLANTS[name].instrument is Instrument.SIMULATION
    found = hunt(PLANTS[name])
    assert found.by, found


def test_without_a_name_it_says_what_to_do() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "proof.mutants.run_with_bug"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith("name a planted bug and a module")
