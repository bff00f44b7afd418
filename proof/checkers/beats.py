"""Beats: each node reports each downbeat once, and each bar has a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from proof.final_state import Row, final_rows
from proof.history import Event, History
from proof.losses import Losses, lost_ms
from proof.verdicts import Check

_MOST_BARS: Final = 1_000
"""A clock that jumps by more bars than this starts over."""


_CLOCK_FAULTS: Final = ("clock", "clock-step")
"""Faults that set the wall clock of one node."""


def downbeats_once(history: History) -> Iterator[str | int]:
    """Check the beats of each incarnation, and then the bar reports."""
    incarnations: dict[tuple[str, int], list[Event]] = {}
    for event in history.notes("beat.down"):
        incarnations.setdefault((event.who, event.incarnation), []).append(event)
    steps = _own_clock_steps(history)
    for (who, incarnation), beats in incarnations.items():
        yield len(beats)
        for fault in _beat_faults(beats, steps.get(who, ())):
            yield f"{who}.{incarnation}: {fault}"
    yield from _reports(history)


def _own_clock_steps(history: History) -> dict[str, list[float]]:
    """Return when the wall clock of each node was set."""
    steps: dict[str, list[float]] = {}
    for note in (*history.notes("fault.began"), *history.notes("fault.ended")):
        if note.data["kind"] in _CLOCK_FAULTS:
            steps.setdefault(note.data["player"], []).append(note.at)
    return steps


def _beat_faults(beats: list[Event], own_clock_steps: Iterable[float]) -> Iterator[str]:
    for before, now in pairwise(beats):
        epoch_ms, next_ms, bar_ms = before.data["epoch_ms"], now.data["epoch_ms"], before.data["bar_ms"]
        if next_ms <= epoch_ms:
            was_first_set = now.data["is_set"] and not before.data["is_set"]
            # Before it has heard the database's time, a node uses its own wall clock.
            by_own_clock = not now.data["is_set"] and any(before.at <= at <= now.at for at in own_clock_steps)
            if not (was_first_set or by_own_clock) and _set_back_ms(before, now) < bar_ms:
                yield f"downbeat {next_ms} was reported at {now.at:.3f}, after {epoch_ms}"
        elif now.data["policy"] == before.data["policy"]:
            bars, rest = divmod(next_ms - epoch_ms, bar_ms)
            if rest or 1 < bars <= _MOST_BARS:
                yield f"after downbeat {epoch_ms} came {next_ms} at {now.at:.3f}, and a bar is {bar_ms} ms"


def _set_back_ms(before: Event, now: Event) -> float:
    """Return by how much the node's clock was set back meanwhile."""
    shown_ms: int = now.data["now_ms"] - before.data["now_ms"]
    return (now.at - before.at) * 1_000 - shown_ms


def _reports(history: History) -> Iterator[str | int]:
    """Check that no bar lies between two reports; a report of many bars may be split later.

    Bars before the first incarnation need no report: only a clock that is off refers to them.
    """
    until_ms: int | None = None
    first_ms = _began_ms(history)
    lost = list(lost_ms(history, Losses(history)))
    for row in final_rows(history, "bar_reports"):
        if row["revision"] > 1 or row["window_ms"] < first_ms:
            continue
        yield 1
        if until_ms is not None and row["window_ms"] > until_ms and not _is_lost(lost, until_ms, row):
            yield f"the bars from {until_ms} to {row['window_ms']} have no report"
        until_ms = max(until_ms or 0, row["until_ms"])


def _is_lost(lost: list[tuple[float, float]], until_ms: int, row: Row) -> bool:
    """Return whether a report in between may have been lost with the store."""
    return any(since < row["until_ms"] and until_ms < back for since, back in lost)


def _began_ms(history: History) -> float:
    """Return when the first incarnation began, by the database's clock."""
    began = min((note.at for note in history.notes("life.began")), default=0.0)
    beats = (note for note in history.notes("beat.down") if note.data["is_set"])
    return min((note.data["now_ms"] - (note.at - began) * 1_000 for note in beats), default=0.0)


BEAT_CHECKS: Final = (
    Check("downbeats-once", "a node reports each downbeat once, and each bar has a report", downbeats_once),
)
