"""Which of some paths does another agent hold?

The paths are those of real files, from the root of the repository, and each is compared as it stands: a `*`
or `?` in a file's name is a character like any other, though in a held key it is a wildcard. A path that ends
with `/` is a folder, and stands for itself and all that is in it; `./` is the root.

Whose a hold is, is told by the agent's name alone: an agent's commands run beside another node than the one
that took its lock. Agents that must not pass for each other need different names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from vox_mesh.model.locks.pattern_index import PatternIndex
from vox_mesh.model.locks.patterns import FILE, is_pattern
from vox_mesh.model.locks.records import Holder

# No key and no path holds this character: only a wildcard can match it, as only one can match `*` or `?`.
_AS_IT_STANDS: Final = str.maketrans("*?", "\0\0")


class Obstacle(NamedTuple):
    """A path, and a hold of another agent's that is in its way."""

    path: str
    holder: Holder


def obstacles(paths: Iterable[str], holders: Iterable[Holder], agent: str) -> list[Obstacle]:
    """What is in the way of `agent` changing these paths; shares of others are, too."""
    keys = {path: _key(path) for path in paths}
    others = [each for each in holders if each.holder_agent != agent and each.lock_key.startswith(FILE)]
    held = PatternIndex(_near(keys.values(), {each.lock_key for each in others}))
    found = [(path, each) for path, key in keys.items() for each in held.matching(key)]
    by_key: dict[str, list[Holder]] = {key: [] for _, key in found}
    for each in others:
        if each.lock_key in by_key:
            by_key[each.lock_key].append(each)
    return [Obstacle(path, holder) for path, key in found for holder in by_key[key]]


def _near(asked: Iterable[str], held: Iterable[str]) -> list[str]:
    """The held keys that begin as one of those asked about does and, if they end with a name, end with its.

    Mostly these are few, and all others need not be put into an index that is used only once.
    """
    places, names = {""}, {""}
    for key in asked:
        if is_pattern(key):
            return list(held)
        names.update((key.rpartition("/")[2], key[len(FILE) :].rpartition("/")[2]))
        while key not in places:
            places.add(key)
            key = key.rpartition("/")[0]
    near = []
    for key in held:
        name = key.rpartition("/")[2]
        if name in names or "*" in name or "?" in name:
            lead = key.partition("*")[0].partition("?")[0]
            if lead.rpartition("/")[0] in places:
                near.append(key)
    return near


def _key(path: str) -> str:
    key = FILE + path.removeprefix("./").translate(_AS_IT_STANDS)
    return f"{key}**" if path.endswith("/") else key
