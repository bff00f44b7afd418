"""Many keys held at once, and quickly those among them that overlap another.

A path is compared with few of the held patterns, those whose literal text it holds. Patterns lie together by
the text before their first wildcard. Where many do, each is also filed under one other literal run of its
own. For this, paths are framed by slashes, so that a run shows whether it begins or ends a segment: that of
`**/x.py` is `/x.py/`, and that of `*.py` is `.py/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from vox_mesh.model.locks.patterns import FILE, is_pattern, overlap

_FEW: Final = 8
"""So many patterns are looked at one by one."""

_SLASH: Final = re.compile("/")
_SAYS_NOTHING: Final = frozenset({"", "/"})
"""Runs that are in every path."""


class PatternIndex:
    """A set of keys in normal form, patterns or not, that can be asked which of them overlap a given one.

    The answers are sorted. A path that is asked about may be longer than a key that can be held.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._plain: set[str] = set()
        self._by_lead: dict[str, set[str]] = {}
        self._lead_lengths: set[int] = set()
        self._files: dict[str, _Files] = {}
        for key in keys:
            self.add(key)

    def add(self, key: str) -> None:
        """Hold the key; one that is held already is held once."""
        if not is_pattern(key):
            self._plain.add(key)
            return
        lead = _lead(key)
        keys = self._by_lead.get(lead)
        if keys is None:
            self._by_lead[lead] = {key}
            self._lead_lengths.add(len(lead))
        elif key not in keys:
            keys.add(key)
            if lead in self._files:
                self._files[lead].add(key)

    def matching(self, key: str) -> list[str]:
        """The held keys that overlap this one: quick for a path, however many are held."""
        if is_pattern(key):
            return self.overlapping(key)
        found = [key] if key in self._plain else []
        if key.startswith(FILE):
            text, framed = key + "/", _framed(key)
            for lead in self._by_lead.keys() & {text[:length] for length in self._lead_lengths}:
                near = [held for held in self._candidates(lead, framed) if framed.endswith(_tail(held))]
                found += [held for held in near if overlap(held, key)]
        return sorted(found)

    def _candidates(self, lead: str, framed: str) -> set[str]:
        """Those that may match a path which begins as they do."""
        keys = self._by_lead[lead]
        if len(keys) <= _FEW:
            return keys
        files = self._files.get(lead)
        if files is None:  # only now: most leads have few patterns, or are never asked for
            files = self._files[lead] = _Files(keys)
        return files.candidates(framed)

    def overlapping(self, key: str) -> list[str]:
        """The held keys that overlap this one: for a pattern, by a look at all that are held."""
        if not is_pattern(key):
            return self.matching(key)
        lead = _lead(key)
        near = [held for held in self._plain if held.startswith(lead.removesuffix("/"))]
        for other, keys in self._by_lead.items():
            if other.startswith(lead) or lead.startswith(other):
                near += keys
        return sorted(held for held in near if overlap(held, key))


class _Files:
    """Patterns by one literal run of each: of its own, that under which the fewest others are filed."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys: dict[str, set[str]] = {}
        # How long the runs are, by where in a path they can be: this is what has to be looked up of it.
        self._from_slash: set[int] = set()
        self._to_slash: set[int] = set()
        self._anywhere: set[int] = set()
        for key in keys:
            self.add(key)

    def add(self, key: str) -> None:
        run = self._least_used(key)
        keys = self._keys.get(run)
        if keys is not None:
            keys.add(key)
            return
        self._keys[run] = {key}
        if run[:1] == "/":
            self._from_slash.add(len(run))
        elif run[-1:] == "/":
            self._to_slash.add(len(run))
        elif run:
            self._anywhere.add(len(run))

    def _least_used(self, key: str) -> str:
        """The longest of its least used runs after the lead; the empty one if none says anything."""
        best, least = "", (0, 0)
        for run in _framed(key).replace("?", "*").split("*")[1:]:
            if run not in _SAYS_NOTHING:
                use = (len(self._keys.get(run, ())), -len(run))
                if not best or use < least:
                    best, least = run, use
        return best

    def candidates(self, text: str) -> set[str]:
        """Those whose run is in the path, which is framed."""
        slashes = [match.start() for match in _SLASH.finditer(text)]
        pieces = {text[at : at + size] for size in self._from_slash for at in slashes}
        pieces.add("")
        if self._to_slash:
            pieces.update([text[max(at + 1 - size, 0) : at + 1] for size in self._to_slash for at in slashes])
        if self._anywhere:
            pieces.update([text[at : at + size] for size in self._anywhere for at in range(len(text))])
        return set().union(*[self._keys[run] for run in self._keys.keys() & pieces])


def _framed(key: str) -> str:
    return f"/{key[len(FILE) :]}/"


def _lead(key: str) -> str:
    """What every path that the key matches, with a slash after it, begins with."""
    return f"{key}/".partition("*")[0].partition("?")[0]


def _tail(key: str) -> str:
    """What every path that the key matches ends with, once it is framed."""
    return f"{key}/".rpartition("*")[2].rpartition("?")[2]
