"""Select kinds of faults on a command line: by name, or as a named set."""

from __future__ import annotations

from collections.abc import Iterable, Set
from enum import StrEnum
from typing import Final, TypeVar

K = TypeVar("K", bound=StrEnum)

ALL: Final = "all"
DEFAULT: Final = "default"
OPTIONAL: Final = "optional"


def choices_of(kinds: type[K], default: Set[K] = frozenset()) -> list[str]:
    """Return the accepted names; `optional` is one only if some kinds are not default ones."""
    words = [DEFAULT, OPTIONAL, ALL] if frozenset(kinds) - default else [DEFAULT, ALL]
    return [*words, *(str(kind) for kind in kinds)]


def select_kinds(names: Iterable[str] | None, kinds: type[K], default: Set[K]) -> frozenset[K]:
    """Return the named kinds, or the default ones if none are named. `optional` names all but the default
    ones."""
    sets = {DEFAULT: frozenset(default), OPTIONAL: frozenset(kinds) - default, ALL: frozenset(kinds)}
    found: frozenset[K] = frozenset()
    for name in names or (DEFAULT,):
        found |= sets[name] if name in sets else {kinds(name)}
    return found
