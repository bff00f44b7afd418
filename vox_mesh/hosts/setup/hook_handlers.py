"""Handlers of hooks in a host's configuration: merge ours in, find them, and take them out again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from vox_mesh.hosts.setup.documents.json_document import JsonDocument, Path
from vox_mesh.hosts.setup.hook_plan import OPERATION, SCRIPT

_HOOKS: Final = "hooks"


class HookHandler(NamedTuple):
    """A handler of an event, and for which tools it is called."""

    event: str
    body: Mapping[str, Any]
    matcher: str | None = None


class InstalledHook(NamedTuple):
    """A handler of ours in a document, and what to remove for it."""

    path: Path
    handler: HookHandler


@dataclass(frozen=True)
class HandlerLayout:
    """How a host arranges handlers."""

    is_grouped: bool = True
    """Whether an event has groups, each with a matcher and its handlers, or the handlers themselves."""

    made_with: Mapping[str, Any] = field(default_factory=dict)
    """Members that a new document needs besides the hooks."""

    def find(self, document: JsonDocument) -> list[InstalledHook]:
        """Return our handlers in a document."""
        hooks = document.value.get(_HOOKS)
        return [
            found
            for event, entries in (hooks.items() if isinstance(hooks, dict) else ())
            for number, entry in enumerate(entries if isinstance(entries, list) else ())
            for found in self._find_in(event, (_HOOKS, event, number), entry)
        ]

    def _find_in(self, event: str, path: Path, entry: Any) -> Iterator[InstalledHook]:
        if not isinstance(entry, dict):
            return
        if not self.is_grouped:
            if is_ours(entry):
                body = {name: value for name, value in entry.items() if name != "matcher"}
                yield InstalledHook(path, HookHandler(event, body, entry.get("matcher")))
            return
        handlers = entry.get(_HOOKS)
        handlers = handlers if isinstance(handlers, list) else []
        is_whole = all(map(is_ours, handlers))
        for number, body in enumerate(handlers):
            if is_ours(body):
                where = path if is_whole else (*path, _HOOKS, number)
                yield InstalledHook(where, HookHandler(event, body, entry.get("matcher")))

    def merge(self, document: JsonDocument | None, wanted: Sequence[HookHandler]) -> JsonDocument:
        """Return the document with these handlers and no other ones of ours; `None` is a new document."""
        if document is not None:
            if _are_same([found.handler for found in self.find(document)], wanted):
                return document
            document = self.remove(document)
        if document is None:
            hooks: dict[str, list[Any]] = {}
            for handler in wanted:
                hooks.setdefault(handler.event, []).append(self._entry(handler))
            return JsonDocument.made_of({_HOOKS: hooks, **self.made_with})
        for handler in wanted:
            document = document.with_element((_HOOKS, handler.event), self._entry(handler))
        return document

    def remove(self, document: JsonDocument) -> JsonDocument | None:
        """Return the document without our handlers, or `None` if it was made for them."""
        left: JsonDocument | None = document
        while left is not None and (found := self.find(left)):
            left = left.without(found[-1].path, self.made_with)
        return left

    def _entry(self, handler: HookHandler) -> dict[str, Any]:
        matcher = {} if handler.matcher is None else {"matcher": handler.matcher}
        if self.is_grouped:
            return {**matcher, _HOOKS: [dict(handler.body)]}
        return {**handler.body, **matcher}


def is_ours(value: Any) -> bool:
    """Return whether a handler calls our script or operation."""
    if isinstance(value, str):
        return SCRIPT in value or OPERATION in value
    if isinstance(value, dict):
        return any(
            is_ours(each) for name, each in value.items() if name in ("args", "bash", "command", "url")
        )
    return isinstance(value, list) and any(is_ours(each) for each in value if isinstance(each, str))


def _are_same(found: Sequence[HookHandler], wanted: Sequence[HookHandler]) -> bool:
    """Return whether two lists have the same handlers, in any order."""
    left = list(found)
    for handler in wanted:
        if handler not in left:
            return False
        left.remove(handler)
    return not left
