"""The page of the benchmarks is made of what a run has kept, and says plainly what was missed or left out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import pytest

from bench.figures import Figure, Found, LeftOut, Of, Point, at_least, at_most
from bench.report.chart import Bar, Spot, bars, curves
from bench.report.page import DATA, DOCS, PAGE, documents, drawn_as, main
from bench.report.records import Record, merged, read, written

_SVG: Final = "{http://www.w3.org/2000/svg}"
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
_RUN: Final[dict[str, Any]] = {
    "at": "2026-01-02T03:04:05Z",
    "quick": False,
    "machine": {
        "cores": 2,
        "arch": "arm",
        "system": "Linux",
        "python": "3.11",
        "sqlite": "3.40",
        "server": None,
        "load": 0.0,
    },
}


def _record(line: str, found: Found, plane: str = "store", **run: Any) -> Record:
    return Record(plane, line, found, _RUN | run)


def _checked(svg: str) -> ElementTree.Element:
    """It is well-formed, and nothing is drawn outside of its frame."""
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{_SVG}svg"
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for each in root.iter():
        for name, limit in (("x", width), ("x1", width), ("x2", width), ("y", height), ("y1", height)):
            value = float(each.attrib.get(name, 0))
            assert 0 <= value <= limit, (each.tag, each.attrib)
    return root


def _texts(root: ElementTree.Element) -> set[str]:
    return {each.text or "" for each in root.iter(f"{_SVG}text")}


def test_the_page_in_the_documentation_is_what_its_figures_make() -> None:
    made = documents(read((DOCS / DATA).read_bytes()))
    assert {path: (DOCS / path).read_text() for path in made} == made, "run `python -m bench.report.page`"
    pictures = {str(path.relative_to(DOCS)) for path in DOCS.glob(drawn_as("*"))}
    assert pictures == made.keys() - {PAGE}, "no picture is left of a page before"


def test_every_picture_of_the_page_is_well_formed() -> None:
    for path, text in documents(read((DOCS / DATA).read_bytes())).items():
        if path.endswith(".svg"):
            _checked(text)


def test_what_is_kept_is_read_as_it_was() -> None:
    figure = Figure("a", "b / c", "us", [3.0, 4.0], [1.0, 2.0], at_most(1.5), True, {"n": 1.0}, {"v": "1"})
    point = Figure("a", "b", "us", [3.0], [1.0], at_least(2.0, Of.OURS), point=Point("c", "jobs", 10))
    records = [_record("one", each) for each in (figure, point, LeftOut("x", "y", "z"))]
    assert read(written(records)) == records


def test_of_a_line_in_several_runs_the_last_counts() -> None:
    early = [_record(line, Figure(line, "w", "us", [1.0])) for line in ("read-file", "read-memory")]
    late = [_record("read-file", Figure("read-file", "w", "us", [2.0]), at="2026-02-01T00:00:00Z")]
    assert merged([early, late]) == [early[1], late[0]]
    page = documents(merged([early, late]))[PAGE]
    assert "Measured on 2026-01-02 (`read-memory`)" in page
    assert "Measured on 2026-02-01 (`read-file`)" in page


def test_what_was_missed_or_left_out_is_said_plainly() -> None:
    missed = Figure("slow", "ours / raw", "us", [3.0, 3.2], [1.0, 1.0], at_most(1.5))
    reached = Figure("fast", "ours / raw", "1/s", [9.0, 9.0], [1.0, 1.0], at_least(5.0, Of.OURS))
    page = documents(
        [
            _record("one-caller-file", missed),
            _record("64-callers-file", reached),
            _record("peer-rq", LeftOut("peer-rq", "RQ on Redis", "no redis-server was found"), "peers"),
        ]
    )[PAGE]
    assert "1 of 2 targets were reached" in page
    assert "- `slow`: 3.10 x, not at most 1.5 x: ours / raw" in page
    assert (
        "| `slow` | ours / raw | 3.10 us | 1.00 us | 3.10 x | 3.00..3.20 | at most 1.5 x | **no** |" in page
    )
    assert "| `fast` | ours / raw | 9.00/s | 1.00/s | 9.00 x | 9.00..9.00 | at least 5.00/s | yes |" in page
    assert "| RQ on Redis | not measured: no redis-server was found |" in page


def test_a_short_look_is_reported_as_one() -> None:
    record = _record("read-file", Figure("read-file", "w", "us", [1.0]), quick=True)
    assert "these figures mean little" in documents([record])[PAGE]


def test_a_bar_lies_on_its_side_of_the_target() -> None:
    drawn = [Bar("a < b", 2.0, 1.5, 3.0, "more", True), Bar("c", 0.25, 0.2, 0.5, "less", False)]
    root = _checked(bars("title", "times the target", drawn))
    assert {"title", "times the target", "a < b", "c", "more", "less"} <= _texts(root)
    (mark,) = (each for each in root.iter(f"{_SVG}line") if each.attrib["class"] == "mark")
    one = float(mark.attrib["x1"])
    good, bad = (each for each in root.iter(f"{_SVG}rect") if each.attrib.get("class") in ("good", "bad"))
    assert float(good.attrib["x"]) == one
    assert float(bad.attrib["x"]) + float(bad.attrib["width"]) == pytest.approx(one)


def test_a_curve_rises_with_what_it_shows() -> None:
    spots = [Spot(1_000, 1.0, 1.0, 1.0), Spot(10_000, 1.5, 1.2, 1.9), Spot(1_000_000, 4.0, 3.0, 5.0)]
    root = _checked(curves("title", "jobs", {"claim": spots, "tick": spots[:2]}))
    assert {"claim", "tick", "1,000", "10,000", "1,000,000"} <= _texts(root)
    way = next(each.attrib["d"] for each in root.iter(f"{_SVG}path") if "L" in each.attrib["d"])
    numbers = [float(each) for each in _NUMBER.findall(way)]
    assert numbers[::2] == sorted(numbers[::2])
    assert numbers[1::2] == sorted(numbers[1::2], reverse=True), "up is less, in a picture"


def test_files_that_are_named_become_the_data_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / PAGE).parent.mkdir()
    (tmp_path / drawn_as("gone")).write_text("<svg/>")
    run = tmp_path / "run.jsonl"
    run.write_bytes(written([_record("read-file", Figure("read-file", "w", "us", [1.0]))]))
    main([run], tmp_path)
    assert (tmp_path / DATA).read_bytes() == run.read_bytes()
    assert "`read-file`" in (tmp_path / PAGE).read_text()
    assert not (tmp_path / drawn_as("gone")).exists()
