"""Homes in turn: a test of what stands on the store runs on one of them, and at full length on all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.running.lengths import LOCAL_AND_REPLICA, SOAK, has_its_turn
from tools.homes import ALL_HOMES


class _Item(pytest.Item):
    """A test on a home, which is never run."""

    def runtest(self) -> None:
        """Do nothing."""


def _on_each_home(request: pytest.FixtureRequest, name: str) -> Iterator[tuple[str, Any]]:
    for param in LOCAL_AND_REPLICA:
        (home,) = param.values
        item = _Item.from_parent(request.node.parent, name=f"{name}[{home}]")
        for mark in param.marks:
            item.add_marker(mark)
        yield str(home), item


def test_each_test_runs_on_one_home_and_every_home_has_tests(request: pytest.FixtureRequest) -> None:
    turns: Counter[str] = Counter()
    for number in range(60):
        chosen = [home for home, item in _on_each_home(request, f"test_{number}") if has_its_turn(item)]
        assert len(chosen) == (len(LOCAL_AND_REPLICA) if SOAK else 1)
        turns.update(chosen)
    assert set(turns) == {str(param.values[0]) for param in LOCAL_AND_REPLICA} < {*map(str, ALL_HOMES)}
    assert min(turns.values()) > 10


def test_one_that_says_something_on_some_homes_only_runs_on_all(request: pytest.FixtureRequest) -> None:
    for _, item in _on_each_home(request, "test_here_and_there"):
        item.add_marker("every_home")
        assert has_its_turn(item)
