"""`vox-mesh ucxl`: when an address means, by the mesh's tempo."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import Vox, assert_wrong_usage
from vox_mesh.cli import app
from vox_mesh.model.locks.records import iso_of, milliseconds_at

ADDRESS = "ucxl://proj:any/*/task/ingest"


def resolved(capsysbinary: pytest.CaptureFixture[bytes], suffixes: str) -> dict[str, Any]:
    """What the command says of an address."""
    assert app.run(["ucxl", "resolve", ADDRESS + suffixes, "--json"]) == 0
    shown = capsysbinary.readouterr()
    assert shown.err == b""
    document: dict[str, Any] = json.loads(shown.out)
    return document


def test_on_the_memory_home_an_address_is_resolved_by_the_built_in_tempo(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    found = resolved(capsysbinary, ";beats=~~9")
    assert found["address"] == f"{ADDRESS};beats=~~9"
    assert found["delta_beats"] == -9
    assert found["at"] == iso_of(found["at_ms"])
    epoch_ms = milliseconds_at(found["beat_epoch"])
    assert 0 <= found["at_ms"] - epoch_ms < 5_000, "12 beats a minute"
    assert found["window_ms"] == epoch_ms - (found["beat_index"] - 1) * 5_000
    by_beat = ["plan"] * 2 + ["work"] * 4 + ["review"] * 2
    assert found["phase"] == by_beat[found["beat_index"] - 1]
    ahead = resolved(capsysbinary, ";beats=^^4;phase=work")
    assert (ahead["phase"], ahead["delta_beats"] >= 4) == ("work", True)


def test_an_address_is_resolved_by_the_tempos_of_the_mesh(vox: Vox) -> None:
    policy = "{cluster_id: home, initial_bpm: 60, bar_len_beats: 4, phases: {sing: 3, rest: 1}}"
    (vox.folder / "tempo.yaml").write_text(policy)
    assert vox("rhythm", "policy", "set", "tempo.yaml").code == 0
    there = vox("ucxl", "resolve", f"{ADDRESS};beats=^^100;phase=rest", "--json").document
    assert (there["beat_index"], there["phase"], there["delta_beats"] in range(100, 104)) == (4, "rest", True)
    assert milliseconds_at(there["beat_epoch"]) == there["window_ms"] + 3 * 1_000


def test_without_json_there_is_a_line_for_each_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["ucxl", "resolve", f"{ADDRESS};bar=3#beat=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"address      {ADDRESS};bar=3#beat=2", "at           1970-01-01T00:01:25.000Z"]
    assert [line.split()[0] for line in lines][2:] == [
        *("at_ms", "delta_beats", "beat_index", "beat_epoch", "phase", "window", "window_ms")
    ]


def test_what_is_no_address_is_refused_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    for address, fault in (
        ("ucxl://a;beats=4", "it does not say which way, at offset 15; ^^N is N beats from now"),
        ("ucxl://a;phase=sing", "there is no phase sing, at offset 15; there is plan, work, review"),
        ("http://a", "ucxl:// is missing, at offset 0"),
    ):
        assert_wrong_usage(f"ucxl resolve {address}", fault, capsys)
