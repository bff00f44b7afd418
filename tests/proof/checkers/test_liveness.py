"""What the judges of nodes and of progress find, and what they have nothing against."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from proof.checkers.liveness import LIVENESS_CHECKS
from proof.checkers.progress import PROGRESS_CHECKS
from proof.history import Step
from proof.judge import evaluate_all
from proof.workloads.looks import LOOKS
from proof.workloads.writes import WRITES
from tests.proof.calm import run_calmly
from tests.proof.checkers.timed import Lines, did, faults, final, noted

_PACE = noted("ada", "pace", 0.0, tick_s=1.0, ttl_s=5.0, rest_s=1.0)


def _life(who: str, began: float, ended: float = math.inf, how: str = "killed", number: int = 1) -> Lines:
    lines = noted("stage", "life.began", began, player=who, life=number, node_id=f"node-{who}")
    lines += noted(who, "up", began + 0.1, number)
    if ended < math.inf:
        lines += noted("stage", "life.ended", ended, player=who, life=number, how=how)
    return lines


def _wrote(who: str, *times: float) -> Lines:
    return [line for at in times for line in did(who, "write", (at, at + 0.2), {"number": 1})]


def _tried(who: str, at: float) -> Lines:
    return did(who, "write", (at, at + 0.2), {"number": 1}, Step.UNKNOWN)


def _saw(who: str, at: float, state: str, since: float | None = None) -> Lines:
    return noted(who, "nodes.seen", at, since=at if since is None else since, states={"node-bob": state})


_ALL_THE_TIME = tuple(range(1, 60))
_SCENE = [_PACE, _life("ada", 0.0), _wrote("ada", *_ALL_THE_TIME)]


# --- who lives ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["alive", "critical"])
def test_a_node_that_writes_may_be_late(state: str) -> None:
    seen = [_life("bob", 0.0), _wrote("bob", *_ALL_THE_TIME), _saw("ada", 30.5, state)]
    assert faults(LIVENESS_CHECKS, "live-never-dead", *_SCENE, *seen) == []


def test_a_node_that_writes_and_is_reported_as_dead_is_found() -> None:
    seen = [_life("bob", 0.0), _wrote("bob", *_ALL_THE_TIME), _saw("ada", 30.5, "dead")]
    assert faults(LIVENESS_CHECKS, "live-never-dead", *_SCENE, *seen)


@pytest.mark.parametrize(
    "lines",
    {
        "paused for a while": [_wrote("bob", *range(1, 18), *range(28, 60)), _saw("ada", 30.5, "dead")],
        "without the database until now": [_wrote("bob", 28), _saw("ada", 30.5, "dead")],
        "who looks was paused since it looked": [
            *(_wrote("bob", *range(25, 60)), _saw("ada", 50.0, "dead", since=20.0)),
        ],
    }.values(),
)
def test_a_node_that_could_not_be_heard_may_be_reported_as_dead(lines: list[Lines]) -> None:
    good = [_life("cyd", 0.0), _wrote("cyd", *_ALL_THE_TIME)]
    looked = noted("ada", "nodes.seen", 40.5, since=40.5, states={"node-cyd": "alive"})
    context = [*_SCENE, *good, looked, _life("bob", 0.0)]
    assert faults(LIVENESS_CHECKS, "live-never-dead", *context, *lines) == []


def test_who_has_not_written_for_long_may_not_know_who_lives() -> None:
    bob = [_life("bob", 0.0), _wrote("bob", *_ALL_THE_TIME)]
    seen = [_life("eve", 0.0), _wrote("eve", 1, 2), _saw("eve", 30.5, "dead"), _saw("ada", 30.5, "alive")]
    assert faults(LIVENESS_CHECKS, "live-never-dead", *_SCENE, *bob, *seen) == []


# --- who is dead -------------------------------------------------------------------------------------


def _ended(how: str) -> list[Lines]:
    return [*_SCENE, _life("bob", 0.0, 5.0, how), _wrote("bob", 1, 2)]


@pytest.mark.parametrize(("how", "state"), [("killed", "dead"), ("left", "left"), ("left", "dead")])
def test_a_node_that_has_ended_is_reported_as_such(how: str, state: str) -> None:
    early = _saw("ada", 15.5, "warn")
    assert faults(LIVENESS_CHECKS, "dead-told", *_ended(how), early, _saw("ada", 40.5, state)) == []


@pytest.mark.parametrize(("how", "state"), [("killed", "critical"), ("killed", "left"), ("left", "alive")])
def test_a_node_that_has_ended_and_is_reported_otherwise_is_found(how: str, state: str) -> None:
    assert faults(LIVENESS_CHECKS, "dead-told", *_ended(how), _saw("ada", 40.5, state))


def test_a_node_that_is_late_and_reported_as_alive_is_found() -> None:
    assert faults(LIVENESS_CHECKS, "dead-told", *_ended("killed"), _saw("ada", 15.5, "alive"))


def test_a_killed_node_that_is_said_to_have_left_is_found() -> None:
    assert faults(
        LIVENESS_CHECKS,
        "dead-told",
        *_ended("killed"),
        final("mesh_heartbeats", {"node_id": "node-bob", "left_ms": 7}),
    )


def test_a_node_that_came_back_may_live() -> None:
    back = [_life("bob", 40.0, number=2), _saw("ada", 35.5, "dead"), _saw("ada", 45.5, "alive")]
    assert faults(LIVENESS_CHECKS, "dead-told", *_ended("killed"), *back) == []


# --- progress ----------------------------------------------------------------------------------------

_HEALED = noted("stage", "healed", 20.0)
_END = noted("stage", "drained", 60.0, player="bob")


@pytest.mark.parametrize(("at", "is_soon"), [(21.0, True), (34.0, True), (36.0, False), (19.0, False)])
def test_one_that_lives_writes_within_the_bound_after_all_has_healed(at: float, is_soon: bool) -> None:
    bob = (_life("bob", 0.0), _wrote("bob", at), *(_tried("bob", at + 0.5) for at in range(20, 36, 2)))
    found = faults(PROGRESS_CHECKS, "progress", _PACE, *bob, _HEALED, _END)
    assert (found == []) is is_soon


@pytest.mark.parametrize("later", [(), (34.0,)], ids=["at all", "until it drains"])
def test_one_that_does_not_try_any_more_need_not_write(later: tuple[float, ...]) -> None:
    bob = (_life("bob", 0.0), *(_tried("bob", at) for at in (20.5, 22.5, *later)))
    ada = (_life("ada", 0.0), _wrote("ada", 21.0), noted("stage", "drained", 60.0, player="ada"))
    assert faults(PROGRESS_CHECKS, "progress", _PACE, *bob, *ada, _HEALED, _END) == []


def test_one_that_dies_is_disturbed_again_or_comes_up_later_need_not() -> None:
    killed = [_life("cyd", 0.0, 22.0)]
    late = [_life("eve", 30.0), _wrote("eve", 40.0)]
    calm = noted("stage", "calm.began", 5.0) + noted("stage", "storm.began", 9.0)
    open_ = noted("stage", "fault.began", 6.0, id=1, kind="cut") + noted("stage", "fault.ended", 19.0, id=1)
    bob = [_life("bob", 0.0), _wrote("bob", 30.0), _HEALED, _END]
    assert faults(PROGRESS_CHECKS, "progress", _PACE, calm, open_, *killed, *late, *bob) == []


def test_a_node_that_never_comes_up_again_is_found() -> None:
    began = noted("stage", "life.began", 10.0, player="bob", life=1, node_id="node-bob")
    assert faults(PROGRESS_CHECKS, "progress", _PACE, began, _HEALED)


def test_a_node_that_was_begun_again_before_it_came_up_need_not() -> None:
    began = noted("stage", "life.began", 10.0, player="bob", life=1, node_id="node-bob")
    ended = noted("stage", "life.ended", 22.0, player="bob", life=1, how="broke")
    again = [_life("bob", 12.0, number=2), _wrote("bob", 21.0)]
    assert faults(PROGRESS_CHECKS, "progress", _PACE, began, *again, _HEALED, ended, _END) == []
    assert faults(PROGRESS_CHECKS, "progress", _PACE, began, _HEALED, ended, _END)


def test_what_no_one_foresaw_is_found() -> None:
    assert faults(PROGRESS_CHECKS, "nothing-unexpected", _life("bob", 0.0)) == []
    unexpected = noted("stage", "unexpected", 3.0, player="bob", error="KeyError('x')")
    assert faults(PROGRESS_CHECKS, "nothing-unexpected", _life("bob", 0.0), unexpected)


def test_a_calm_run_is_seen_by_all_unchanged(tmp_path: Path) -> None:
    history = run_calmly(tmp_path, WRITES, LOOKS, seconds=200.0)
    said = evaluate_all(history)
    assert [str(each) for each in said if not each.holds] == []
    looks = {each.name: each.looks for each in said}
    assert looks["live-never-dead"] > 10
    assert looks["progress"]
