"""YAML and JSON as plain values, with the line of every field.

The words of YAML 1.2's core schema have a meaning (null, true, false, numbers); anything else is text: also
`yes`, `on`, `1:30` and dates. What has no equivalent in JSON (tags, anchors, merged maps, NaN) is a fault.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson
import yaml

from vox_mesh.model.documents.documents import MAX_BYTES, Document, DocumentFault, Lines, is_unicode

MAX_DEPTH: Final = 128

_EXACT_LIMIT: Final = 2**53
_WORDS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
# Careless JSON writers use the last two.
_NOT_FINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)|-?Infinity|NaN")
_MERGE: Final = "<<"

# Characters that YAML does not allow, or treats as line breaks where JSON does not.
_FOREIGN: Final = "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
_FOREIGN_IN_YAML: Final = re.compile(_FOREIGN)
_FOREIGN_IN_JSON: Final = re.compile(
    rf"\\u(d[89ab][0-9a-f]{{2}})\\u(d[c-f][0-9a-f]{{2}})|\\.|\t|{_FOREIGN}", re.IGNORECASE
)

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_documents(text: str | bytes, name: str) -> list[Document]:
    """Return the documents of a text. Reading stops at the first syntax error, a fault of the last one."""
    return list(_documents(text, name))


def _documents(text: str | bytes, name: str) -> Iterator[Document]:
    last_line = 1
    try:
        readable = _prepare(text)
        last_line = len(readable.rstrip().splitlines())
        events = yaml.parse(readable, Loader=_Loader)
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                yield _YamlParser(name, events).document(_line(event))
    except _Unreadable as error:
        yield _unreadable_document(name, error.line, str(error))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        what = error.problem or error.context
        yield _unreadable_document(name, min(line, last_line), f"this is no YAML and no JSON: {what}")
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # such as an escape of no character
        yield _unreadable_document(name, 1, f"this is no YAML and no JSON: {error}")


class _Unreadable(Exception):
    def __init__(self, line: int, wrong: str) -> None:
        super().__init__(wrong)
        self.line = line


def _unreadable_document(name: str, line: int, wrong: str) -> Document:
    return Document(name, None, (DocumentFault(name, line, (), wrong),), Lines(line))


def _prepare(text: str | bytes) -> str:
    """Return the text in a form that YAML reads with the same meaning."""
    size = len(text) if isinstance(text, bytes) or text.isascii() else len(text.encode(errors="replace"))
    if size > MAX_BYTES:
        raise _Unreadable(1, f"it has {size} bytes; at most {MAX_BYTES} are read")
    if isinstance(text, bytes):
        text = _decode(text)
    text = text.removeprefix("\ufeff")
    if text.lstrip()[:1] in ("{", "[") and _is_json(text):
        return _FOREIGN_IN_JSON.sub(_as_yaml, text)
    if foreign := _FOREIGN_IN_YAML.search(text):
        number = ord(foreign[0])
        line = 1 + text.count("\n", 0, foreign.start())
        raise _Unreadable(line, f'the character {number:#x} is not allowed; write "\\u{number:04x}"')
    return text


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _Unreadable(1 + data.count(b"\n", 0, error.start), "this is not UTF-8") from None


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _as_yaml(found: re.Match[str]) -> str:
    """Return the YAML equivalent of a match, where JSON allows tabs and special characters."""
    high, low = found.groups()
    if high:
        return chr(0x10000 + ((int(high, 16) & 0x3FF) << 10 | int(low, 16) & 0x3FF))
    if found[0] == "\t":
        return " "
    return found[0] if found[0][0] == "\\" else f"\\u{ord(found[0]):04x}"


class _YamlParser:
    """Builds one document from the parser's events."""

    def __init__(self, name: str, events: Iterator[Any]) -> None:
        self._name = name
        self._events = events
        self._path: list[str | int] = []
        self._faults: list[DocumentFault] = []

    def document(self, line: int) -> Document:
        value, lines = self._node(next(self._events))
        if value is None:
            lines = Lines(line)  # an empty value begins where the next token begins, if any
        return Document(self._name, value, tuple(self._faults), lines)

    def _fault(self, event: Any, wrong: str) -> None:
        self._faults.append(DocumentFault(self._name, _line(event), tuple(self._path), wrong))

    def _node(self, event: Any) -> tuple[Any, Lines]:
        if isinstance(event, yaml.AliasEvent):
            self._fault(event, f"*{event.anchor} is an alias; write the value again")
            return None, Lines(_line(event))
        if event.anchor is not None:
            self._fault(event, f"&{event.anchor} is an anchor, which is not allowed")
        if event.tag is not None:
            self._fault(event, f"{event.tag} is a tag, which is not allowed")
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event), Lines(_line(event))
        if len(self._path) >= MAX_DEPTH:
            raise _Unreadable(_line(event), f"it is nested more than {MAX_DEPTH} deep")
        if isinstance(event, yaml.SequenceStartEvent):
            return self._array(event)
        return self._map(event)

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        if not event.implicit[0]:  # quoted, or a block scalar
            if not is_unicode(text):
                self._fault(event, "has half a surrogate pair, which is no character")
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _NOT_FINITE.fullmatch(text):
            self._fault(event, f"{text} is no number of JSON; put it in quotes if it is text")
        elif _INTEGER.fullmatch(text):
            return self._number(event, lambda: int(text, 0 if text[:2] in ("0o", "0x") else 10))
        elif _FLOAT.fullmatch(text):
            return self._number(event, lambda: float(text))
        return text

    def _number(self, event: Any, read: Callable[[], float]) -> float:
        number = read() if len(event.value) <= 400 else math.inf
        if math.isinf(number) or (isinstance(number, int) and not -_EXACT_LIMIT < number < _EXACT_LIMIT):
            self._fault(event, "the number is too large to be exact (2^53 - 1); put it in quotes")
            return 0
        return number

    def _array(self, start: Any) -> tuple[list[Any], Lines]:
        values: list[Any] = []
        inner: dict[str | int, Lines] = {}
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            self._path.append(len(values))
            value, inner[len(values)] = self._node(event)
            values.append(value)
            self._path.pop()
        return values, Lines(_line(start), inner)

    def _map(self, start: Any) -> tuple[dict[str, Any], Lines]:
        values: dict[str, Any] = {}
        inner: dict[str | int, Lines] = {}
        while not isinstance(key := next(self._events), yaml.MappingEndEvent):
            name = self._key(key)
            self._path.append(name)
            if name in values:
                self._fault(key, f"is written twice, first on line {inner[name].line}")
            value, lines = self._node(next(self._events))
            self._path.pop()
            if name not in values:
                values[name], inner[name] = value, lines._replace(line=_line(key))
        return values, Lines(_line(start), inner)

    def _key(self, event: Any) -> str:
        if isinstance(event, yaml.CollectionStartEvent):
            self._path.append("?")  # it counts for the depth
            self._fault(event, "a name must be text, not an array or a map")
            self._node(event)
            self._path.pop()
            return "?"
        name, _ = self._node(event)
        if isinstance(name, str):
            if name == _MERGE and event.implicit[0]:
                self._path.append(name)
                self._fault(event, "would merge maps, which is not allowed; write the fields out")
                self._path.pop()
            return name
        written: str = getattr(event, "value", "")
        self._fault(event, f"the name {written or 'null'} is no text; put it in quotes")
        return written


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
