"""Fitting into the terminal: how wide columns are, and how high panels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size

GAP: Final = 2
_ELLIPSIS: Final = "…"


def cut(text: str, width: int) -> str:
    """The text in exactly so many columns, and a sign that there was more."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, width - 1) + _ELLIPSIS if width > 1 else set_cell_size(text, width)


def widths(natural: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """How wide each column is: as wide as it would be, but the widest give way where there is no room.

    Those at the end that have no room even so are left out: their width is 0.
    """
    given = list(natural)
    excess = sum(given) + GAP * (len(given) - 1) - width
    while excess > 0:
        wider = [at for at in range(len(given)) if given[at] > least[at]]
        if not wider:
            break
        most = max(wider, key=given.__getitem__)
        given[most] -= 1
        excess -= 1
    for at in range(len(given) - 1, 0, -1):
        if excess <= 0:
            break
        excess -= given[at] + GAP
        given[at] = 0
    return given


def heights(wanted: Sequence[int], available: int, chosen: int | None = None) -> list[int]:
    """How many lines each panel has, all in all as many as there are.

    Each has its title and a row, if it has any; then the chosen one has what it wants, and then the others.
    What nobody wants is the chosen one's, or everybody's.
    """
    given = [min(2, want) for want in wanted]
    left = available - sum(given)
    if chosen is not None:
        more = max(0, min(wanted[chosen] - given[chosen], left))
        given[chosen] += more
        left -= more
    while left > 0 and (short := [at for at, want in enumerate(wanted) if given[at] < want]):
        for at in short[:left]:
            given[at] += 1
        left -= len(short[:left])
    if chosen is not None:
        given[chosen] += max(0, left)
        return given
    share, rest = divmod(max(0, left), len(given))
    return [each + share + (at < rest) for at, each in enumerate(given)]
