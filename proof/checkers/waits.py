"""Waits, compensations and forks: what a step waits for has come, and aborted jobs are undone once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from proof.history import Event, History
from proof.losses import Losses
from proof.verdicts import Check

_SLACK: Final = 0.5
"""The part of a wait by which the clocks of two nodes may differ at most."""


def not_early(history: History) -> Iterator[str | int]:
    """Compare how long jobs have waited with the least time, by the clock of the mesh."""
    for note in history.notes("wait.over"):
        yield 1
        waited_s, least_s = note.data["waited_ms"] / 1_000, note.data["least_s"]
        if waited_s < least_s * _SLACK:
            yield f"a wait of job {note.data['job']} was over after {waited_s:.3f} of {least_s:.3f} s"


def came(history: History) -> Iterator[str | int]:
    """Look whether the messages and results that jobs got were sent to them before, each to one job."""
    sent = {each.args["value"]: each for each in history.operations("wait.send")}
    jobs: dict[int, str] = {}
    for note in history.notes("wait.received"):
        yield 1
        value, job = note.data["value"], note.data["job"]
        if value is None:
            continue
        operation = sent.get(value)
        if operation is None or operation.args["job"] != job or operation.began > note.at:
            yield f"job {job} got the message {value}, which was not sent to it before"
        if jobs.setdefault(value, job) != job:
            yield f"the jobs {job} and {jobs[value]} got the same message: {value}"
    ended = {note.data["value"]: note.at for note in history.notes("wait.result")}
    for note in history.notes("wait.returned"):
        yield 1
        if not ended.get(note.data["value"], note.at + 1) <= note.at:
            yield f"job {note.data['job']} had the result {note.data['value']} before its job had ended"


def same_message(history: History) -> Iterator[str | int]:
    """Compare what the attempts at each job got for the same wait."""
    losses = Losses(history)
    for what in ("wait.received", "wait.returned"):
        first: dict[str, Event] = {}
        for note in history.notes(what):
            before = first.setdefault(note.data["job"], note)
            yield 1
            if before.data["value"] != note.data["value"] and not losses.lie_between(before, note):
                values = f"{before.data['value']} and {note.data['value']}"
                yield f"a wait of job {note.data['job']} ended with {values}"


# --- compensations --------------------------------------------------------------------------------


def undone(history: History) -> Iterator[str | int]:
    """Look whether all compensations of aborted jobs have run, and those of no other job."""
    losses = Losses(history)
    registered = _by_key(history, "wait.registered")
    ran = _by_key(history, "wait.undone")
    aborts = {each.args["key"]: each for each in history.operations("wait.abort") if each.may_have_happened}
    for key, notes in ran.items():
        yield 1
        if key not in aborts:
            yield f"job {notes[0].data['job']} compensates {key}, which was not aborted"
    for key, abort in aborts.items():
        if not (abort.is_ok and abort.result["moved"]) or losses.may_have_lost(abort):
            continue
        yield 1
        before = {note.data["place"] for note in registered.get(key, []) if note.at < abort.began}
        missing = before - {note.data["place"] for note in ran.get(key, [])}
        if missing:
            yield f"the compensations {sorted(missing)} of {key} did not run"


def in_reverse(history: History) -> Iterator[str | int]:
    """Look whether compensations ran from the last to the first, and none again after the next had begun."""
    losses = Losses(history)
    for key, notes in _by_key(history, "wait.undone").items():
        last = notes[0]
        for note in notes[1:]:
            yield 1
            is_again = note.data["place"] > last.data["place"]
            is_same = note.data["place"] == last.data["place"] and note.data["token"] == last.data["token"]
            if (is_again or is_same) and not _is_of_zombie(last, note) and not losses.lie_between(last, note):
                yield f"compensation {note.data['place']} of {key} ran after {last.data['place']}"
            last = note


def _is_of_zombie(last: Event, note: Event) -> bool:
    """Return whether a note is of an earlier attempt: its worker has lost the claim and does not know yet."""
    return bool(note.data["token"] < last.data["token"])


def _by_key(history: History, what: str) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = defaultdict(list)
    for note in history.notes(what):
        found[note.data["key"]].append(note)
    return found


# --- forks ----------------------------------------------------------------------------------------


def keeps_steps(history: History) -> Iterator[str | int]:
    """Compare the results that forks have with those of the jobs that were forked."""
    seen: dict[str, dict[int, Event]] = defaultdict(dict)
    for note in history.notes("step.seen"):
        seen[note.data["job"]].setdefault(note.data["place"], note)
    own = {(note.data["job"], note.data["value"]) for note in history.notes("step.effect")}
    losses = Losses(history)
    for fork in history.operations("step.fork"):
        origin = seen.get(fork.args["of"], {})
        for place, note in seen.get(fork.result.get("job", ""), {}).items():
            value, first = note.data["value"], origin.get(place)
            if first is None or losses.lie_between(first, note):
                continue
            yield 1
            if place < fork.args["place"] and value != first.data["value"]:
                yield f"step {place} of a fork of {fork.args['of']} did not keep its result"
            if place >= fork.args["place"] and (note.data["job"], value) not in own:
                yield f"step {place} of a fork of {fork.args['of']} did not run again"


WAIT_CHECKS: Final = (
    Check("wait-not-early", "no wait of a step is over before its time", not_early),
    Check("wait-came", "what a step has waited for was there before, and no other job has it", came),
    Check("wait-once", "every attempt at a job gets the same of what it waited for", same_message),
    Check("undo-all", "the compensations of aborted jobs run, and those of no other jobs", undone),
    Check("undo-order", "compensations run once, the last one first", in_reverse),
    Check("fork-keeps", "a fork keeps the steps before its place, and runs the others", keeps_steps),
)
