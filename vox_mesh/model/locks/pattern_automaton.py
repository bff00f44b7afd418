"""Decide whether some path matches two patterns, in linear time, and whether one pattern covers another.

A pattern is an automaton whose states are the places between its tokens. The set of its possible states is
one integer, a bit for each place. The tokens of the other pattern move the whole set at once, each with a few
operations on integers, so a pair takes as many steps as its second pattern has characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

_SLASH: Final = "/"
_DEEP: Final = "**"
_STAR: Final = "*"
_ONE: Final = "?"
_REST: Final = "/**"
"""A token for any text, after the slash that begins it. `**` is this, or nothing."""

_CACHE_SIZE: Final = 256
_MAX_STEPS: Final = 4_000
_OTHER: Final = "\0"
"""Stands for all characters that neither of two patterns names; no path holds it."""


def paths_overlap(a: str, b: str) -> bool:
    """Return whether some path matches both path patterns."""
    return _automaton(a).accepts(_tokens(b))


@lru_cache(maxsize=_CACHE_SIZE)
def path_covers(wide: str, narrow: str) -> bool:
    """Return whether every path that matches `narrow` also matches `wide`.

    Both are moved along all paths that `narrow` allows. Patterns that need too many steps, which only
    contrived ones do, count as not covered.
    """
    outer, inner = _automaton(wide), _automaton(narrow)
    names = {*_tokens(wide), *_tokens(narrow), _OTHER} - {_SLASH, _STAR, _ONE, _DEEP, _REST}
    begin = (inner.step(inner.begin, _SLASH), outer.step(outer.begin, _SLASH), True)
    seen, to_do = {begin}, [begin]
    while to_do:
        in_inner, in_outer, is_after_slash = to_do.pop()
        if not is_after_slash and inner.is_end(in_inner) and not outer.is_end(in_outer):
            return False
        for letter in names if is_after_slash else (*names, _SLASH):  # no segment is empty
            states = inner.step(in_inner, letter)
            following = (states, outer.step(in_outer, letter), letter == _SLASH)
            if states and following not in seen:
                seen.add(following)
                to_do.append(following)
        if len(seen) > _MAX_STEPS:
            return False
    return True


@lru_cache(maxsize=_CACHE_SIZE)
def _tokens(path: str) -> Sequence[str]:
    """Return the tokens of a path pattern. Runs of `*`, and of `**`, are as one."""
    tokens: list[str] = []
    for segment in path.split("/"):
        if segment != _DEEP:
            tokens.append(_SLASH)
            tokens += [each for at, each in enumerate(segment) if segment[at : at + 2] != _DEEP]
        elif tokens[-1:] != [_REST]:
            tokens += (_DEEP, _REST)
    return tokens


@lru_cache(maxsize=_CACHE_SIZE)
def _automaton(path: str) -> _Automaton:
    return _Automaton(_tokens(path))


class _Automaton:
    """A pattern that is moved by the tokens of another one."""

    def __init__(self, tokens: Sequence[str]) -> None:
        places: dict[str, int] = {}
        for at, token in enumerate(tokens):
            places[token] = places.get(token, 0) | 1 << at
        self._end = 1 << len(tokens)
        self._all = 2 * self._end - 1
        self._stars, self._ones = places.pop(_STAR, 0), places.pop(_ONE, 0)
        self._deeps, self._rests = places.pop(_DEEP, 0), places.pop(_REST, 0)
        self._slashes = places.pop(_SLASH, 0) | self._deeps
        self._characters = {each: at | self._ones for each, at in places.items()}
        self._names = self._all ^ (self._end | self._slashes | self._rests | self._stars)
        self._loops = self._stars | self._rests
        self.begin = self._open(1)
        """The states before the first token."""

    def accepts(self, tokens: Sequence[str]) -> bool:
        """Return whether a path of these tokens leads to the end."""
        states = self.begin
        for token in tokens:
            if token == _STAR:
                # The addition carries each state to the end of its name, through all places of the name.
                inside = self._names | self._stars
                states = self._open((((states & inside) + inside) ^ inside) | states)
            elif token == _SLASH:
                states = self._after_slash(states)
            elif token == _DEEP:
                below = self._after_slash(states)
                states |= -(below & -below) & self._all  # any text leads to any later place
            elif token != _REST:
                fitting = self._names if token == _ONE else self._characters.get(token, self._ones)
                states = self._open((states & fitting) << 1 | states & self._loops)
            if not states:
                return False
        return self.is_end(states)

    def is_end(self, states: int) -> bool:
        """Return whether the pattern may end in one of these states."""
        return bool(states & self._end)

    def step(self, states: int, letter: str) -> int:
        """Return the states after one more character of a path."""
        if letter == _SLASH:
            return self._after_slash(states)
        fitting = self._characters.get(letter, self._ones)
        return self._open((states & fitting) << 1 | states & self._loops)

    def _after_slash(self, states: int) -> int:
        return self._open((states & self._slashes) << 1 | states & self._rests)

    def _open(self, states: int) -> int:
        """Add the places that are reached without a character."""
        states |= (states & self._stars) << 1
        states |= (states & self._deeps) << 2
        return states | (states & self._rests) << 1
