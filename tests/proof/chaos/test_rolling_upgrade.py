"""Rolling upgrades: each node goes on with newer code, then with older, then with newer; nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from proof.chaos.builds import EARLIER, NEXT, THIS, BuildMissing, build_of, earlier_revision
from proof.chaos.schedule import Kind, StoreKind, draw_schedule
from proof.run import run
from tests.support.running.lengths import SOAK, cases_in_soak

_SECONDS: Final = 60 if SOAK else 10
_PATIENCE_S: Final = _SECONDS + 140
_NODES: Final = ("ann", "ben", "cleo")
_WORKLOADS: Final = () if SOAK else ("--with", "pruning", "jobs", "writes", "backups")


@pytest.mark.soak
@pytest.mark.timeout(_PATIENCE_S + 70)
@pytest.mark.parametrize("store", list(StoreKind) if SOAK else [None])
@pytest.mark.parametrize("older", [THIS, *cases_in_soak(EARLIER)])
def test_nodes_are_replaced_by_a_newer_version_and_back_under_load(
    older: str, store: StoreKind | None, seed: int, tmp_path: Path
) -> None:
    if older == EARLIER:
        try:
            earlier_revision()
        except BuildMissing as error:
            pytest.skip(str(error))
    builds = (older, NEXT if older == THIS else THIS)
    store, folder = store or StoreKind.drawn_from(seed), tmp_path / "run"
    args = ("--seconds", str(_SECONDS), "--nodes", str(len(_NODES)), "--seed", str(seed), "--store", store)
    given = (*args, "--builds", *builds, "--faults", "kill", *_WORKLOADS, "--out", str(folder))
    finished = run("proof.chaos", *given, within_s=_PATIENCE_S)
    assert finished.status == 0, f"{finished.out}\n{finished.err}"
    verdicts = json.loads((folder / "verdicts.json").read_bytes())
    judged = {each["name"] for each in verdicts if each["holds"] and each["looks"]}
    assert {"mixed-versions", "one-end", "writes-none-lost", "integrity"} <= judged


def test_each_node_is_replaced_in_turn_and_nothing_is_rolled_back() -> None:
    plan = draw_schedule(7, 60.0, StoreKind.FILE, _NODES, builds=(THIS, NEXT))
    turns = [(each.node, each.detail["build"]) for each in plan.faults if each.kind is Kind.REPLACEMENT]
    assert turns == [(node, build) for build in (NEXT, THIS, NEXT) for node in _NODES]
    assert not {Kind.STORE_BACK, Kind.COMMITS_LOST} & {each.kind for each in plan.faults}
    assert len({each.id for each in plan.faults}) == len(plan.faults)


def test_an_unknown_revision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildMissing):
        build_of("no-such-revision", tmp_path)
