"""Parsed documents with the line of every field, so that faults have a position."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

MAX_BYTES: Final = 2**20
"""The size limit of a text."""

Path = tuple[str | int, ...]
"""The names and indexes that lead to a value."""

_PLAIN_NAME: Final = re.compile(r"[^\s.:\[\]\"']{1,64}")


class DocumentFault(NamedTuple):
    """A fault and its position."""

    name: str
    line: int
    path: Path
    wrong: str

    def __str__(self) -> str:
        field = f"{field_text(self.path)}: " if self.path else ""
        return f"{self.name}:{self.line}: {field}{self.wrong}"


class Lines(NamedTuple):
    """The line of a value, and the lines of its children."""

    line: int
    inner: Mapping[str | int, Lines] = MappingProxyType({})


@dataclass(frozen=True)
class Document:
    """One document of a text. With `faults`, its value serves only to find more of them."""

    name: str
    value: Any
    faults: tuple[DocumentFault, ...]
    lines: Lines

    def line_of(self, path: Path) -> int:
        """Return the line of a field, or that of its nearest parent."""
        lines = self.lines
        for step in path:
            if step not in lines.inner:
                break
            lines = lines.inner[step]
        return lines.line

    def fault(self, path: Path, wrong: str) -> DocumentFault:
        """Return a fault of the value at a path."""
        return DocumentFault(self.name, self.line_of(path), path, wrong)


def field_text(path: Path) -> str:
    """Return a path as people write it: `after[0].when`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            plain = step.isprintable() and _PLAIN_NAME.fullmatch(step)
            text += ("." if text else "") + (step if plain else json.dumps(step[:64]))
    return text


def is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogates; one that has can't be stored."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
