"""Every seed keeps every promise, the same seed is the same play, and what breaks can be played again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from proof import suite
from proof.history import History
from proof.judge import evaluate_all
from proof.simulate import __main__ as command
from proof.simulate.faults import DEFAULT_FAULTS, Kind, draw_plan
from proof.simulate.trial import run_seed
from proof.verdicts import Check
from proof.workload import FunctionWorkload, WorkloadContext

_SEEDS = 16
_CASES = 4
_A_CASE = _SEEDS // _CASES
_WITH_GRANTS = ("grants", "limits", "locks", "jobs")
_OFTEN_CANCELLED = 32_902
_ELSEWHERE = "from proof.simulate.trial import run_seed; print(run_seed(7).digest)"


@pytest.mark.parametrize("first", range(1, _SEEDS, _A_CASE))
def test_seeds_keep_every_promise(first: int) -> None:
    # One of each case with agents whose grants are issued, delegated and revoked, which no seed draws.
    trials = [run_seed(first, only=_WITH_GRANTS), *map(run_seed, range(first + 1, first + _A_CASE))]
    broken = {trial.seed: [str(verdict) for verdict in trial.broken] for trial in trials if not trial.holds}
    assert broken == {}, "play one again: python -m proof.simulate --seed SEED --history FOLDER"
    assert all(trial.faults for trial in trials)


def test_a_seed_is_the_same_play_every_time_and_everywhere() -> None:
    digest = run_seed(7).digest
    assert run_seed(7).digest == digest
    assert run_seed(8).digest != digest
    assert run_seed(_OFTEN_CANCELLED).digest == run_seed(_OFTEN_CANCELLED).digest
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    ran = subprocess.run([sys.executable, "-c", _ELSEWHERE], env=environment, capture_output=True, check=True)
    assert ran.stdout.decode().strip() == digest


def test_a_play_does_not_depend_on_the_clocks_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("beats", "phases", "spending")
    digest, ticks = run_seed(1, only=names, seconds=5.0).digest, count(step=10)
    for clock in ("perf_counter", "monotonic", "time"):
        monkeypatch.setattr(time, clock, lambda: float(next(ticks)))
    assert run_seed(1, only=names, seconds=5.0).digest == digest


def test_a_slow_play_keeps_every_promise_over_a_longer_time() -> None:
    usual, slow = run_seed(12, only=["locks", "beats"]), run_seed(12, only=["locks", "beats"], slowness=10.0)
    assert slow.holds, [str(verdict) for verdict in slow.broken]
    assert slow.faults == usual.faults
    assert slow.seconds > 5 * usual.seconds  # the end of a play is not slower


def test_a_history_that_was_written_is_judged_as_it_was(tmp_path: Path) -> None:
    trial = run_seed(3, folder=tmp_path, only=["locks"])
    read = History.read(tmp_path)
    assert trial.workloads == ("locks",)
    assert [verdict.looks for verdict in evaluate_all(read)] == [verdict.looks for verdict in trial.verdicts]


def test_a_broken_promise_is_reported_with_the_command_that_plays_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_lives(history: History) -> Iterator[str | int]:
        yield 1
        yield f"{len(history.notes('life.began')) > 0} lives were lived"

    monkeypatch.setattr(suite, "CHECKS", (Check("lifeless", "no one lives", no_lives),))
    args = ["--first", "7", "--seeds", "5", "--seconds", "5", "--slow", "2", "--with", "looks"]
    assert _ended(monkeypatch, *args, "--until-broken") == 1
    answer = capsys.readouterr().out
    assert answer.startswith("1 seeds")
    assert "BROKEN  lifeless" in answer
    again = "python -m proof.simulate --seed 7 --seconds 5 --slow 2 --with looks --history history"
    assert answer.splitlines()[-1] == f"again: {again}"
    assert _ended(monkeypatch, *args, "--until", "another", "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["seeds"], document["broken"]) == (5, ["lifeless"])
    assert document["trials"][0]["again"] == again


def test_seeds_that_break_nothing_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _ended(monkeypatch, "--seeds", "4", "--seconds", "5", "--with", "writes", "--processes", "2") == 0
    assert capsys.readouterr().out.startswith("4 seeds")


def test_an_error_that_is_none_of_the_mesh_breaks_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stumble(context: WorkloadContext) -> None:
        if context.recorder.incarnation == 1:
            raise ValueError("a fault of the program")
        await context.over.wait()

    monkeypatch.setattr(suite, "WORKLOADS", (FunctionWorkload("stumbling", stumble),))
    (broken,) = run_seed(1, seconds=5.0).broken
    assert broken.name == "nothing-unexpected"
    assert "a fault of the program" in broken.faults[0]


def _ended(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """How the command ends."""
    monkeypatch.setattr(sys, "argv", ["simulate", *arguments])
    with pytest.raises(SystemExit) as ended:
        command.main()
    return int(ended.value.code or 0)


def test_other_faults_befall_a_world_only_if_they_are_asked_for_and_leave_the_usual_as_they_are() -> None:
    step = Kind.DATABASE_CLOCK
    usual_kinds = DEFAULT_FAULTS - {Kind.ROLLBACK, step}
    usual, more = (draw_plan(7, 40.0, kinds) for kinds in (usual_kinds, usual_kinds | {step}))
    assert [fault for fault in more.faults if fault.kind is not step] == list(usual.faults)
    assert step in {fault.kind for fault in more.faults}
    only = draw_plan(7, 40.0, frozenset((Kind.ROLLBACK,)))
    assert {fault.kind for fault in only.faults} == {Kind.ROLLBACK}


def test_a_world_has_rollbacks_or_steps_of_the_clock_and_never_both() -> None:
    both = {Kind.ROLLBACK, Kind.DATABASE_CLOCK}
    drawn = [{f.kind for f in draw_plan(seed, 40.0, frozenset(Kind)).faults} & both for seed in range(40)]
    assert all(len(kinds) <= 1 for kinds in drawn)
    assert both == set().union(*drawn)


def test_a_play_with_every_fault_is_the_same_every_time() -> None:
    first, second = (run_seed(7, seconds=15.0, only=["locks", "consumers"]) for _ in range(2))
    assert first.digest == second.digest
    fewer = DEFAULT_FAULTS - {Kind.SLOW, Kind.HELD}
    assert first.faults > run_seed(7, seconds=15.0, only=["locks", "consumers"], faults=fewer).faults
