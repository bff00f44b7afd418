"""The hunt for a planted bug: the instruments run with it, in a process of their own, until they find it."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proof.mutants.plant import Plant, Stage
from proof.run import TooLong, run

SEEDS: Final = 60
SECONDS: Final = 30
_DEADLINE_S: Final = 600.0
_STORES: Final = {Stage.FILE: "file", Stage.SERVER: "sqld"}


class Wrecked(Exception):
    """A bug left an instrument unable to say anything: that is not to find it."""


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a hunt."""

    name: str
    says: str
    stage: str
    by: tuple[str, ...]
    """The checks that found it, of those that should; empty if none did."""
    otherwise: tuple[str, ...]
    """The checks that found something else in it."""
    effort: str
    seconds: float

    def __str__(self) -> str:
        if self.by:
            return f"found   {self.name:<28} by {', '.join(self.by)} ({self.effort}, {self.seconds:.0f} s)"
        others = f"; only {', '.join(self.otherwise)} was broken" if self.otherwise else ""
        return f"MISSED  {self.name:<28} {self.effort}{others}"


def hunt(plant: Plant, seeds: int = SEEDS, seconds: int = SECONDS) -> Found:
    """Run the instruments with this bug."""
    began = time.monotonic()
    broken: Sequence[str] = ()
    try:
        if plant.stage is Stage.SIMULATION:
            broken, effort = _simulated(plant, seeds)
        else:
            broken, effort = _played(plant, seconds)
    except Wrecked as wreck:
        effort = f"the instrument itself failed: {wreck}"
    return Found(
        *(plant.name, plant.says, str(plant.stage)),
        tuple(name for name in plant.found_by if name in broken),
        tuple(name for name in broken if name not in plant.found_by),
        *(effort, time.monotonic() - began),
    )


def _simulated(plant: Plant, seeds: int) -> tuple[Sequence[str], str]:
    """Which checks broke first, of those that should; and in how many seeds."""
    told = _run("proof.mutants.infected", plant.name, "proof.simulate", *_asked(plant, seeds))
    last = json.loads(told.splitlines()[-1])
    if last["stuck"] and not last["broken"]:
        raise Wrecked(f"seed {last['stuck'][0]} does not end")
    return last["broken"], f"{last['seeds']} seeds"


def _asked(plant: Plant, seeds: int) -> list[str]:
    return ["--seeds", str(seeds), "--json", "--until", *plant.found_by, *_chosen(plant)]


def _chosen(plant: Plant) -> list[str]:
    playing = ["--with", *plant.workloads] if plant.workloads else []
    return [*playing, "--faults", *plant.faults] if plant.faults else playing


def _played(plant: Plant, seconds: int) -> tuple[Sequence[str], str]:
    with tempfile.TemporaryDirectory(prefix="vox-mesh-mutant-") as folder:
        asked = ["--seconds", str(seconds), "--seed", "1", "--store", _STORES[plant.stage], "--out", folder]
        asked += _chosen(plant)
        _run("proof.chaos", *asked, "--plant", plant.name)  # whose stage, and judge, know nothing of it
        verdicts = Path(folder) / "verdicts.json"
        if not verdicts.exists():
            raise Wrecked("it came to no verdict")
        said = json.loads(verdicts.read_text())
    return [each["name"] for each in said if each["faults"]], f"{seconds} s of chaos"


def _run(*arguments: str) -> str:
    try:
        ran = run(*arguments, within_s=_DEADLINE_S)
    except TooLong as error:
        raise Wrecked(str(error)) from None
    if ran.status not in (0, 1) or not ran.out:
        raise Wrecked((ran.err.splitlines() or ["nothing was said"])[-1])
    return ran.out
