"""`vox-mesh rhythm` and `vox-mesh score`: set the tempo, report on bars, draw a score."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from tests.cli.conftest import VoxCommand, running_node
from tests.support.rhythm.grounds import BAR_MS, BEGIN_MS, MovableClock, player
from vox_mesh import Mesh, load_settings
from vox_mesh.cli import app
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.locks.records import iso_of
from vox_mesh.model.rhythm.score import Score
from vox_mesh.model.rhythm.tempo import window_id
from vox_mesh.oplog.export import verify_export

POLICY: Final = (
    "cluster_id: band\ninitial_bpm: 15\nphases: {work: 4, plan: 3, review: 1}\nadaptation: {enable: true}\n"
)
SCORE: Final = """\
ucxl: ucxl://proj:any/*/task/ingest
score:
  tempo: 15
  phases: {plan: 2, work: 4, review: 2}
  retry: {max_phrases: 3}
  escalation: {on_wait_exhausted: ["emit:needs-attention", "fallback:coarse-answer"]}
budget: {max_bu: 12}
"""


# --- the policy -----------------------------------------------------------------------------------


def test_a_policy_is_announced_ahead_where_a_node_runs_and_shown_beside_the_one_in_force(
    vox: VoxCommand,
) -> None:
    (vox.folder / "tempo.yaml").write_text(POLICY)
    with running_node(vox):
        announced = vox("rhythm", "policy", "set", "tempo.yaml", "--json").document
        shown = vox("rhythm", "policy", "show", "--json").document
        lines = vox("rhythm", "policy", "show").out.splitlines()
    bar_ms = 40_000  # of the policy that is built in
    assert announced["anchor_ms"] % bar_ms == 0
    assert 2 * bar_ms <= announced["anchor_ms"] - announced["announced_ms"] <= 4 * bar_ms
    assert (announced["tempo_bpm"], announced["beat_ms"], announced["bar_len_beats"]) == (15.0, 4_000, 8)
    assert list(announced["phases"].items()) == [("work", 4), ("plan", 3), ("review", 1)]
    assert shown["announced"] == [announced]
    current = shown["in_force"]
    assert (current["tempo_bpm"], current["reason"], current["op_id"]) == (12.0, "built in", None)
    assert current["policy"]["cluster_id"] == "default"
    assert lines[1] == "tempo      12 beats a minute, 8 in a bar of 40 s"
    assert lines[-2].split() == ["tempo", "from", "why"]
    assert lines[-1].startswith("  15 beats a minute, 8 in a bar of 32 s  20")
    assert lines[-1].endswith("s)  set by hand")


def test_where_no_node_runs_a_policy_is_in_force_at_once(vox: VoxCommand) -> None:
    (vox.folder / "tempo.yaml").write_text(POLICY)
    ended = vox("rhythm", "policy", "set", "tempo.yaml")
    said = dict(line.split(maxsplit=1) for line in ended.out.splitlines())
    assert said["phases"] == "work 4, plan 3, review 1"
    assert said["limits"] == "7.5 to 30 beats a minute"
    assert said["adapts"] == "by up to 1 beat a minute, if it deviates by 10 % or more"
    assert said["from"].endswith("s ago)")
    shown = vox("rhythm", "policy", "show", "--json").document
    assert (shown["announced"], shown["in_force"]["policy"]["cluster_id"]) == ([], "band")
    assert shown["in_force"]["anchor_ms"] <= shown["now_ms"]
    assert all(Hlc.parse(time).author for time in asyncio.run(announced_times()))
    vox("oplog", "export", "log")
    stamp = verify_export(vox.folder / "log").header.stamp
    assert stamp is not None
    assert 1 <= stamp.beat_index <= 8


async def announced_times() -> list[str]:
    """The hybrid times of the tempos that were announced."""
    async with Mesh.open(load_settings(_env_file=None, enabled=True, http=False, node_id="ann")) as mesh:
        return [row["hlc"] for row in await mesh.store.read("SELECT hlc FROM tempo_policies")]


def test_a_declared_incident_is_shown_by_the_policy_the_doctor_and_the_screen(vox: VoxCommand) -> None:
    declared = vox("rhythm", "incident", "declare", "--reason", "failover", "--json").document
    assert vox("rhythm", "incident", "show", "--json").document == {"incident": declared}
    assert (
        f"incident   {declared['declared_at']} failover" in vox("rhythm", "policy", "show").out.splitlines()
    )
    checks = {each["check"]: each for each in vox("doctor", "--json").document}
    assert checks["tempo"]["state"] == "warn"
    assert checks["tempo"]["found"].startswith("frozen by an incident since ")
    assert "  incident: failover" in vox("top").out
    assert vox("rhythm", "incident", "clear", "--json").document == declared
    assert "incident" not in vox("top").out
    assert "no incident is declared" in vox("rhythm", "incident", "clear").err


def test_a_bad_policy_is_reported_line_by_line_before_any_mesh_is_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tempo.yaml"
    file.write_text("cluster_id: band\ninitial_bpm: 0\nbeats: 1\n")
    assert app.run(["rhythm", "policy", "set", str(file)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    first, second = shown.err.splitlines()
    assert first.startswith(f"{file}:2: initial_bpm: must not be 0; allowed: ")
    assert second.startswith(f"{file}:3: beats: is no field of a policy; allowed: ")


# --- scores ---------------------------------------------------------------------------------------


def score_file(folder: Path, text: str = SCORE) -> str:
    """A file with this score."""
    (folder / "score.yaml").write_text(text)
    return str(folder / "score.yaml")


def test_a_score_is_drawn_with_a_strip_for_each_phrase(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["score", "check", score_file(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines() == [
        "    1     2     3     4     5     6     7     8",
        "  1 |plan-+-----|work-+-----+-----+-----|review-----|  8 beats",
        "  2 |plan-|work-+-----|revie|                          4 beats",
        "  3 |plan-|work-|revie|                                3 beats",
        "",
        "for      ucxl://proj:any/*/task/ingest",
        "tempo    15 beats a minute: a beat of 4 s, a phrase of 32 s; the tempo of the",
        "         mesh may differ",
        "phases   plan 2 beats, work 4 beats, review 2 beats",
        "waits    2 beats in all for help, 1 beat in all for io",
        "         then emit needs-attention, fall back to coarse-answer",
        "overrun  a phase is cut off at its end, then keep a checkpoint, leave the rest",
        "         to the next phrase",
        "retries  up to 3 phrases in all, phases halved each time, to 1 beat at least",
        "budget",
        "  max_bu  12",
    ]


def test_on_a_terminal_of_utf_8_the_strip_is_drawn_with_lines(tmp_path: Path) -> None:
    leader, follower = os.openpty()
    with os.fdopen(follower, "w", encoding="utf-8") as terminal, redirect_stdout(terminal):
        assert app.run(["score", "check", score_file(tmp_path)]) == 0
        shown = b""
        while b"retries" not in shown:  # a terminal gives out what it has, not all of it
            shown += os.read(leader, 4_096)
    os.close(leader)
    assert shown.decode().splitlines()[1] == "  1 │plan─┼─────│work─┼─────┼─────┼─────│review─────│  8 beats"


@pytest.mark.parametrize("bar", [3, 12, 22, 33, 34, 64])
def test_every_bar_fits_in_eighty_columns_to_scale(
    bar: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played = "retry: {max_phrases: 16, backoff: none}, wait_budget: {help: 64, io: 0}"
    text = f"score: {{bar_len: {bar}, {played}}}"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert app.run(["score", "check", "-"]) == 0
    ruler, *rows = capsys.readouterr().out.splitlines()
    assert max(map(len, (ruler, *rows))) <= 80
    strips = [row for row in rows if row.endswith(f"  {bar} beats")]
    assert len(strips) == 16
    strip = strips[0].split()[1]
    ends = [place for place, sign in enumerate(strip) if sign == "|"]
    lengths = [end - begin for begin, end in pairwise(ends)] or [strip.count(name) for name in "pwr"]
    beats = Score.of_document({"bar_len": bar}).attempt(1).values()
    assert [length * bar for length in lengths] == [count * sum(lengths) for count in beats]
    assert "64 beats in all for help (the phrase ends before), not for io" in " ".join(rows)
    assert "up to 16 phrases in all, each as long as the first" in " ".join(rows)


def test_a_score_is_reported_as_one_document_and_so_are_its_faults(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert app.run(["score", "check", score_file(tmp_path), "--json"]) == 0
    reported = json.loads(capfdbinary.readouterr().out)
    assert reported["is_good"] is True
    assert reported["phrases"][1] == {"attempt": 2, "beats": 4, "phases": {"plan": 1, "work": 2, "review": 1}}
    assert reported["score"]["escalation"]["on_overrun"] == ["checkpoint", "defer:next-phrase"]
    assert (reported["ucxl"], reported["budget"]) == ("ucxl://proj:any/*/task/ingest", {"max_bu": 12})
    file = score_file(tmp_path, "score: {bar_len: 2}\n")
    assert app.run(["score", "check", file, "--json"]) == 1
    fault = f"{file}:1: score.bar_len: must not be 2; allowed: an integer from 3 to 64"
    assert json.loads(capfdbinary.readouterr().out) == {"is_good": False, "faults": [fault]}
    assert app.run(["score", "check", file]) == 1
    assert capfdbinary.readouterr() == (b"", f"{fault}\n".encode())
    assert app.run(["score", "check", str(tmp_path / "none.yaml")]) == 2
    assert b"can't be read: No such file" in capfdbinary.readouterr().err


async def _play() -> None:
    """A bar with work, one in which everyone is silent, and ten at which no one looks."""
    async with Mesh.open(load_settings(_env_file=None, enabled=True, http=False, node_id="ann")) as node:
        hand = MovableClock()
        ann = player(node, hand)
        hand.to(0, 2)
        await ann.say("ada", "write", "done", progress=1.0)
        await ann.say("bob", "read", "executing", overran=True)
        await ann.say("eve", "read", "executing", overran=True)
        hand.to(1, 3)
        await ann.bar_reporter.roll_up_due()
        hand.to(2, 3)
        await ann.bar_reporter.roll_up_due()
        hand.to(12, 3)
        later = player(node, hand)
        await later.say("ada", "more", "waiting", wait_for=["hmmm://thread/x"])
        hand.to(13, 3)
        await later.bar_reporter.roll_up_due()


def test_reports_have_a_line_each_and_missing_bars_are_named(vox: VoxCommand) -> None:
    assert vox("rhythm", "report").out == "none\n"
    asyncio.run(_play())
    newest, *_, missing, silent, first = reports = vox("rhythm", "report", "--json").document
    assert len(reports) == 4
    assert [each["start_ms"] for each in reports] == [BEGIN_MS + bar * BAR_MS for bar in (12, 2, 1, 0)]
    assert (missing["is_missing"], missing["bars"]) == (True, 10)
    assert first["tasks"] == {"done": 1, "executing": 2}
    assert first["overruns"] == 2
    assert [alarm["name"] for alarm in first["alarms"]] == ["overrun_rate"]
    assert [alarm["name"] for alarm in silent["alarms"]] == ["no_status_claims"]
    assert (newest["tasks"], newest["kpis"]["wr"]) == ({"waiting": 1}, 1.0)
    heading, *lines = vox("rhythm", "report").out.splitlines()
    assert heading.endswith("promises  TNT    BPD  WR  eta  PMR  CPD  TTFU  alarms")
    assert [line.split()[1] for line in lines[:4]] == [iso_of(each["start_ms"]) for each in reports]
    assert lines[1].startswith(window_id("default", BEGIN_MS + 2 * BAR_MS))
    assert lines[1].split()[2:5] == ["10", "1", "missing"]
    assert "2 executing, 1 done" in lines[3]
    assert lines[3].endswith("overrun_rate")
    assert lines[4].startswith(f"{first['window_id']} suggests: slower; plan 2, work 4, review 2 (")
    (last,) = vox("rhythm", "report", "--last", "1", "--json").document
    assert last == newest
