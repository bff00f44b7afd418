"""Agents that edit one repository over MCP and hooks: only edits under locks are committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from proof.chaos.schedule import StoreKind
from proof.run import run
from tests.support.running.lengths import SOAK

_SECONDS: Final = 120 if SOAK else 6
_PATIENCE_S: Final = _SECONDS + 240


@pytest.mark.soak
@pytest.mark.timeout(_PATIENCE_S + 70)
@pytest.mark.parametrize("store", list(StoreKind) if SOAK else [None])
def test_two_agents_edit_one_repository_one_is_killed_and_no_edit_without_its_lock_is_committed(
    store: StoreKind | None, tmp_path: Path, seed: int
) -> None:
    store = store or StoreKind.drawn_from(seed)
    folder = tmp_path / "run"
    args = ("--seconds", str(_SECONDS), "--seed", str(seed), "--store", store, "--out", str(folder))
    finished = run("proof.editing", *args, within_s=_PATIENCE_S)
    print(finished.out)
    assert finished.status == 0, f"{finished.out}\n{finished.err}"
    verdicts = json.loads((folder / "verdicts.json").read_bytes())
    assert all(each["holds"] for each in verdicts)
    assert [each["name"] for each in verdicts if not each["looks"]] == []
