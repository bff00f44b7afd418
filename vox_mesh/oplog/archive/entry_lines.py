"""Lines of entries: each entry of the log has exactly one, so that nothing can be hidden in its spelling."""

from __future__ import annotations

from collections.abc import Collection
from operator import itemgetter
from typing import Any, Final

import orjson

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical, is_canonical, parse
from vox_mesh.model.base.json_text import is_deeper
from vox_mesh.model.oplog.chain import LogEntry

_JSON_COLUMNS: Final = ("causal_deps", "payload")
_TEXT_SUFFIX: Final = "_text"  # of a column that should be canonical JSON and is not
_TEXT_OF: Final = {name: name + _TEXT_SUFFIX for name in _JSON_COLUMNS}
_ADDED_COLUMNS: Final = ("agent", "grant")  # only in entries of version 2
_columns: Final = itemgetter(*LogEntry._fields[: -len(_ADDED_COLUMNS)])


def record_of(entry: LogEntry, *, max_depth: int | None = None) -> dict[str, Any]:
    """Return an entry for a JSON encoder, by column; payload and dependencies are values, not text.

    What is not canonical JSON, or has more than `max_depth` levels, stays text.
    """
    values: tuple[Any, ...] = entry
    if any(isinstance(value, bytes) for value in values):  # no valid entry holds any
        entry = LogEntry._make(value.hex() if isinstance(value, bytes) else value for value in values)
    return _record(entry, {name for name in _JSON_COLUMNS if not _is_value(getattr(entry, name), max_depth)})


def _is_value(text: str, max_depth: int | None) -> bool:
    if not is_canonical(text):
        return False
    is_flat = max_depth is None or text.count("[") + text.count("{") <= max_depth
    return is_flat or not is_deeper(orjson.loads(text), max_depth or 0)


def _record(entry: LogEntry, unfit: Collection[str]) -> dict[str, Any]:
    """Return the record; the columns in `unfit` are not canonical JSON and stay text."""
    record: dict[str, Any] = entry._asdict()
    for name in _JSON_COLUMNS:
        record[name] = orjson.Fragment(record[name])
    if entry.agent is None and entry.grant is None:
        for name in _ADDED_COLUMNS:
            del record[name]
    if entry.accepted in (0, 1):
        record["accepted"] = bool(entry.accepted)
    if unfit:
        texts = {_TEXT_OF[name]: getattr(entry, name) for name in unfit}
        record = {name: value for name, value in record.items() if name not in unfit}
        record |= dict(sorted(texts.items()))
    return record


def json_line(record: dict[str, Any]) -> bytes:
    """Return a record as a line of JSON."""
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def read_entry(line: bytes) -> LogEntry:
    """Return the entry in a line. Raises `BadValue` unless it is the line that `record_of` leads to."""
    try:
        record = orjson.loads(line)
        unfit = [name for name in _JSON_COLUMNS if _TEXT_OF[name] in record]
        for name in _JSON_COLUMNS:
            record[name] = record[_TEXT_OF[name]] if name in unfit else _canonical(record[name])
        if isinstance(record["accepted"], bool):
            record["accepted"] = int(record["accepted"])
        entry = LogEntry._make((*_columns(record), *map(record.get, _ADDED_COLUMNS)))
        is_ours = isinstance(record["node_id"], str) and json_line(_record(entry, unfit)) == line
        if unfit:
            is_ours = is_ours and not any(is_canonical(record[name]) for name in unfit)
    except orjson.JSONDecodeError as error:
        raise BadValue(f"it is not JSON: {error}") from None
    except (BadValue, KeyError, TypeError, AttributeError):
        is_ours = False
    if not is_ours:
        raise BadValue("it is not written as an export writes an entry")
    return entry


def _canonical(value: Any) -> str:
    """Return the text that a column's value was read from."""
    try:
        return canonical(value, max_depth=None) if value else orjson.dumps(value).decode()
    except BadValue:  # numbers that are exact as doubles only
        return canonical(parse(orjson.dumps(value)), max_depth=None)
