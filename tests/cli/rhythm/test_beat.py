"""`vox-mesh beat`: a metronome, for people and for programs."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import fields
from itertools import pairwise
from typing import Any, Final

import pytest

from tests.cli.conftest import Vox
from tests.cli.terminals import terminal
from vox_mesh.model.locks.records import milliseconds_at
from vox_mesh.model.rhythm.plan import BeatFrame
from vox_mesh.model.rhythm.tempo import window_id

FAST: Final = "{cluster_id: east, initial_bpm: 600, bar_len_beats: 5, phases: {plan: 1, work: 3, review: 1}}"
STRIPS: Final = ["|#|---|-|", "|=|#--|-|", "|=|=#-|-|", "|=|==#|-|", "|=|===|#|"]
PHASES: Final = ["plan", "work", "work", "work", "review"]


@pytest.fixture
def fast(vox: Vox) -> Vox:
    """Commands that go by beats of a tenth of a second."""
    (vox.folder / "tempo.yaml").write_text(FAST)
    return vox.having(VOX_MESH_TEMPO_POLICY="tempo.yaml")


def assert_fits(told: dict[str, Any]) -> None:
    """The beat is what its own times say."""
    epoch_ms, next_ms = milliseconds_at(told["beat_epoch"]), milliseconds_at(told["next_downbeat_at"])
    assert told["beat_index"] == 1 + epoch_ms // 100 % 5
    assert milliseconds_at(told["deadline_at"]) == epoch_ms + 100
    assert next_ms == epoch_ms + (6 - told["beat_index"]) * 100
    assert told["window"] == window_id("east", next_ms - 500)
    assert told["phase"] == PHASES[told["beat_index"] - 1]
    assert told["downbeat"] is (told["beat_index"] == 1)


def test_the_beat_of_now_is_one_line_or_one_document(fast: Vox) -> None:
    told = fast("beat", "--json").document
    assert {field.name for field in fields(BeatFrame)} | {"window", "next_downbeat_at", "leader"} == {*told}
    assert (told["cluster_id"], told["tempo_bpm"], told["source"]) == ("east", 600.0, "policy")
    assert told["leader"] is None
    assert_fits(told)
    (line,) = fast("beat").out.splitlines()
    strip, place, phase, *rest = line.split()
    index = int(place.removesuffix("/5"))
    assert (strip, phase) == (STRIPS[index - 1], PHASES[index - 1])
    assert re.fullmatch(r"600 bpm downbeat in 0\.\d s leader - east", " ".join(rest))


def test_it_needs_no_database_and_makes_no_key(memory: Vox, fast: Vox) -> None:
    assert memory("beat").out.split()[2] in ("plan", "work", "review")
    assert fast("beat").code == 0
    assert not (fast.folder / ".vox/slots").exists()


def test_followed_it_tells_each_beat_when_it_begins_until_ctrl_c(fast: Vox) -> None:
    with fast.running("beat", "--follow", "--json") as documents, fast.running("beat", "--follow") as lines:
        told = [json.loads(documents.stdout.readline()) for _ in range(12)]
        drawn = [lines.stdout.readline().split()[0] for _ in range(12)]
        for process in (documents, lines):
            process.send_signal(signal.SIGINT)
        assert [process.wait(60) for process in (documents, lines)] == [130, 130]
    for each in told:
        assert_fits(each)
    epochs = [milliseconds_at(each["beat_epoch"]) for each in told]
    assert [later - earlier for earlier, later in pairwise(epochs)] == [100] * 11
    assert all(earlier["hlc"] < later["hlc"] for earlier, later in pairwise(told))
    first = STRIPS.index(drawn[0])
    assert drawn == [STRIPS[(first + beat) % 5] for beat in range(12)]


def test_on_a_terminal_one_line_is_drawn_again_and_again(fast: Vox) -> None:
    with terminal(fast.having(LC_ALL="C.UTF-8"), "beat", "--follow") as shown:
        text = shown.shows("│◉│○○○│○│", "│●│●●●│◉│")
        os.kill(shown.pid, signal.SIGINT)
        assert shown.ended() == 130
    assert text.count(b"\r\x1b[K") > 1
    assert b"\n" not in text
