"""A short attack on a mesh: nothing fails, nothing stalls, and nothing unsigned is believed."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from proof.chaos.schedule import StoreKind
from proof.checkers.hostile import HOSTILE_CHECKS
from proof.hostile.requests import RequestMaker
from proof.run import run
from tests.proof.checkers.story import Story, faults
from tests.support.running.lengths import SOAK, in_soak

_SECONDS = 120 if SOAK else 5
_PATIENCE_S = _SECONDS + 150


@pytest.mark.soak
@pytest.mark.timeout(_PATIENCE_S + 70)
@pytest.mark.parametrize("store", [StoreKind.FILE, *in_soak(StoreKind.SQLD)])
def test_a_mesh_holds_under_attack(store: StoreKind, tmp_path: Path, seed: int) -> None:
    args = ("--seconds", str(_SECONDS), "--seed", str(seed), "--store", store, "--out", str(tmp_path / "run"))
    finished = run("proof.hostile", *args, within_s=_PATIENCE_S)
    assert finished.status == 0, f"{finished.out}\n{finished.err}"
    verdicts = json.loads((tmp_path / "run" / "verdicts.json").read_bytes())
    assert all(each["holds"] for each in verdicts)


def test_every_route_comes_once_in_a_pass_and_with_every_credential_in_a_round() -> None:
    routes = [("GET", f"/{number}") for number in range(30)]
    requests = RequestMaker(routes, {"paths": {}, "components": {"schemas": {}}}, ["ann"], Random(1)).rounds()
    passes = [list(islice(requests, len(routes))) for _ in range(7)]
    assert all({each.route for each in one} == {path for _, path in routes} for one in passes)
    tried = Counter((each.route, each.credential) for one in passes for each in one)
    for _, path in routes:
        assert [tried[path, each] for each in ("none", "guess", "read", "metrics", "full")] == [1, 1, 1, 1, 3]


def _late(since: float, seconds: float, computed: float) -> Story:
    story = Story()
    story.node("ann").note("loop.watched", samples=20, worst=0.0)
    story.node("ann").note("loop.late", since=since, seconds=seconds, computed=computed)
    return story


def test_a_loop_that_computes_is_found_and_one_that_the_machine_delays_is_not() -> None:
    assert faults(HOSTILE_CHECKS, "no-stall", _late(0.0, 1.5, 1.4)) != []
    assert faults(HOSTILE_CHECKS, "no-stall", _late(0.0, 1.5, 0.1)) != []  # it blocks, on an idle machine
    busy = _late(0.0, 1.5, 0.1)
    busy.node("machine").note("machine.stretch", since=0.0, stretch=4.0)
    assert faults(HOSTILE_CHECKS, "no-stall", busy) == []


@pytest.mark.parametrize(
    ("check", "note", "data"),
    [
        ("messages-authentic", "message.received", {"forged": "message without a signature"}),
        ("keys-authentic", "message.received", {"forged": "message with a planted key"}),
        ("jobs-authentic", "job.ran", {"forged": "job without an op"}),
        ("outputs-authentic", "output.given", {"job": "j", "forged": True}),
        ("crons-authentic", "job.ran", {"forged": "cron"}),
        ("owner-authentic", "believed", {"owner": "evil", "coordinator": None, "routes": {}}),
        ("routes-authentic", "believed", {"owner": "ann", "coordinator": None, "routes": {"build": "evil"}}),
        ("addresses-authentic", "trapped", {"line": "POST /v1/a2a/deliver"}),
        ("job-forgery-named", "verified", {"command": "job verify x", "status": 0, "err": ""}),
        ("work-goes-on", "good.end", {"kind": "message", "done": False}),
    ],
)
def test_what_the_attacker_achieves_is_found(check: str, note: str, data: dict[str, object]) -> None:
    story = Story()
    story.node("ann").note(note, **data)
    assert faults(HOSTILE_CHECKS, check, story) != []


def test_a_forged_chain_that_verifying_does_not_name_is_found() -> None:
    story = Story()
    story.node("stage").note("forgery", way="owner", chain="evil", refused="")
    report = json.dumps([{"node_id": "ann", "problem": None}])
    story.node("stage").note("verified", command="oplog verify --json", status=0, out=report, err="")
    assert faults(HOSTILE_CHECKS, "log-forgery-named", story) != []
