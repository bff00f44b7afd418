"""A JSON document that is edited as text: comments, order, white space and line endings stay.

What is removed again leaves no trace. That works without a record, because the white space tells who made a
container: one that existed empty gets its first item directly behind the bracket, and one made here has white
space there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from vox_mesh.hosts.setup.documents.errors import DocumentRefused
from vox_mesh.hosts.setup.documents.syntax import (
    JsonItem,
    JsonNode,
    comments_on_line,
    ends_in_line_comment,
    parse,
    space_after,
    space_before,
)

Path: TypeAlias = tuple[str | int, ...]
"""The way to a value: names of members, and numbers of elements."""

_DEFAULT_INDENT: Final = "  "
_NAMES: Final = {"{": "an object", "[": "an array", "": "a plain value"}


class JsonDocument:
    """The text of a document with an object at its root. It does not change: edits return another one."""

    def __init__(self, text: str) -> None:
        """Raises `DocumentRefused` if the text can't be parsed."""
        self.text = text
        self._root = parse(text)
        if self._root.kind != "{":
            raise DocumentRefused(
                f"document must be an object, got {_NAMES[self._root.kind]}", hint="correct the file"
            )

    @classmethod
    def made_of(cls, value: Mapping[str, Any]) -> JsonDocument:
        """Return a new document, which is ours as a whole."""
        return cls(json.dumps(value, indent=_DEFAULT_INDENT, ensure_ascii=False) + "\n")

    @property
    def value(self) -> dict[str, Any]:
        """The value of the document."""
        found: dict[str, Any] = self._root.plain()
        return found

    # --- insert ----------------------------------------------------------------------------------

    def with_member(self, path: tuple[str, ...], value: Any) -> JsonDocument:
        """Set a member, whose parents are made if need be; one that exists is replaced."""
        *parents, name = path
        found = self._root.at(path)
        if found is not None:
            return JsonDocument(self._replaced(found, value))
        return self._inserted(tuple(parents), "{", name, value)

    def with_element(self, path: tuple[str, ...], value: Any) -> JsonDocument:
        """Append an element to an array, which is made if need be."""
        return self._inserted(path, "[", None, value)

    def _replaced(self, node: JsonNode, value: Any) -> str:
        indent = _indent_of_line(self.text, node.start)
        return self.text[: node.start] + self._printed(value, indent) + self.text[node.end :]

    def _inserted(self, path: tuple[str, ...], kind: str, name: str | None, value: Any) -> JsonDocument:
        """Add an item to the container at a path; what is missing of the path is added with it."""
        known: tuple[str, ...] = path
        while (node := self._root.at(known)) is None:
            *parents, missing = known
            value = [value] if name is None else {name: value}
            known, name = tuple(parents), missing
        wanted = kind if known == path else "{"
        if node.kind != wanted:
            where = ".".join(known)
            raise DocumentRefused(
                f"{where} must be {_NAMES[wanted]}, got {_NAMES[node.kind]}", hint="correct the file"
            )
        return JsonDocument(self._with_item(node, name, value))

    def _with_item(self, container: JsonNode, name: str | None, value: Any) -> str:
        text, newline = self.text, self._newline
        indent = self._indent_in(container)
        item = self._printed(value, indent)
        if name is not None:
            item = f"{json.dumps(name, ensure_ascii=False)}: {item}"
        if not container.items:
            at = container.start + 1
            return text[:at] + item + text[at:]
        last = container.items[-1]
        if last.comma is not None:  # a trailing comma stays one
            at = comments_on_line(text, last.comma + 1)
            return f"{text[:at]}{newline}{indent}{item},{text[at:]}"
        at = comments_on_line(text, last.end)
        return f"{text[: last.end]},{text[last.end : at]}{newline}{indent}{item}{text[at:]}"

    def _printed(self, value: Any, indent: str) -> str:
        lines = json.dumps(value, indent=self._unit, ensure_ascii=False).split("\n")
        return f"{self._newline}{indent}".join(lines)

    @property
    def _newline(self) -> str:
        at = self.text.find("\n")
        return "\r\n" if at > 0 and self.text[at - 1] == "\r" else "\n"

    @property
    def _unit(self) -> str:
        """The indentation of one level, as that of the first member."""
        if not self._root.items:
            return _DEFAULT_INDENT
        return _indent_before(self.text, self._root.items[0].start) or _DEFAULT_INDENT

    def _indent_in(self, container: JsonNode) -> str:
        """Return the indentation of items: that of the first one, if it is on a line of its own."""
        if container.items:
            found = _indent_before(self.text, container.items[0].start)
            if found is not None:
                return found
        outer = _indent_of_line(self.text, container.start)
        return outer + self._unit if container.items else outer

    # --- remove ----------------------------------------------------------------------------------

    def without(self, path: Path, made_with: Mapping[str, Any] | None = None) -> JsonDocument | None:
        """Remove what is at a path, and the containers that were made for it.

        Returns `None` if the document was made for it, too; `made_with` are the other members that it was
        made with, behind the first one.
        """
        nodes = self._nodes_on(path)
        depth = len(path)
        while depth > 0 and self._is_made_for_one(nodes[depth - 1], made_with if depth == 1 else None):
            depth -= 1
        if depth == 0:
            return None
        container, last = nodes[depth - 1], path[depth - 1]
        return JsonDocument(self._without_item(container, _index_of(container, last)))

    def _nodes_on(self, path: Path) -> list[JsonNode]:
        """Return the containers on the way to a value, from the root to the one that holds it."""
        nodes = [self._root]
        for part in path[:-1]:
            nodes.append(nodes[-1].items[_index_of(nodes[-1], part)].node)
        return nodes

    def _is_made_for_one(self, container: JsonNode, made_with: Mapping[str, Any] | None) -> bool:
        """Return whether a container was made for its first item, and has nothing else by now."""
        if not container.items:
            return False
        first, *others = container.items
        if others and {each.key: each.node.plain() for each in others} != made_with:
            return False
        before = self.text[container.start + 1 : first.start]
        behind = self.text[container.items[-1].end : container.end - 1]
        return bool(before) and not before.strip() and not behind.strip()

    def _without_item(self, container: JsonNode, index: int) -> str:
        text, items = self.text, container.items
        item, before = items[index], items[index - 1].comma if index > 0 else container.start
        assert before is not None, "between two items is a comma"
        since, start = before + 1, space_before(text, item.start)
        if item.comma is not None:
            if text[item.end : item.comma].strip():  # a comment of the user
                return text[: item.start] + text[item.end : item.comma] + text[item.comma + 1 :]
            end = item.comma + 1
            if index == 0 and item.start == since and len(items) > 1:
                end = space_after(text, end)  # the next one is directly behind the bracket, too
            return self._cut(since, start, item.start, end)
        if index > 0:
            rest = self._cut(since, start, item.start, item.end)
            return rest[:before] + rest[before + 1 :]
        return self._cut(since, item.start if start == since else start, item.start, item.end)

    def _cut(self, since: int, start: int, at: int, end: int) -> str:
        """Remove an item, from the white space before it on, unless that ends a comment.

        Before it, there are white space and comments only from `since` on.
        """
        text = self.text
        if ends_in_line_comment(text, since, start) and not text[end:].lstrip(" \t").startswith(("\n", "\r")):
            start = at
        return text[:start] + text[end:]


def _index_of(container: JsonNode, part: str | int) -> int:
    if isinstance(part, int):
        return part
    found: JsonItem | None = container.find(part)
    assert found is not None, "the caller has seen the path in the value"
    return container.items.index(found)


def _indent_before(text: str, at: int) -> str | None:
    """Return the white space between the beginning of a line and a place; `None` if there is more."""
    start = max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1
    between = text[start:at]
    return between if start > 0 and not between.strip(" \t") else None


def _indent_of_line(text: str, at: int) -> str:
    """Return the white space that the line of a place begins with."""
    start = text.rfind("\n", 0, at) + 1
    line = text[start:at]
    return line[: len(line) - len(line.lstrip(" \t"))]
