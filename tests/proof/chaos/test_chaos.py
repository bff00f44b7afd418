"""Chaos with a new seed each time, which also chooses the store; at length on each store."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from proof.chaos.schedule import StoreKind
from proof.run import run
from tests.support.running.lengths import SOAK, cases_in_soak

_SECONDS = 180 if SOAK else 10
_PATIENCE_S = _SECONDS + 140
_FIXED = 23


@pytest.mark.soak
@pytest.mark.timeout(_PATIENCE_S + 70)
@pytest.mark.parametrize("is_new", [True, *cases_in_soak(False)], ids=lambda each: f"new seed {each}")
@pytest.mark.parametrize("store", list(StoreKind) if SOAK else [None])
def test_all_promises_hold_under_chaos(
    store: StoreKind | None, is_new: bool, tmp_path: Path, seed: int
) -> None:
    store = store or StoreKind.drawn_from(seed)
    args = ("--seconds", str(_SECONDS), "--seed", str(seed if is_new else _FIXED), "--store", store)
    finished = run("proof.chaos", *args, "--out", str(tmp_path / "run"), within_s=_PATIENCE_S)
    assert finished.status == 0, f"{finished.out}\n{finished.err}"
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"stage.jsonl", "ann-1.jsonl", "schedule.json", "verdicts.json", "chaos.svg"} <= written
    assert all(each["holds"] for each in json.loads((tmp_path / "run" / "verdicts.json").read_bytes()))
    Xml.parse(tmp_path / "run" / "chaos.svg")
