"""Check which of some paths another agent has locked, and which of them an agent has not locked itself.

Paths are those of real files, relative to the root of the repository. They are compared literally: a `*` or
`?` in a file's name is an ordinary character, though in a locked key it is a wildcard. A path that ends with
`/` is a folder and stands for itself and everything in it; `./` is the root.

The owner of a lock is identified by the agent's name alone: an agent's commands may run on another node than
the one that took its lock. Agents that must not be mistaken for each other need different names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from vox_mesh.model.locks.pattern_index import PatternIndex
from vox_mesh.model.locks.patterns import FILE, is_pattern
from vox_mesh.model.locks.records import Holder

# No key and no path contains this character: as with a literal `*` or `?`, only a wildcard can match it.
_LITERAL: Final = str.maketrans("*?", "\0\0")
_EVERYTHING: Final = "**"
_EVERYTHING_IN: Final = "/**"


class Obstacle(NamedTuple):
    """A path, and another agent's lock that covers it."""

    path: str
    holder: Holder


def obstacles(paths: Iterable[str], holders: Iterable[Holder], agent: str) -> list[Obstacle]:
    """Return the locks of other agents, shared ones too, that keep `agent` from changing these paths."""
    return [each for some in obstacles_in_steps(paths, holders, agent) for each in some]


def obstacles_in_steps(
    paths: Iterable[str], holders: Iterable[Holder], agent: str
) -> Iterator[list[Obstacle]]:
    """Yield the same step by step, with many steps that find none."""
    keys = {path: _key(path) for path in paths}
    by_key: dict[str, list[Holder]] = {}
    for each in holders:
        if each.holder_agent != agent and each.lock_key.startswith(FILE):
            by_key.setdefault(each.lock_key, []).append(each)
    yield []
    held = PatternIndex()
    for candidate in _candidates(keys.values(), by_key):
        held.add(candidate)
        yield []
    for path, key in keys.items():
        yield [Obstacle(path, holder) for each in held.matching(key) for holder in by_key[each]]


def unlocked(paths: Iterable[str], holders: Iterable[Holder], agent: str) -> list[str]:
    """Return the paths that `agent` must not change without a lock: no exclusive lock of its own covers them.

    A folder is covered by a lock on everything in it, or in a folder above it.
    """
    own = [each for each in holders if each.holder_agent == agent and not each.is_shared]
    keys = [each.lock_key for each in own if each.lock_key.startswith(FILE)]
    locked = PatternIndex(keys)
    folders = PatternIndex(key.removesuffix(_EVERYTHING_IN) for key in keys if key.endswith(_EVERYTHING_IN))
    covers_all = FILE + _EVERYTHING in keys
    return [
        path
        for path in paths
        if not covers_all
        and not (_is_folder_locked(path, folders) if path.endswith("/") else locked.matching(_key(path)))
    ]


def _is_folder_locked(path: str, folders: PatternIndex) -> bool:
    names = path.removeprefix("./").rstrip("/").translate(_LITERAL).split("/")
    return any(folders.matching(FILE + "/".join(names[:end])) for end in range(1, len(names) + 1))


def _candidates(asked: Iterable[str], held: Iterable[str]) -> Iterable[str]:
    """Return the locked keys that may match one of the paths.

    They share its leading folder and, unless they end with a wildcard, its last name. Usually they are few:
    this saves indexing all others for a single use.
    """
    places, names = {""}, {""}
    for key in asked:
        if is_pattern(key):
            return held
        names.update((key.rpartition("/")[2], key[len(FILE) :].rpartition("/")[2]))
        while key not in places:
            places.add(key)
            key = key.rpartition("/")[0]
    candidates = []
    for key in held:
        name = key.rpartition("/")[2]
        if name in names or "*" in name or "?" in name:
            lead = key.partition("*")[0].partition("?")[0]
            if lead.rpartition("/")[0] in places:
                candidates.append(key)
    return candidates


def _key(path: str) -> str:
    key = FILE + path.removeprefix("./").translate(_LITERAL)
    return f"{key}**" if path.endswith("/") else key
