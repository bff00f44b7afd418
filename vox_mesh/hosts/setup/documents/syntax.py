"""Parse JSON with comments and trailing commas into values that know their place in the text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from vox_mesh.hosts.setup.documents.errors import DocumentRefused

_MAX_DEPTH: Final = 100
_SPACE: Final = " \t\r\n"
_BOM: Final = "\ufeff"
_TRIVIA: Final = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_COMMENT: Final = re.compile(r"//[^\r\n]*|/\*.*?\*/", re.DOTALL)
_COMMENTS_ON_LINE: Final = re.compile(r"(?:[ \t]*/\*.*?\*/)*(?:[ \t]*//[^\r\n]*)?", re.DOTALL)
_SCALAR: Final = re.compile(
    r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
    r"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null",
    re.ASCII,
)
_MAX_DIGITS: Final = 1_000


@dataclass(slots=True)
class JsonNode:
    """A value, and where it is in the text."""

    start: int
    end: int
    value: Any = None
    """The value of a scalar; those of objects and arrays are in `items`."""

    kind: str = ""
    """`{`, `[`, or nothing for a scalar."""

    items: list[JsonItem] = field(default_factory=list)

    def plain(self) -> Any:
        """Return the value without places. Of members with one name, the last counts, as in parsers."""
        if self.kind == "{":
            return {item.key: item.node.plain() for item in self.items}
        return [item.node.plain() for item in self.items] if self.kind else self.value

    def find(self, key: str) -> JsonItem | None:
        """Return the member of an object that counts."""
        found = [item for item in self.items if item.key == key] if self.kind == "{" else []
        return found[-1] if found else None

    def at(self, path: tuple[str, ...]) -> JsonNode | None:
        """Return the value at a path of names."""
        node: JsonNode | None = self
        for key in path:
            item = None if node is None else node.find(key)
            node = None if item is None else item.node
        return node


@dataclass(slots=True)
class JsonItem:
    """A member of an object, or an element of an array; from its name, if it has one, to its value's end."""

    start: int
    node: JsonNode
    key: str | None = None
    comma: int | None = None
    """The place of the comma behind it."""

    @property
    def end(self) -> int:
        return self.node.end


def parse(text: str) -> JsonNode:
    """Return the root of a document. Raises `DocumentRefused` with the line of the first fault."""
    parser = _Parser(text)
    at = parser.skip(len(_BOM) if text.startswith(_BOM) else 0)
    root = parser.value(at, 0)
    end = parser.skip(root.end)
    if end != len(text):
        raise parser.fault(end, "end of the document expected")
    return root


def skip_trivia(text: str, at: int) -> int:
    """Return where the next token begins, behind white space and comments."""
    found = _TRIVIA.match(text, at)
    assert found is not None, "it matches nothing, too"
    return found.end()


def space_before(text: str, at: int) -> int:
    """Return where the white space directly before a place begins."""
    while at > 0 and text[at - 1] in _SPACE:
        at -= 1
    return at


def space_after(text: str, at: int) -> int:
    """Return where the white space directly behind a place ends."""
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def comments_on_line(text: str, at: int) -> int:
    """Return the end of the last comment that follows a place on its line, or the place itself."""
    found = _COMMENTS_ON_LINE.match(text, at)
    assert found is not None, "it matches nothing, too"
    return found.end()


def ends_in_line_comment(text: str, start: int, end: int) -> bool:
    """Return whether the white space and comments between two places end in a comment without an end mark."""
    comments = [found[0] for found in _COMMENT.finditer(text, start, end)]
    return bool(comments) and comments[-1].startswith("//") and text[:end].endswith(comments[-1])


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text

    def skip(self, at: int) -> int:
        return skip_trivia(self._text, at)

    def fault(self, at: int, what: str) -> DocumentRefused:
        line = self._text.count("\n", 0, at) + 1
        return DocumentRefused(f"line {line}: {what}", hint="correct the file, then run the command again")

    def value(self, at: int, depth: int) -> JsonNode:
        if depth > _MAX_DEPTH:
            raise self.fault(at, f"values must be nested at most {_MAX_DEPTH} deep")
        opening = self._text[at : at + 1]
        if opening in ("{", "["):
            return self._container(at, depth)
        found = _SCALAR.match(self._text, at)
        if found is None or (opening != '"' and len(found[0]) > _MAX_DIGITS):
            raise self.fault(at, "JSON value expected")
        return JsonNode(at, found.end(), json.loads(found[0]))

    def _container(self, start: int, depth: int) -> JsonNode:
        node = JsonNode(start, start, kind=self._text[start])
        closing = "}" if node.kind == "{" else "]"
        at = self.skip(start + 1)
        while self._text[at : at + 1] != closing:
            if node.items and node.items[-1].comma is None:
                raise self.fault(at, f"comma or {closing} expected")
            item = self._member(at, depth) if node.kind == "{" else JsonItem(at, self.value(at, depth + 1))
            node.items.append(item)
            at = self.skip(item.end)
            if self._text[at : at + 1] == ",":
                item.comma = at
                at = self.skip(at + 1)
        node.end = at + 1
        return node

    def _member(self, at: int, depth: int) -> JsonItem:
        name = _SCALAR.match(self._text, at)
        if name is None or self._text[at] != '"':
            raise self.fault(at, "name in double quotes expected")
        colon = self.skip(name.end())
        if self._text[colon : colon + 1] != ":":
            raise self.fault(colon, "colon expected")
        return JsonItem(at, self.value(self.skip(colon + 1), depth + 1), json.loads(name[0]))
