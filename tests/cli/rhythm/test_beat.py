"""`vox-mesh beat` and `vox-mesh ucxl`: a metronome, and the times that addresses mean."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from contextlib import aclosing
from dataclasses import fields
from itertools import pairwise
from typing import Any, Final

import pytest

from tests.cli.conftest import VoxCommand, assert_wrong_usage
from tests.cli.terminals import terminal
from tests.support.nodes.virtual_time import dependencies, in_virtual_time
from vox_mesh import Mesh, Settings
from vox_mesh.cli import app
from vox_mesh.cli.rhythm import beat
from vox_mesh.model.locks.records import iso_of, milliseconds_at
from vox_mesh.model.rhythm.plan import BeatFrame
from vox_mesh.model.rhythm.tempo import window_id
from vox_mesh.views.rhythm import BeatView, beat_of

FAST: Final = "{cluster_id: east, initial_bpm: 600, bar_len_beats: 5, phases: {plan: 1, work: 3, review: 1}}"
STRIPS: Final = ["|#|---|-|", "|=|#--|-|", "|=|=#-|-|", "|=|==#|-|", "|=|===|#|"]
PHASES: Final = ["plan", "work", "work", "work", "review"]


@pytest.fixture
def fast(vox: VoxCommand) -> VoxCommand:
    """Commands that go by beats of a tenth of a second."""
    (vox.folder / "tempo.yaml").write_text(FAST)
    return vox.having(VOX_MESH_TEMPO_POLICY="tempo.yaml")


def assert_fits(reported: dict[str, Any]) -> None:
    """The beat is what its own times say."""
    epoch_ms, next_ms = milliseconds_at(reported["beat_epoch"]), milliseconds_at(reported["next_downbeat_at"])
    assert reported["beat_index"] == 1 + epoch_ms // 100 % 5
    assert milliseconds_at(reported["deadline_at"]) == epoch_ms + 100
    assert next_ms == epoch_ms + (6 - reported["beat_index"]) * 100
    assert reported["window"] == window_id("east", next_ms - 500)
    assert reported["phase"] == PHASES[reported["beat_index"] - 1]
    assert reported["downbeat"] is (reported["beat_index"] == 1)


def test_the_beat_of_now_is_one_line_or_one_document(fast: VoxCommand) -> None:
    reported = fast("beat", "--json").document
    assert {field.name for field in fields(BeatFrame)} | {"window", "next_downbeat_at", "leader"} == {
        *reported
    }
    assert (reported["cluster_id"], reported["tempo_bpm"], reported["source"]) == ("east", 600.0, "policy")
    assert reported["leader"] is None
    assert_fits(reported)
    (line,) = fast("beat").out.splitlines()
    strip, place, phase, *rest = line.split()
    index = int(place.removesuffix("/5"))
    assert (strip, phase) == (STRIPS[index - 1], PHASES[index - 1])
    assert re.fullmatch(r"600 bpm downbeat in 0\.\d s leader - east", " ".join(rest))


def test_it_needs_no_database_and_makes_no_key(memory: VoxCommand, fast: VoxCommand) -> None:
    assert memory("beat").out.split()[2] in ("plan", "work", "review")
    assert fast("beat").code == 0
    assert not (fast.folder / ".vox/slots").exists()


def test_followed_it_tells_beats_as_they_begin_and_every_downbeat_until_ctrl_c(fast: VoxCommand) -> None:
    with fast.running("beat", "--follow", "--json") as documents, fast.running("beat", "--follow") as lines:
        reported = [json.loads(documents.stdout.readline()) for _ in range(12)]
        drawn = [STRIPS.index(lines.stdout.readline().split()[0]) for _ in range(12)]
        for process in (documents, lines):
            process.send_signal(signal.SIGINT)
        assert [process.wait(60) for process in (documents, lines)] == [130, 130]
    for each in reported:
        assert_fits(each)
    # A process that was kept waiting for longer than a bar leaves out beats, but no downbeat.
    epochs = [milliseconds_at(each["beat_epoch"]) for each in reported]
    downbeats = {each for each in range(epochs[0], epochs[-1], 100) if each % 500 == 0}
    assert downbeats <= {*epochs}
    assert all(earlier < later for earlier, later in pairwise(epochs))
    assert all(earlier["hlc"] < later["hlc"] for earlier, later in pairwise(reported))
    assert all(later > earlier or later == 0 for earlier, later in pairwise(drawn))


@in_virtual_time
async def test_beats_that_begin_while_the_current_one_is_read_are_told_too() -> None:
    async def slowly(mesh: Mesh) -> BeatView:
        seen = await beat_of(mesh)
        await asyncio.sleep(5.0)
        return seen

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(beat, "beat_of", slowly)
        async with (
            Mesh.open(Settings(enabled=False, node_id="ann"), dependencies()) as mesh,
            aclosing(beat._beats(mesh)) as beats,
        ):
            epochs = [milliseconds_at((await anext(beats)).beat_epoch) for _ in range(6)]
    assert len({later - earlier for earlier, later in pairwise(epochs)}) == 1


def test_on_a_terminal_one_line_is_drawn_again_and_again(fast: VoxCommand) -> None:
    with terminal(fast.having(LC_ALL="C.UTF-8"), "beat", "--follow") as shown:
        text = shown.shows("│◉│○○○│○│", "│●│●●●│◉│")
        os.kill(shown.pid, signal.SIGINT)
        assert shown.ended() == 130
    assert text.count(b"\r\x1b[K") > 1
    assert b"\n" not in text


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


def test_an_address_is_resolved_by_the_tempos_of_the_mesh(vox: VoxCommand) -> None:
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
