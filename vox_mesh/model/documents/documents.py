"""Documents that were read from a text, with the line of every field: a fault is told where it stands."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

MAX_BYTES: Final = 2**20
"""No text is longer that is read."""

Path = tuple[str | int, ...]
"""Where a value stands: the names and positions that lead to it."""

_PLAIN_NAME: Final = re.compile(r"[^\s.:\[\]\"']{1,64}")


class DocumentFault(NamedTuple):
    """What is wrong, and where."""

    name: str
    line: int
    path: Path
    wrong: str

    def __str__(self) -> str:
        field = f"{field_text(self.path)}: " if self.path else ""
        return f"{self.name}:{self.line}: {field}{self.wrong}"


class Lines(NamedTuple):
    """Where a value begins, and what is in it."""

    line: int
    inner: Mapping[str | int, Lines] = MappingProxyType({})


@dataclass(frozen=True)
class Document:
    """One document of a text. With `faults`, its value is of use only to look for more of them."""

    name: str
    value: Any
    faults: tuple[DocumentFault, ...]
    lines: Lines

    def line_of(self, path: Path) -> int:
        """The line of a field; where there is none, that of the nearest one around it."""
        lines = self.lines
        for step in path:
            if step not in lines.inner:
                break
            lines = lines.inner[step]
        return lines.line

    def fault(self, path: Path, wrong: str) -> DocumentFault:
        """A fault of the value there."""
        return DocumentFault(self.name, self.line_of(path), path, wrong)


def field_text(path: Path) -> str:
    """A path as people write it: `after[0].when`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            plain = step.isprintable() and _PLAIN_NAME.fullmatch(step)
            text += ("." if text else "") + (step if plain else json.dumps(step[:64]))
    return text


def is_unicode(text: str) -> bool:
    """Whether all in it are characters: half a surrogate pair is none, and no text with one is stored."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
