"""Parsed documents with the line of every field, and checks of received JSON objects."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
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


MAX_WORD: Final = 255

WORD: Final = f"1 to {MAX_WORD} printable characters"
HASH: Final = "blake3: and 64 lowercase hexadecimal digits"
TIME: Final = "a time such as 2027-01-15T08:00:00.000Z"

Fields = Mapping[str, tuple[Callable[[Any], bool], str]]
"""For each key, a check of its value, and the rule in words."""

_EXACT: Final = 2**53
_CONTENT_ID: Final = re.compile(r"[0-9a-f]{64}")
_HASH: Final = re.compile(r"blake3:[0-9a-f]{64}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)


def shape_faults(what: str, value: Any, fields: Fields) -> list[str]:
    """Return all faults of an object that must have exactly these keys."""
    if type(value) is not dict:
        return [f"{what} is {short(value)}, and not an object"]
    faults = []
    if value.keys() != fields.keys():
        faults = [f"{what} has the unknown key {short(name)}" for name in value if name not in fields]
        faults += [f"{what} has no {name}" for name in fields if name not in value]
    for name, (is_right, allowed) in fields.items():
        if name in value and not is_right(value[name]):
            faults.append(f"{name} of {what} is {short(value[name])}, and not {allowed}")
    return faults


def has_keys(value: Any, names: Collection[str]) -> bool:
    """Return whether a value is an object with exactly these keys."""
    return type(value) is dict and value.keys() == set(names)


def short(value: Any) -> str:
    """Return a value as text for people, shortened."""
    # A lone surrogate can't be printed.
    return reprlib.repr(value).encode(errors="replace").decode()


def is_word(value: Any) -> bool:
    """Return whether a value is a short text without line breaks."""
    return type(value) is str and 0 < len(value) <= MAX_WORD and value.isprintable()


def is_content_id(value: Any) -> bool:
    """Return whether a value has the form of a job's id."""
    return type(value) is str and _CONTENT_ID.fullmatch(value) is not None


def is_hash(value: Any) -> bool:
    """Return whether a value has the form of an output's hash."""
    return type(value) is str and _HASH.fullmatch(value) is not None


def is_count(value: Any) -> bool:
    """Return whether a value is a non-negative integer that is exact in every JSON implementation."""
    return type(value) is int and 0 <= value < _EXACT


def is_time(value: Any) -> bool:
    """Return whether a value is a time in UTC with milliseconds."""
    if type(value) is not str or not _TIME.fullmatch(value):
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True
