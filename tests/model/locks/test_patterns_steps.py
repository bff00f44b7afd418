"""How much the rules of patterns do, counted in lines they run: a measure that no other process changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.running.examples import few
from vox_mesh.model.locks import pattern_automaton, pattern_index, patterns
from vox_mesh.model.locks.pattern_index import PatternIndex
from vox_mesh.model.locks.patterns import FILE, normalise, overlap

HELD: Final = 10_000
RULES: Final = {patterns.__file__, pattern_index.__file__, pattern_automaton.__file__}
PER_CHARACTER: Final = 20
"""The steps that a character of either pattern may take."""

nasty = st.lists(st.text("a*?", min_size=1, max_size=8) | st.just("**"), min_size=8, max_size=40).map(
    "/".join
)


def steps(call: Callable[[], object]) -> int:
    """How many lines of the rules the call runs."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in RULES:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("*a" * 500, "a" * 1_000 + "b"),
        ("*a?a?a?b" * 120, "a" * 1_000),
        ("*" + "a?" * 120 + "b*", "a" * 500),
        ("*" + "?" * 499 + "b*", "?" * 999 + "a"),
        ("**/a/" * 200 + "b", "a/" * 500 + "c"),
        ("**/*a/" * 160 + "b", "*a*/" * 250 + "c"),
        ("**/" * 300 + "a*b*c", "?/" * 500 + "d"),
        ("**/" + "*a*a?b/" * 140 + "**", "aaaaaaaa/" * 110 + "a"),
        ("**/" + "a/" * 250 + "b/**", "a/" * 500 + "c"),
        ("*" * 1_000, "*" * 999 + "a"),
        ("*" + "?a" * 240 + "b*", "a" * 1_000),
        ("**/" + "?a/" * 160 + "b/**", "a?/" * 330 + "c"),
    ],
)
def test_no_pair_takes_more_than_a_few_steps_for_each_character(a: str, b: str) -> None:
    one, other = normalise(FILE + a), normalise(FILE + b)
    for pair in ((one, other), (other, one)):
        assert 0 < steps(partial(overlap, *pair)) <= PER_CHARACTER * (len(one) + len(other))


@few
@given(nasty, nasty)
def test_nothing_generated_takes_more_steps_than_that(a: str, b: str) -> None:
    assert steps(partial(overlap, FILE + a, FILE + b)) <= PER_CHARACTER * (len(a) + len(b))


def test_a_path_costs_no_more_where_many_patterns_have_literal_runs_of_many_lengths() -> None:
    index = PatternIndex(f"file:*{'b' * n}{n}*?a" for n in range(1, 400))
    key = FILE + "b" * 1_000
    index.matching(key)  # what is put in order at the first question is not counted
    assert steps(partial(index.matching, key)) < 40 * len(key)


@pytest.mark.parametrize(
    ("held", "path"),
    [
        pytest.param(lambda n: f"src/{n}/**", "src/{}/a/b/c.py", id="folders"),
        pytest.param(lambda n: f"src/{n}/*.py", "src/{}/c.py", id="files of a folder"),
        pytest.param(lambda n: f"src/{n}/**/*.py", "src/{}/a/b/c.py", id="files below a folder"),
        pytest.param(lambda n: f"**/x_{n}.py", "src/a/x_{}.py", id="one name anywhere"),
        pytest.param(lambda n: f"**/x_{n}/**", "src/x_{}/a/b", id="one folder anywhere"),
        pytest.param(lambda n: f"src/*_{n}.py", "src/test_{}.py", id="ends of names"),
        pytest.param(lambda n: f"src/x_{n}_*.py", "src/x_{}_a.py", id="beginnings of names"),
        pytest.param(lambda n: f"**/x{n}_*.typescript", "a/x{}_b.typescript", id="with a long common end"),
        pytest.param(
            lambda n: f"**/test_of_*_{n}.py", "a/test_of_b_{}.py", id="with a long common beginning"
        ),
        pytest.param(lambda n: f"**/*_{n}_*/**", "src/a/b_{}_c/d.py", id="within names"),
        pytest.param(lambda n: f"src/a?/*/{n}/*.py", "src/ab/c/{}/d.py", id="between wildcards"),
    ],
)
def test_a_path_is_found_among_ten_thousand_patterns_in_few_steps(
    held: Callable[[int], str], path: str
) -> None:
    index = PatternIndex(FILE + held(n) for n in range(HELD))
    index.matching("file:src/a/b")  # what is put in order at the first question is not counted
    for n in (0, 77, HELD - 1):
        key = FILE + path.format(n)
        assert FILE + held(n) in index.matching(key)
        assert len(index.matching(key)) <= 4
        assert 0 < steps(partial(index.matching, key)) < 1_000
