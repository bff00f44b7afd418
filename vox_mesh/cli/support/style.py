"""Colours and widths of a terminal; text for pipes and files has neither."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final, TextIO

import click

_GOOD: Final = frozenset({"ok", "alive", "succeeded", "done"})
_DOUBTFUL: Final = frozenset({"warn", "alert", "pending", "overdue"})
_BAD: Final = frozenset({"fail", "failed", "dead", "critical", "aborted", "refused"})
_COLOURS: Final = {
    **dict.fromkeys(_GOOD, "green"),
    **dict.fromkeys(_DOUBTFUL, "yellow"),
    **dict.fromkeys(_BAD, "red"),
}
_IDENTIFIERS: Final = ("id", "key", "token", "ulid", "uuid", "hash")
_LEAST: Final = 8
_GAP: Final = 2


def has_colours(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that shows colours; NO_COLOR and TERM=dumb turn them off."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def heading(text: str) -> str:
    """Return a heading of the output, bold on a terminal."""
    return click.style(text, bold=True) if has_colours(sys.stdout) else text


def state(text: str) -> str:
    """Return a cell, with the colour of the state that it names."""
    colour = _COLOURS.get(text.strip())
    return click.style(text, fg=colour) if colour is not None and has_colours(sys.stdout) else text


def error_name(text: str) -> str:
    """Return the name of the program before an error, red on a terminal."""
    return click.style(text, fg="red", bold=True) if has_colours(sys.stderr) else text


def fitting_widths(names: Sequence[str], widths: Sequence[int]) -> list[int]:
    """Return the widths of columns that fit the terminal: the widest ones shrink, identifiers never do."""
    fitting = list(widths)
    if not sys.stdout.isatty():
        return fitting
    import shutil  # slow to import

    room = shutil.get_terminal_size().columns - _GAP * (len(widths) - 1)
    shrinking = [at for at, name in enumerate(names) if name.split("_")[-1] not in _IDENTIFIERS]
    while (excess := sum(fitting) - room) > 0 and shrinking:
        widest = max(shrinking, key=lambda at: fitting[at])
        if fitting[widest] <= _LEAST:
            break
        fitting[widest] = max(_LEAST, fitting[widest] - excess)
    return fitting


def cut(text: str, width: int) -> str:
    """Return the text, cut to a width."""
    return text if len(text) <= width else text[: width - 1] + "…"
