"""The hunt for a planted bug: the instruments run with it, in a subprocess, until they find it."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proof.mutants.planted_bug import Instrument, PlantedBug
from proof.run import TooLong, run

SEEDS: Final = 60
SECONDS: Final = 30
_DEADLINE_S: Final = 600.0
_TESTS: Final = Path(__file__).parents[2] / "tests"
FOLDERS: Final = {
    Instrument.ATTACKS: _TESTS / "attacks",
    Instrument.STORE: _TESTS / "store",
    Instrument.STEPS: _TESTS / "jobs" / "steps",
    Instrument.FRAMEWORKS: _TESTS / "integrations",
}
"""The tests that are instruments."""

_STORES: Final = {Instrument.FILE: "file", Instrument.SERVER: "sqld"}


class InstrumentFailed(Exception):
    """A bug made an instrument fail without a verdict: that does not count as found."""


@dataclass(frozen=True, slots=True)
class HuntResult:
    """The result of a hunt."""

    name: str
    description: str
    instrument: str
    by: tuple[str, ...]
    """The checks that found it, of the expected ones; empty if none did."""
    otherwise: tuple[str, ...]
    """Other checks that failed."""
    effort: str
    seconds: float

    def __str__(self) -> str:
        if self.by:
            return f"found   {self.name:<28} by {', '.join(self.by)} ({self.effort}, {self.seconds:.0f} s)"
        others = f"; only {', '.join(self.otherwise)} was broken" if self.otherwise else ""
        return f"MISSED  {self.name:<28} {self.effort}{others}"


def hunt(plant: PlantedBug, seeds: int = SEEDS, seconds: int = SECONDS) -> HuntResult:
    """Run the instruments with this bug."""
    began = time.monotonic()
    broken: Sequence[str] = ()
    try:
        if plant.instrument is Instrument.SIMULATION:
            broken, effort = _run_simulation(plant, seeds)
        elif plant.instrument is Instrument.HOSTILE:
            broken, effort = _run_hostile(plant, seconds)
        elif plant.instrument is Instrument.EDITING:
            broken, effort = _run_editing(plant, seconds)
        elif plant.instrument in FOLDERS:
            broken, effort = _run_tests(plant)
        else:
            broken, effort = _run_chaos(plant, seconds)
    except InstrumentFailed as wreck:
        effort = f"the instrument itself failed: {wreck}"
    return HuntResult(
        *(plant.name, plant.description, str(plant.instrument)),
        tuple(name for name in plant.found_by if name in broken),
        tuple(name for name in broken if name not in plant.found_by),
        *(effort, time.monotonic() - began),
    )


def _run_simulation(plant: PlantedBug, seeds: int) -> tuple[Sequence[str], str]:
    """Return the checks that failed first, and the number of seeds that took."""
    output = _run(
        "proof.mutants.run_with_bug", plant.name, "proof.simulate", *_simulation_arguments(plant, seeds)
    )
    last = json.loads(output.splitlines()[-1])
    if last["stuck"] and not last["broken"]:
        raise InstrumentFailed(f"seed {last['stuck'][0]} does not end")
    return last["broken"], f"{last['seeds']} seeds"


def _simulation_arguments(plant: PlantedBug, seeds: int) -> list[str]:
    return ["--seeds", str(seeds), "--json", "--until", *plant.found_by, *_selection(plant)]


def _selection(plant: PlantedBug) -> list[str]:
    playing = ["--with", *plant.workloads] if plant.workloads else []
    return [*playing, "--faults", *plant.faults] if plant.faults else playing


def _run_tests(plant: PlantedBug) -> tuple[Sequence[str], str]:
    """Return the tests that failed, without their parameters."""
    options = (
        "-q",
        "-rf",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "--assert=plain",
        "-k",
        " or ".join(plant.found_by),
    )
    output = _run(
        "proof.mutants.run_with_bug", plant.name, "pytest", *options, str(FOLDERS[plant.instrument])
    )
    failed = re.findall(r"^FAILED \S+?::(\w+)", output, re.MULTILINE)
    return tuple(dict.fromkeys(failed)), f"{len(failed)} tests failed"


def _run_chaos(plant: PlantedBug, seconds: int) -> tuple[Sequence[str], str]:
    builds = ("--builds", *plant.builds) if plant.builds else ()
    more = (*_selection(plant), *builds)
    broken = _broken_checks(plant, "proof.chaos", seconds, _STORES[plant.instrument], *more)
    return broken, f"{seconds} s of chaos"


def _run_hostile(plant: PlantedBug, seconds: int) -> tuple[Sequence[str], str]:
    return _broken_checks(plant, "proof.hostile", seconds, "file"), f"{seconds} s of attack"


def _run_editing(plant: PlantedBug, seconds: int) -> tuple[Sequence[str], str]:
    return _broken_checks(plant, "proof.editing", seconds, "file"), f"{seconds} s of edits"


def _broken_checks(plant: PlantedBug, instrument: str, seconds: int, store: str, *more: str) -> Sequence[str]:
    """Run an instrument with real processes; its checks run without the bug."""
    with tempfile.TemporaryDirectory(prefix="vox-mesh-mutant-") as folder:
        arguments = ["--seconds", str(seconds), "--seed", "1", "--store", store, "--out", folder, *more]
        _run(instrument, *arguments, "--plant", plant.name)
        verdicts = Path(folder) / "verdicts.json"
        if not verdicts.exists():
            raise InstrumentFailed("it came to no verdict")
        found = json.loads(verdicts.read_text())
    return [each["name"] for each in found if each["faults"]]


def _run(*arguments: str) -> str:
    try:
        ran = run(*arguments, within_s=_DEADLINE_S)
    except TooLong as error:
        raise InstrumentFailed(str(error)) from None
    if ran.status not in (0, 1) or not ran.out:
        raise InstrumentFailed((ran.err.splitlines() or ["nothing was said"])[-1])
    return ran.out
