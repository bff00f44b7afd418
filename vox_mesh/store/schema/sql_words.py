"""Split a definition into words as SQLite does: without comments, and with names in one form."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

Words = tuple[str, ...]

_WORD: Final = r"""--[^\n]* | /\*.*?(?:\*/|\Z)
    | (?P<word> '(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\]
      | [\w.$\x80-\U0010ffff]+ | [^\s\w] )"""
_QUOTES: Final = {'"': '"', "`": "`", "[": "]"}
_KEYWORDS: Final = frozenset(
    {
        *("always", "as", "asc", "autoincrement", "check", "collate", "conflict", "constraint", "default"),
        *("deferrable", "desc", "foreign", "generated", "key", "not", "null", "on", "primary", "references"),
        *("rowid", "stored", "strict", "unique", "virtual", "without"),
    }
)


def words_of(sql: str) -> Words:
    """Return the words in lower case; strings keep their case and quotes, as do names that are keywords."""
    return tuple(_normal(match["word"]) for match in _pattern().finditer(sql) if match["word"])


@cache
def _pattern() -> re.Pattern[str]:
    """Return the pattern of a word; it is slow to compile, and a usual database needs none."""
    return re.compile(_WORD, re.VERBOSE | re.DOTALL | re.ASCII)


def name_of(word: str) -> str:
    """Return a word of `words_of` as the name that it is, however it was quoted."""
    if word[:1] == "'":
        return word[1:-1].replace("''", "'").lower()
    return word[1:-1].lower() if word[:1] == '"' else word


def is_name(word: str) -> bool:
    """Return whether a word is a name or a keyword, not a string, a number or an operator."""
    return word[:1] == '"' or word[:1] == "_" or word[:1].isalpha() or word[:1] > "\x7f"


def _normal(word: str) -> str:
    close = _QUOTES.get(word[0])
    if close is None:
        return word if word[0] == "'" else word.lower()
    bare = word[1:-1].replace(close * 2, close).lower()
    # A quoted keyword is a name: `TEXT "NOT" NULL` allows null.
    return f'"{bare}"' if bare in _KEYWORDS or not _is_plain(bare) else bare


def _is_plain(name: str) -> bool:
    return bool(re.fullmatch(r"[a-z_\x80-\U0010ffff][\w$\x80-\U0010ffff]*", name, re.ASCII))
