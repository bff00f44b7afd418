"""An index of keys that quickly finds those which overlap a given key.

A path is compared only with the few patterns whose literal text it contains. Patterns are grouped by the text
before their first wildcard. In a large group, each is also filed under one other literal run of its own. For
this, paths are wrapped in slashes, so that a run shows whether it begins or ends a segment: the run of
`**/x.py` is `/x.py/`, and that of `*.py` is `.py/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from vox_mesh.model.locks.patterns import FILE, is_pattern, overlap

_SMALL_GROUP: Final = 8
"""Up to this many patterns are compared one by one."""

_MAX_RUN: Final = 24
"""The characters of a run that a pattern is filed under: so few lengths of pieces of a path are looked up."""

_SLASH: Final = re.compile("/")
_COMMON_RUNS: Final = frozenset({"", "/"})
"""Runs that are in every path."""


class PatternIndex:
    """A set of keys in normal form, patterns or not, that finds the keys which overlap a given one.

    Results are sorted. The given path may be longer than a valid key.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._plain: set[str] = set()
        self._by_lead: dict[str, set[str]] = {}
        self._lead_lengths: set[int] = set()
        self._files: dict[str, _RunIndex] = {}
        for key in keys:
            self.add(key)

    def add(self, key: str) -> None:
        """Add a key; adding it again has no effect."""
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
        """Return the keys that overlap this one; fast for a path, however many keys there are."""
        if is_pattern(key):
            return self.overlapping(key)
        found = [key] if key in self._plain else []
        if key.startswith(FILE):
            text, wrapped = key + "/", _wrap(key)
            for lead in self._by_lead.keys() & {text[:length] for length in self._lead_lengths}:
                near = [held for held in self._candidates(lead, wrapped) if wrapped.endswith(_tail(held))]
                found += [held for held in near if overlap(held, key)]
        return sorted(found)

    def _candidates(self, lead: str, wrapped: str) -> set[str]:
        """Return the patterns that may match a path with this lead."""
        keys = self._by_lead[lead]
        if len(keys) <= _SMALL_GROUP:
            return keys
        files = self._files.get(lead)
        if files is None:  # built lazily: most leads have few patterns, or are never used
            files = self._files[lead] = _RunIndex(keys)
        return files.candidates(wrapped)

    def overlapping(self, key: str) -> list[str]:
        """Return the keys that overlap this one; for a pattern, by comparing with all."""
        if not is_pattern(key):
            return self.matching(key)
        lead = _lead(key)
        near = [held for held in self._plain if held.startswith(lead.removesuffix("/"))]
        for other, keys in self._by_lead.items():
            if other.startswith(lead) or lead.startswith(other):
                near += keys
        return sorted(held for held in near if overlap(held, key))


class _RunIndex:
    """Patterns filed by one literal run of each: the one with the fewest others."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys: dict[str, set[str]] = {}
        # The lengths of the runs, by where in a path they can be: only these pieces are looked up.
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
        """Return the longest of its least used runs after the lead, or the empty one."""
        best, least = "", (0, 0)
        for whole in _wrap(key).replace("?", "*").split("*")[1:]:
            run = whole[-_MAX_RUN:] if whole[-1:] == "/" and whole[:1] != "/" else whole[:_MAX_RUN]
            if run not in _COMMON_RUNS:
                use = (len(self._keys.get(run, ())), -len(run))
                if not best or use < least:
                    best, least = run, use
        return best

    def candidates(self, text: str) -> set[str]:
        """Return the patterns whose run is in the wrapped path."""
        slashes = [match.start() for match in _SLASH.finditer(text)]
        pieces = {text[at : at + size] for size in self._from_slash for at in slashes}
        pieces.add("")
        if self._to_slash:
            pieces.update([text[max(at + 1 - size, 0) : at + 1] for size in self._to_slash for at in slashes])
        if self._anywhere:
            pieces.update([text[at : at + size] for size in self._anywhere for at in range(len(text))])
        return set().union(*[self._keys[run] for run in self._keys.keys() & pieces])


def _wrap(key: str) -> str:
    return f"/{key[len(FILE) :]}/"


def _lead(key: str) -> str:
    """Return the text that every path which the key matches begins with, with a slash after it."""
    return f"{key}/".partition("*")[0].partition("?")[0]


def _tail(key: str) -> str:
    """Return the text that every wrapped path which the key matches ends with."""
    return f"{key}/".rpartition("*")[2].rpartition("?")[2]
