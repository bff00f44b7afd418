"""The picture of a run is an SVG that says what happened."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as Xml

from proof.chaos.picture import draw_picture
from proof.chaos.schedule import StoreKind, draw_schedule
from proof.history import Event, History, Step
from proof.verdicts import Verdict

_SVG = "{http://www.w3.org/2000/svg}"


def _note(at: float, what: str, **data: object) -> Event:
    return Event(at, "stage", 1, what, Step.NOTE, 0, data)


def _history() -> History:
    operation = (
        Event(3.0, "ann", 1, "lock.take", Step.CALL, 1, {}),
        Event(4.0, "ann", 1, "lock.take", Step.OK, 1, {}),
    )
    return History(
        [
            _note(1.0, "life.began", player="ann", life=1, node_id="ann"),
            _note(2.0, "storm.began"),
            *operation,
            _note(5.0, "fault.began", kind="kill-at-point", id=1, player="ann", point='<after> & "before"'),
            _note(5.1, "life.ended", player="ann", life=1, how="killed"),
            _note(6.0, "life.began", player="ann", life=2, node_id="ann"),
            _note(6.5, "paused", player="ann"),
            _note(7.0, "fault.ended", kind="kill-at-point", id=1, player="ann"),
            _note(9.0, "healed"),
            _note(9.5, "final", table="jobs", row={}),
        ]
    )


def test_the_picture_is_well_formed_and_names_seed_faults_players_and_what_broke(tmp_path: Path) -> None:
    schedule = draw_schedule(7, 10.0, StoreKind.FILE, ("ann", "ben"))
    said = [Verdict("one-end", "…", 1, (), 0), Verdict("no-5xx", "…", 1, ("a fault",), 1)]
    root = Xml.fromstring(draw_picture(_history(), schedule, said))
    assert root.tag == f"{_SVG}svg"
    words = {text.text for text in root.iter(f"{_SVG}text")}
    assert {"ann", "ben", "kill-at-point", "healed", "done", "unknown", "operations/s"} <= words
    assert any("seed 7" in (text or "") for text in words)
    assert any("broken: no-5xx" in (text or "") for text in words)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for bar in root.iter(f"{_SVG}rect"):
        place = {name: float(bar.attrib.get(name, 0)) for name in ("x", "y", "width", "height")}
        assert 0 <= place["x"] <= place["x"] + place["width"] <= width + 1
        assert 0 <= place["y"] <= place["y"] + place["height"] <= height + 1
