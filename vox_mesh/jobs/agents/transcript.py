"""The transcript of an attempt: what was said between worker and agent, as JSON lines, bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import orjson

NAME: Final = "transcript.jsonl"
TYPE: Final = "application/jsonl"
MAX_BYTES: Final = 16 * 2**20

_MAX_LINE: Final = 64 * 1024
_MAX_STRING: Final = 8 * 1024
_MAX_ITEMS: Final = 256
_MAX_DEPTH: Final = 16
_NOTE_BYTES: Final = 256


class LineSink(Protocol):
    """Where the lines go."""

    def write(self, piece: bytes, /) -> object:
        """Write the next piece."""


class Transcript:
    """Writes one line for each message. Text in it is data of an agent."""

    def __init__(
        self, sink: LineSink, now_ms: Callable[[], int], redact: Callable[[bytes], bytes] = bytes
    ) -> None:
        self._sink = sink
        self._now_ms = now_ms
        self._redact = redact
        self._left = MAX_BYTES - _NOTE_BYTES
        self.lines = 0
        """The number of lines written."""

    def add(self, author: str, **entry: Any) -> None:
        """Add an entry by `agent`, `worker` or `client`; long texts in it are cut."""
        if self._left <= 0:
            return
        line = self._line({"at_ms": self._now_ms(), "from": author, **entry})
        if len(line) > _MAX_LINE:
            line = self._line({"at_ms": self._now_ms(), "from": author, "omitted_bytes": len(line)})
        line = self._redact(line)
        self._left -= len(line)
        if self._left <= 0:
            line = self._line(
                {"at_ms": self._now_ms(), "from": "worker", "note": "the transcript is cut here"}
            )
        self._sink.write(line)
        self.lines += 1

    def _line(self, entry: Mapping[str, Any]) -> bytes:
        return orjson.dumps(_cut(entry), option=orjson.OPT_APPEND_NEWLINE)


def _cut(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Return a JSON value with its long texts, long lists and deep parts cut."""
    if isinstance(value, str):
        readable = value.encode(errors="replace").decode()
        if len(readable) <= _MAX_STRING:
            return readable
        return f"{readable[:_MAX_STRING]}… ({len(readable) - _MAX_STRING} more characters)"
    if isinstance(value, Mapping | list) and depth == 0:
        return "… (too deep)"
    if isinstance(value, Mapping):
        items = list(value.items())[:_MAX_ITEMS]
        return {str(name)[:_MAX_STRING]: _cut(each, depth - 1) for name, each in items}
    if isinstance(value, list):
        return [_cut(each, depth - 1) for each in value[:_MAX_ITEMS]]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        return str(value)[:_MAX_STRING]
    return value
