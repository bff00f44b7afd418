"""Decide whether a definition is passive: it stores values, and neither calls functions nor acts on the mesh.

Of SQL from elsewhere (a backup, or another writer of the database) only passive definitions are accepted.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from vox_mesh.store.schema.sql_words import Words, is_name, name_of, words_of

_BEFORE_PARENTHESIS: Final = frozenset(
    {
        *("and", "as", "between", "case", "cast", "check", "default", "else", "glob", "in", "is", "key"),
        *("like", "not", "on", "or", "then", "unique", "when", "where"),
        *("abs", "coalesce", "date", "datetime", "hex", "ifnull", "instr", "json", "json_extract"),
        *("json_type", "json_valid", "julianday", "length", "lower", "max", "min", "nullif", "round"),
        *("strftime", "substr", "time", "trim", "typeof", "unixepoch", "upper"),
    }
)
"""Keywords, and functions of SQLite that only compute."""
_ACTIVE_IN_COLUMN: Final = frozenset({"as", "check", "generated", "primary", "references", "unique", "on"})
_NUMBERS: Final = frozenset("+-,.0123456789")


def is_passive_table(name: str, sql: str, ours: Collection[str]) -> bool:
    """Return whether a table calls no function, is no virtual one and refers to none of our tables."""
    words = words_of(sql)
    if words[:2] != ("create", "table") or words[3:4] != ("(",) or name_of(words[2]) != name.lower():
        return False
    return not references(words) & set(ours) and _is_inert(sql, words)


def is_passive_index(name: str, sql: str, tables: Collection[str]) -> bool:
    """Return whether an index is on one of these tables and calls no function."""
    words = tuple(word for word in words_of(sql) if word != "unique")
    if words[:2] != ("create", "index") or words[3:4] != ("on",) or words[5:6] != ("(",):
        return False
    return name_of(words[2]) == name.lower() and name_of(words[4]) in tables and _is_inert(sql, words)


def is_plain_index(sql: str) -> bool:
    """Return whether an index only orders rows by columns: it can't refuse or compute anything."""
    words = words_of(sql)
    columns = words[words.index("(") + 1 : -1] if "(" in words else ("?",)
    is_whole = words[:2] == ("create", "index") and words[-1] == ")"
    return is_whole and all(word == "," or is_name(word) for word in columns)


def is_passive_column(words: Words) -> bool:
    """Return whether a column can't refuse or compute a value: a name, a type and a literal as default."""
    if _ACTIVE_IN_COLUMN & set(words[1:]):
        return False
    needs_default = "not" in words
    if "default" not in words:
        return not needs_default
    return is_literal(words[words.index("default") + 1 :])


def is_literal(words: Words) -> bool:
    """Return whether a column's definition ends with a literal, as its default."""
    value = words[1:] if words[:1] in (("+",), ("-",)) else words
    if not value:
        return False
    is_one = len(value) == 1 or value[1:] == ("not", "null")
    return is_one and (value[0][0] in "'0123456789" or value[0] in ("null", "true", "false"))


def references(words: Words) -> set[str]:
    """Return the tables that foreign keys refer to."""
    return {name_of(words[at + 1]) for at, word in enumerate(words[:-1]) if word == "references"}


def written_tables(words: Words) -> set[str]:
    """Return the tables that the statements of a trigger write to."""
    found: set[str] = set()
    for at, word in enumerate(words):
        rest = words[at + 1 :]
        if word == "update" and rest[:1] == ("or",):
            rest = rest[2:]
        if rest and (word in ("into", "update") or words[at - 1 : at + 1] == ("delete", "from")):
            found.add(name_of(rest[0]))
    return found


def _is_inert(sql: str, words: Words) -> bool:
    """Return whether a definition is one statement that selects nothing and calls no function."""
    return "\0" not in sql and not {";", "select"} & set(words) and not _calls(words)


def _calls(words: Words) -> bool:
    """Return whether a word before a parenthesis may be a function."""
    depth = 0
    for at, word in enumerate(words):
        depth += (word == "(") - (word == ")")
        if word != "(" or depth == 1 or not is_name(words[at - 1]) or words[at - 1] in _BEFORE_PARENTHESIS:
            continue
        is_type_or_key = depth == 2 and (words[at - 2] == "references" or _is_size(words[at + 1 :]))
        if not is_type_or_key:
            return True
    return False


def _is_size(words: Words) -> bool:
    """Return whether a parenthesis holds only numbers, as in VARCHAR(20)."""
    inside = words[: words.index(")")] if ")" in words else ("?",)
    return bool(inside) and all(set(word) <= _NUMBERS for word in inside)
