"""What runs have kept, as lines of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import orjson

from bench.figures import Figure, Found, LeftOut
from bench.lines.registry import LINES


@dataclass(frozen=True, slots=True)
class Record:
    """What was found, of which line and plane, and in which run."""

    plane: str
    line: str
    found: Found
    run: Mapping[str, Any]
    """When it began (`at`), on which `machine`, and whether it was but a short look (`quick`)."""

    def as_json(self) -> bytes:
        """A line."""
        return orjson.dumps({"plane": self.plane, "line": self.line, **self.found.as_json(), **self.run})

    @classmethod
    def of_json(cls, line: bytes) -> Record:
        """What `as_json` has made."""
        document = orjson.loads(line)
        found: Found = LeftOut.of_json(document) if "left_out" in document else Figure.of_json(document)
        run = {name: document[name] for name in ("at", "quick", "machine")}
        return cls(document["plane"], document["line"], found, run)


def written(records: Sequence[Record]) -> bytes:
    """As they are kept."""
    return b"".join(record.as_json() + b"\n" for record in records)


def read(data: bytes) -> list[Record]:
    """What `written` has made."""
    return [Record.of_json(line) for line in data.splitlines()]


def merged(runs: Sequence[Sequence[Record]]) -> list[Record]:
    """Those of all runs in the usual order; of a line that several have, those of the last."""
    latest: dict[str, list[Record]] = {}
    for run in runs:
        latest |= {name: list(records) for name, records in groupby(run, key=lambda record: record.line)}
    return [record for line in LINES for record in latest.get(line.name, ())]
