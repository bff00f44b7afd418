"""Layouts of graphs: every box and line is there, nothing overlaps, and the input may have any order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vox_mesh.model.jobs.graph import layers
from vox_mesh.model.jobs.graph.layout import (
    MAX_EDGES,
    MAX_NODES,
    Box,
    GraphLayout,
    Line,
    lay_out,
    neighbourhood,
)

Edges = list[tuple[str, str]]


def _name(n: int) -> str:
    return f"job-{n}"


_PAIRS = st.lists(st.tuples(st.integers(0, 24), st.integers(0, 24)), max_size=60)
_CYCLIC = _PAIRS.map(lambda pairs: [(_name(a), _name(b)) for a, b in pairs if a != b])
_ACYCLIC = _PAIRS.map(
    lambda pairs: [(_name(min(each)), _name(max(each))) for each in pairs if len({*each}) > 1]
)
_RANKS = {_name(n): n // 3 for n in range(25)}


def _are_apart(a: Box, b: Box) -> bool:
    return a.x + a.w <= b.x or b.x + b.w <= a.x or a.y + a.h <= b.y or b.y + b.h <= a.y


def _passes(line: Line, box: Box) -> bool:
    """Whether a line runs through the inside of a box."""
    for (x0, y0), (x1, y1) in pairwise(line.points):
        top, bottom = max(min(y0, y1), box.y), min(max(y0, y1), box.y + box.h)
        if top >= bottom:
            continue
        ends = [x0 + (x1 - x0) * (y - y0) / (y1 - y0) for y in (top, bottom)]
        if max(ends) > box.x and min(ends) < box.x + box.w:
            return True
    return False


def _check(layout: GraphLayout, names: Sequence[str], edges: Edges) -> None:
    boxes = {box.name: box for box in layout.boxes}
    assert sorted(boxes) == sorted(names)
    assert sorted((line.source, line.target) for line in layout.lines) == sorted({*edges})
    assert all(_are_apart(*two) for two in combinations(layout.boxes, 2))
    assert all(box.x >= 0 and box.y >= 0 for box in layout.boxes)
    assert all(box.x + box.w <= layout.width and box.y + box.h <= layout.height for box in layout.boxes)
    assert all(
        0 <= x <= layout.width and 0 <= y <= layout.height for line in layout.lines for x, y in line.points
    )
    assert not any(_passes(line, box) for line in layout.lines for box in layout.boxes)


def _check_downward(layout: GraphLayout) -> None:
    boxes = {box.name: box for box in layout.boxes}
    for line in layout.lines:
        source, target = boxes[line.source], boxes[line.target]
        assert line.points[0] == (source.x + source.w // 2, source.y + source.h)
        assert line.points[-1] == (target.x + target.w // 2, target.y)
        assert all(above[1] < below[1] for above, below in pairwise(line.points))


@given(_ACYCLIC)
def test_every_edge_leads_down_past_all_boxes(edges: Edges) -> None:
    layout = lay_out(_RANKS, edges)
    _check(layout, [*_RANKS], edges)
    _check_downward(layout)


@given(_CYCLIC)
def test_cycles_are_drawn_too(edges: Edges) -> None:
    _check(lay_out(_RANKS, edges), [*_RANKS], edges)


@given(_CYCLIC, st.randoms(use_true_random=False))
def test_the_order_of_the_input_makes_no_difference(edges: Edges, random: Random) -> None:
    names = [*_RANKS]
    expected = lay_out(_RANKS, edges)
    random.shuffle(names)
    random.shuffle(edges)
    assert lay_out({name: _RANKS[name] for name in names}, edges + edges[:3]) == expected


@given(_ACYCLIC)
def test_the_longest_edges_are_led_around_all_boxes(edges: Edges) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "MAX_BENDS", 5)
        layout = lay_out(_RANKS, edges)
    _check(layout, [*_RANKS], edges)
    _check_downward(layout)


def test_a_chain_whose_jobs_all_lead_to_the_last_one_is_drawn_with_few_points() -> None:
    names = [_name(n) for n in range(300)]
    edges = [*pairwise(names), *((name, names[-1]) for name in names[:-2])]
    layout = lay_out({name: n for n, name in enumerate(names)}, edges)
    _check_downward(layout)
    assert len(layout.lines) == len(edges)
    assert sum(len(line.points) for line in layout.lines) < 3 * layers.MAX_PASSED


def test_a_graph_of_a_job_with_many_successors_is_not_a_single_row() -> None:
    names = [_name(n) for n in range(200)]
    edges = [(names[0], name) for name in names[1:-1]] + [(name, names[-1]) for name in names[1:-1]]
    layout = lay_out({name: n for n, name in enumerate(names)}, edges)
    _check(layout, names, edges)
    _check_downward(layout)
    assert layout.width < 10 * layout.height


def test_an_empty_graph_has_an_empty_layout() -> None:
    assert lay_out({}, []) == GraphLayout(0, 0, [], [])


def test_unknown_names_and_edges_to_oneself_are_left_out() -> None:
    layout = lay_out({"a": 0, "b": 1}, [("a", "b"), ("a", "a"), ("a", "x"), ("x", "b")])
    assert [(line.source, line.target) for line in layout.lines] == [("a", "b")]


def test_a_neighbourhood_has_the_nearest_jobs_in_both_directions() -> None:
    names = [_name(n) for n in range(2 * MAX_NODES)]
    found = neighbourhood([names[MAX_NODES]], [*pairwise(names)])
    assert len(found) == MAX_NODES
    assert {*found} < {*names[MAX_NODES // 2 :][: MAX_NODES + 1]}


def test_a_neighbourhood_goes_on_with_the_next_start() -> None:
    assert neighbourhood(["a", "c", "a"], [("a", "b"), ("d", "c")]) == ["a", "b", "c", "d"]


def test_a_neighbourhood_is_bounded_by_its_edges() -> None:
    names = [_name(n) for n in range(200)]
    edges = [*combinations(names, 2)]
    found = neighbourhood([names[0]], edges)
    within = [edge for edge in edges if {*edge} <= {*found}]
    assert found[0] == names[0]
    assert MAX_EDGES - len(found) <= len(within) <= MAX_EDGES
