"""What fuzzing clients must not achieve, and what a storm of writers must: from responses and rows alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from proof.history import History
from proof.losses import Losses
from proof.verdicts import Check

_LONGEST_S: Final = 15.0
"""The maximum duration of a storm, including its last writes."""


def _no_5xx(history: History) -> Iterator[str | int]:
    for call in history.notes("stranger.call"):
        yield 1
        if call.data["status"] >= 500:
            yield f"{call.data['player']} answered {call.data['status']} to {call.data['call']!r}"


def _refused(history: History) -> Iterator[str | int]:
    for call in history.notes("stranger.call"):
        yield 1
        if not call.data["refused"] and call.data["status"] < 500:
            yield f"{call.data['player']} obeyed {call.data['call']!r}: {call.data['status']}"
    for table in history.notes("final.strangers"):
        yield 1
        if table.data["rows"]:
            yield f"{table.data['rows']} rows of {table.data['table']} are by a stranger"


def _storms(history: History) -> Iterator[str | int]:
    """Check the storms that completed: a process that died did not report its acknowledged writes."""
    found = {note.data["name"]: note.data["n"] for note in history.notes("final.storm")}
    losses = Losses(history)
    for storm in history.notes("storm.wrote"):
        yield 1
        name, done, unknown = (storm.data[each] for each in ("name", "done", "unknown"))
        n = found.get(name, 0)
        least = 0 if losses.touches(storm.at - _LONGEST_S, storm.at) else done
        if not least <= n <= done + unknown:
            yield f"{name} counted {n}, of {done} writes that were done and {unknown} of unknown fate"


FUZZER_CHECKS: Final = (
    Check("no-5xx", "invalid requests are refused, and never make the service fail", _no_5xx),
    Check("refused-changes-nothing", "no refused request leaves a trace in the database", _refused),
    Check("storms-counted", "each of many concurrent writes takes effect once, or not at all", _storms),
)
