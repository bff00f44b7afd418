"""Durable steps: every attempt gets the same results, in order, and a late worker stores none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from proof.history import Event, History
from proof.losses import Losses
from proof.verdicts import Check


def same_results(history: History) -> Iterator[str | int]:
    """Compare what the attempts at each job got of each step."""
    losses = Losses(history)
    seen: dict[tuple[str, int], list[Event]] = defaultdict(list)
    for note in history.notes("step.seen"):
        seen[note.data["job"], note.data["place"]].append(note)
    for (job, place), notes in seen.items():
        first = notes[0]
        yield 1
        for other in notes[1:]:
            if other.data["value"] != first.data["value"] and not losses.lie_between(first, other):
                values = f"{first.data['value']} and {other.data['value']}"
                yield f"step {place} of job {job} had the results {values}"


def in_order(history: History) -> Iterator[str | int]:
    """Look whether each attempt got its steps in the order of the handler."""
    last: dict[tuple[str, str, int], int] = {}
    for note in history.notes("step.seen"):
        attempt = (note.who, note.data["job"], note.data["token"])
        yield 1
        if note.data["place"] != last.get(attempt, 0) + 1:
            yield f"an attempt at job {note.data['job']} got step {note.data['place']} out of order"
        last[attempt] = note.data["place"]


def no_late_result(history: History) -> Iterator[str | int]:
    """Look for results that an attempt stored whose effect came after the begin of a later attempt."""
    losses = Losses(history)
    began: dict[str, list[Event]] = defaultdict(list)
    for note in history.notes("step.began"):
        began[note.data["job"]].append(note)
    stored = {(note.who, note.data["value"]) for note in history.notes("step.seen")}
    for effect in history.notes("step.effect"):
        if (effect.who, effect.data["value"]) not in stored:
            continue
        yield 1
        for later in began[effect.data["job"]]:
            is_late = later.data["token"] > effect.data["token"] and later.at < effect.at
            if is_late and not losses.lie_between(later, effect):
                yield f"{effect.who} stored step {effect.data['place']} of job {effect.data['job']} too late"


STEP_CHECKS: Final = (
    Check("step-once", "every attempt at a job gets the same result of a step", same_results),
    Check("step-order", "an attempt gets its steps in the order of the handler", in_order),
    Check("no-zombie-step", "a worker that has lost its claim stores no step", no_late_result),
)
