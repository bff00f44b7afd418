"""Check types and run all tests, and the failed ones once more, alone: `python -m tools.gate`.

A test that misses a deadline on a busy machine passes on its own. Such tests are listed; more than three of
them fail the run. A test that draws from the seed of the run must not need a retry: it may have found a rare
fault, which the retry would hide.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tools.rewrite_asserts import rewrite_all
from tools.seeds import PROPERTY, VARIABLE, seed_of_run

MAX_RETRIED: Final = 3
_MAX_FAILED_AGAIN: Final = 3
_FAILED: Final = 1
"""What pytest exits with when tests failed."""

_STUCK: Final = 124
_MAX_RUN_S: Final = 3_000.0  # a test that its own deadline does not end must not keep the gate open

_ALL: Final = ("--numprocesses", "4", "--dist", "worksteal")
_ALONE: Final = ("--last-failed", "--last-failed-no-failures", "none", "--maxfail", str(_MAX_FAILED_AGAIN))

_COMPILED: Final = ("vox_mesh", "tools", "proof", "bench", "tests/support")
_TESTS: Final = Path("tests")
"""Pytest compiles them in a form of its own."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one test ended in one run."""

    has_failed: bool
    is_seeded: bool


def read_report(path: Path) -> dict[str, Outcome]:
    """Return the outcome of each test in a JUnit report, by the test's name."""
    return {
        f"{case.get('classname')}::{case.get('name')}": Outcome(
            has_failed=case.find("failure") is not None or case.find("error") is not None,
            is_seeded=any(each.get("name") == PROPERTY for each in case.iter("property")),
        )
        for case in ElementTree.parse(path).iter("testcase")
    }


def passed_on_retry(first: Mapping[str, Outcome], second: Mapping[str, Outcome]) -> list[str]:
    """Return the tests that failed among the others and passed alone, in order."""
    return sorted(
        name
        for name, outcome in first.items()
        if outcome.has_failed and name in second and not second[name].has_failed
    )


def faults_of(retried: Sequence[str], first: Mapping[str, Outcome]) -> list[str]:
    """Return why a run in which these tests passed on retry is not good enough, a line each."""
    faults = [
        f"{name} draws from {VARIABLE} and must pass at the first try"
        for name in retried
        if first[name].is_seeded
    ]
    if len(retried) > MAX_RETRIED:
        faults.append(f"{len(retried)} tests passed on retry, {MAX_RETRIED} are allowed")
    return faults


def _pytest(report: Path, *options: str) -> tuple[int, dict[str, Outcome]]:
    command = (sys.executable, "-m", "pytest", *options, f"--junitxml={report}")
    try:
        status = subprocess.run(command, check=False, timeout=_MAX_RUN_S).returncode
    except subprocess.TimeoutExpired:
        print(f"gate: the tests did not end within {_MAX_RUN_S:g} s")
        status = _STUCK
    return status, read_report(report) if report.exists() else {}


def _tests(folder: Path) -> int:
    status, first = _pytest(folder / "first.xml", *_ALL)
    if status != _FAILED:
        return status
    status, second = _pytest(folder / "second.xml", *_ALONE)
    retried = passed_on_retry(first, second)
    faults = faults_of(retried, first)
    print("\npassed on retry:", *(retried or ["none"]), sep="\n  ")
    for fault in faults:
        print(f"gate: {fault}")
    return status or (_FAILED if faults else 0)


def _compile() -> None:
    """Compile all modules once: the workers start together, and would each compile all of them."""
    subprocess.run((sys.executable, "-m", "compileall", "-q", "-j", "0", *_COMPILED), check=True)
    rewrite_all(_TESTS.absolute())


def main() -> int:
    """Return 0 if types and tests are right, and otherwise a status that says no."""
    print(f"{VARIABLE}={seed_of_run()}", flush=True)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as said:
        _compile()
        types = subprocess.Popen((sys.executable, "-m", "mypy"), stdout=said, stderr=said)
        try:
            status = _tests(Path(folder))
        except KeyboardInterrupt:
            types.terminate()
            status = 130
        if types.wait() > 0:
            said.seek(0)
            print(said.read().decode(errors="replace"))
            status = status or _FAILED
    return status


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parents[1])
    sys.exit(main())
