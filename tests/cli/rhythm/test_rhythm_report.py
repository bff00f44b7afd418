"""`vox-mesh rhythm report`: what became of the last bars."""

from __future__ import annotations

import asyncio

from tests.cli.conftest import Vox
from tests.support.rhythm.grounds import BAR_MS, BEGIN_MS, Hand, player
from vox_mesh import Mesh, load_settings
from vox_mesh.model.locks.records import iso_of
from vox_mesh.model.rhythm.tempo import window_id


async def _play() -> None:
    """A bar with work, one in which everyone is silent, and ten at which nobody looks."""
    async with Mesh.open(load_settings(_env_file=None, enabled=True, http=False, node_id="ann")) as node:
        hand = Hand()
        ann = player(node, hand)
        hand.to(0, 2)
        await ann.say("ada", "write", "done", progress=1.0)
        await ann.say("bob", "read", "executing", overran=True)
        await ann.say("eve", "read", "executing", overran=True)
        hand.to(1, 3)
        await ann.reverb.roll_up_due()
        hand.to(2, 3)
        await ann.reverb.roll_up_due()
        hand.to(12, 3)
        later = player(node, hand)
        await later.say("ada", "more", "waiting", wait_for=["hmmm://thread/x"])
        hand.to(13, 3)
        await later.reverb.roll_up_due()


def test_reports_have_a_line_each_and_missing_bars_are_named(vox: Vox) -> None:
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
