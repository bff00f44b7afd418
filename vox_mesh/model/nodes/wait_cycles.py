"""Cycles of agents that wait for each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def wait_cycles(waits: Mapping[str, Collection[str]]) -> list[tuple[str, ...]]:
    """Return the groups of agents of which each waits, directly or not, for all others of its group.

    `waits` has for each agent the ones that it waits for. An agent that only waits for itself is no group.
    """
    order = _by_end(waits)
    waited_by: dict[str, list[str]] = {}
    for agent, others in waits.items():
        for other in others:
            waited_by.setdefault(other, []).append(agent)
    seen: set[str] = set()
    groups: list[tuple[str, ...]] = []
    for agent in reversed(order):
        group = _reached(agent, waited_by, seen)
        if len(group) > 1:
            groups.append(tuple(sorted(group)))
    return sorted(groups)


def _by_end(edges: Mapping[str, Collection[str]]) -> list[str]:
    """Return the agents in the order in which a depth-first search leaves them."""
    seen: set[str] = set()
    left: list[str] = []
    for start in edges:
        if start in seen:
            continue
        seen.add(start)
        path = [(start, iter(edges[start]))]
        while path:
            agent, others = path[-1]
            following = next((each for each in others if each not in seen), None)
            if following is None:
                left.append(agent)
                path.pop()
            else:
                seen.add(following)
                path.append((following, iter(edges.get(following, ()))))
    return left


def _reached(start: str, edges: Mapping[str, Collection[str]], seen: set[str]) -> list[str]:
    """Return the agents that are reached from one, without the seen ones, and add them to these."""
    reached: list[str] = []
    waiting = [start]
    while waiting:
        agent = waiting.pop()
        if agent not in seen:
            seen.add(agent)
            reached.append(agent)
            waiting += edges.get(agent, ())
    return reached
