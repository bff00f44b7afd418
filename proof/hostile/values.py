"""Hostile values: of wrong types, deep, huge, badly encoded, and at the edges of numbers and times."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

FORGED: Final = "forged-by-the-attacker"
"""In the payload of everything that is forged: a node that acts on it shows what it did."""

ATTACKER: Final = "evil"
"""The beginning of all names that the attacker makes up. Nothing else has such names."""

MAX_BODY: Final = 2 * 2**20
"""The largest body that the service reads."""

_DEPTHS: Final = (60, 70, 100, 250, 260, 1_000, 10_000)
_HUGE: Final = 200_000
_NUMBERS: Final = (
    *(0, -1, 1, 2**31, 2**53, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)),
    *(253_402_300_800_000, 9_999_999_999_999, -62_135_596_800_001),
)
"""Also times: of the year 10000, and before the year 1."""

_BEYOND: Final = (b"18446744073709551616", b"-9223372036854775809", b"1e400", b"-0.0", b"1" * 5_000)
_NOT_JSON: Final = (
    *(
        b"NaN",
        b"Infinity",
        b'"\\ud800"',
        b'"\xed\xa0\x80"',
        b'"\xff\xfe"',
        b"'a'",
        b"[1,]",
        b"{,}",
        b"\xef\xbb\xbf{}",
    ),
    *(b'{"a":1', b"", b"\x00", b'"\x00"', b"nul", b"[" * 100_000, b'{"a":' * 5_000),
)
_TEXTS: Final = (
    *("", " ", "\x00", "a\x00b", "\ufeff", "\u202e", "💥" * 50, "é" * 1_000, "\x1b[2J", "../../etc/passwd"),
    *(
        "' OR 1=1 --",
        "%s%n",
        "{}",
        "[]",
        "null",
        "9" * 400,
        "-1",
        "1e309",
        "NaN",
        "*" * 200,
        "**/" * 60 + "*",
    ),
    *("role:*", "mesh:owner", "file:/**", "a" * 128, "b" * 129, "c" * 1_025, "d" * _HUGE),
    *("2026-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z", "not a time", "PT1000000000H"),
    *(
        '{"kind":',
        '{"a":{"a":',
        "[1e999]",
        '{"at_ms":9223372036854775807}',
        '"\\ud800"',
        "blake3:zz",
        "ed25519:zz",
    ),
)


def nested(depth: int, closed: bool = True) -> str:
    """Return JSON of this many levels, of arrays and objects in turn."""
    pairs = [("[", "]"), ('{"a":', "}")]
    opening = "".join(pairs[level % 2][0] for level in range(depth))
    closing = "".join(pairs[level % 2][1] for level in reversed(range(depth)))
    return f"{opening}1{closing if closed else ''}"


class HostileValues:
    """Draws hostile values from a seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def name(self) -> str:
        """Return a name of the attacker; from few, so that requests and rows meet."""
        return f"{ATTACKER}-{self._rng.randrange(20)}"

    def text(self) -> str:
        """Return a text."""
        ways: Sequence[Callable[[], str]] = (
            lambda: self._rng.choice(_TEXTS),
            lambda: nested(self._rng.choice(_DEPTHS), closed=self._rng.random() < 0.8),
            lambda: self._rng.randbytes(self._rng.randrange(40)).decode("latin-1"),
            self.name,
        )
        return self._rng.choice(ways)()

    def number(self) -> int | float:
        """Return a number that a column or JSON can hold."""
        if self._rng.random() < 0.2:
            return self._rng.choice((0.5, -0.5, 1e308, -1e308, 5e-324, 1e18, 1e19))
        return self._rng.choice(_NUMBERS)

    def document(self, depth: int = 3) -> Any:
        """Return any JSON value."""
        roll = self._rng.random()
        if depth and roll < 0.2:
            return [self.document(depth - 1) for _ in range(self._rng.randrange(4))]
        if depth and roll < 0.4:
            return {self.text()[:50]: self.document(depth - 1) for _ in range(self._rng.randrange(4))}
        return self._rng.choice((None, True, False, self.number(), self.text()))

    def mutated(self, document: Any) -> Any:
        """Return a document with one of its parts replaced, removed or added."""
        if isinstance(document, dict) and document and self._rng.random() < 0.9:
            name = self._rng.choice(list(document))
            roll = self._rng.random()
            if roll < 0.1:
                return {each: value for each, value in document.items() if each != name}
            if roll < 0.2:
                return {**document, self.name(): self.document()}
            return {**document, name: self.mutated(document[name])}
        if isinstance(document, list) and document and self._rng.random() < 0.7:
            at = self._rng.randrange(len(document))
            return [*document[:at], self.mutated(document[at]), *document[at + 1 :]]
        return self.document()

    def column(self, kind: str) -> Any:
        """Return a value of a column's own type, but not what a node would write there."""
        if kind == "TEXT":
            return self.text()
        return self._rng.choice(_NUMBERS) if kind == "INTEGER" else self.number()

    def wrong_column(self) -> Any:
        """Return what a column of any type can be made to hold."""
        roll = self._rng.random()
        if roll < 0.15:
            return None
        if roll < 0.3:
            return self._rng.randbytes(self._rng.choice((0, 1, 8, 64, 5_000)))
        return self.number() if roll < 0.6 else self.text()

    # --- bodies that are refused, whatever they are for ----------------------------------------------

    def broken_body(self) -> bytes:
        """Return a body that is not JSON, or too large."""
        if self._rng.random() < 0.1:
            return b'"' + b"x" * (MAX_BODY + self._rng.randrange(2)) + b'"'
        return self._rng.choice(_NOT_JSON)

    def doubled_body(self, document: dict[str, Any]) -> bytes:
        """Return an object that has one of its names twice."""
        name = self._rng.choice(list(document))
        again = orjson.dumps({name: document[name]})
        return orjson.dumps(document)[:-1] + b"," + again[1:]

    def body_with(self, document: dict[str, Any], text: bytes) -> bytes:
        """Return an object with this JSON in place of one of its values."""
        name = self._rng.choice(list(document))
        return orjson.dumps({**document, name: orjson.Fragment(text)})

    def deep_body(self, document: dict[str, Any]) -> bytes:
        """Return an object with a value that is nested too deeply for any endpoint."""
        return self.body_with(
            document, nested(self._rng.choice([each for each in _DEPTHS if each >= 100])).encode()
        )

    def body_beyond(self, document: dict[str, Any]) -> bytes:
        """Return an object with a number that no column can hold."""
        return self.body_with(document, self._rng.choice(_BEYOND))
