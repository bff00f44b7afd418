"""Cycles of agents that wait for each other."""

from __future__ import annotations

import pytest

from vox_mesh.model.nodes.wait_cycles import wait_cycles


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        ({}, []),
        ({"a": ["b"], "b": ["c"]}, []),
        ({"a": ["a"]}, []),
        ({"a": ["b"], "b": ["a"]}, [("a", "b")]),
        ({"x": ["a"], "a": ["b"], "b": ["c"], "c": ["a", "y"], "y": []}, [("a", "b", "c")]),
        ({"d": ["c"], "c": ["d"], "b": ["a", "c"], "a": ["b"]}, [("a", "b"), ("c", "d")]),
    ],
    ids=str,
)
def test_only_agents_that_wait_for_each_other_are_a_cycle(
    waits: dict[str, list[str]], expected: list[tuple[str, ...]]
) -> None:
    assert wait_cycles(waits) == expected


def test_a_long_chain_of_waits_is_followed_to_its_end() -> None:
    names = [f"agent{number:05}" for number in range(5_000)]
    waits = {one: [other] for one, other in zip(names, [*names[1:], names[0]], strict=True)}
    assert wait_cycles(waits) == [tuple(names)]
