"""Read the SQL files: the schema, and the named statements of each noun."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

RAW_MS: Final = "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"
"""The database's clock, in milliseconds."""
NOW_MS: Final = f"({RAW_MS} + coalesce((SELECT correction_ms FROM database_clock), 0))"
"""The time of the mesh in milliseconds: the database's clock plus the correction that the nodes maintain."""
_ISO_FORMAT: Final = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now'"
_MODIFIER: Final = "coalesce((SELECT modifier FROM database_clock), '+0 seconds')"
_NOW_ISO: Final = f"(SELECT {_ISO_FORMAT}, {_MODIFIER}))"  # as a subquery it is evaluated once per statement
_ISO_IN: Final = f"{_ISO_FORMAT}, {_MODIFIER}, "
_PART: Final = re.compile(r"\b[A-Z_]+\b")
_FROM: Final = "from "
_NAME: Final = re.compile(r"^-- (name|part|from \w+): (\w+)$", re.MULTILINE)


def folder() -> Path:
    """Return the folder of the SQL files: in the package, or next to it in a checkout."""
    package = Path(__file__).resolve().parents[2]
    packaged = package / "sql"
    return packaged if packaged.is_dir() else package.parent / "sql"


def named(noun: str) -> Mapping[str, str]:
    """Return the statements of `sql/<noun>.sql` by name.

    A part can be used in everything after it; `-- from NOUN: PART` takes one from another file.
    """
    return _read(noun)[0]


def part(noun: str, name: str) -> str:
    """Return a part of the statements of `sql/<noun>.sql`."""
    return _read(noun)[1][name]


@cache
def _read(noun: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the statements and the parts of a file, by name."""
    pieces = _NAME.split((folder() / f"{noun}.sql").read_text())[1:]
    statements: dict[str, str] = {}
    parts: dict[str, str] = {}
    for kind, name, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        if kind.startswith(_FROM):
            parts[name] = part(kind.removeprefix(_FROM), name)
            continue
        whole = bare(text)
        if any(each in whole for each in parts):  # most use none, and looking at each word is slow
            whole = _PART.sub(lambda word: parts.get(word[0], word[0]), whole)
        (statements if kind == "name" else parts)[name] = whole
    return statements, parts


@cache
def ddl() -> tuple[str, ...]:
    """Return the statements of `sql/coordination.sql`, in order."""
    return tuple(map(bare, split((folder() / "coordination.sql").read_text())))


def split(text: str) -> list[str]:
    """Split a file into its statements, each with the comments above it."""
    statements: list[str] = []
    pending = ""
    for line in text.splitlines(keepends=True):
        pending += line
        if ";" in line and sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    if bare(pending):
        raise ValueError(f"a statement must end with a semicolon, got {bare(pending)}")
    return statements


def bare(text: str) -> str:
    """Return the statement without comments and needless spaces, with time macros expanded.

    `NOW_MS` is the time of the mesh in milliseconds, `NOW_ISO` that time as text, and `ISO_IN(x)` the time
    after x, a modifier such as `+30.000 seconds`. `RAW_MS` is the database's own clock.
    """
    text = " ".join(re.sub(r"--[^\n]*", "", text).split()).rstrip(";")
    text = text.replace("NOW_MS", NOW_MS).replace("RAW_MS", RAW_MS).replace("NOW_ISO", _NOW_ISO)
    return text.replace("ISO_IN(", _ISO_IN)
