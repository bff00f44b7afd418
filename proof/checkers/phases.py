"""Phases: all nodes agree on the phase of a beat, and a bound job is claimed only in its part of the bar."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from proof.final_state import Row, final_rows
from proof.history import History
from proof.verdicts import Check

_PHASES: Final = ("plan", "work", "work", "review")
"""The phases of the four beats of a bar, as the policy of the workloads divides them."""


def shared_phases(history: History) -> Iterator[str | int]:
    """Compare the phases that nodes have noted, and then look at each claim of a bound job."""
    seen: dict[tuple[str, int], str] = {}
    for note in history.notes("beat.phase"):
        yield 1
        beat = note.data["policy"], note.data["epoch_ms"]
        if seen.setdefault(beat, note.data["phase"]) != note.data["phase"]:
            yield f"beat {beat[1]} is {note.data['phase']} for {note.who}, and {seen[beat]} for another node"
    beats_ms = {note.data["beat_ms"] for note in history.notes("beat.phase")}
    for beat_ms in beats_ms:  # the tempo of the workloads stays the same
        yield from _claims(history, beat_ms)


def _claims(history: History, beat_ms: int) -> Iterator[str | int]:
    """Check the claims of bound jobs, by the database's clock."""
    bound = {job["job_id"]: job for job in final_rows(history, "jobs") if job["binding"] is not None}
    last_state: dict[str, str] = {}
    for move in final_rows(history, "proof_job_moves"):
        job = bound.get(move["job_id"])
        if job is None:
            continue
        before = last_state.get(job["job_id"])
        last_state[job["job_id"]] = move["state"]
        if move["state"] == "claimed" and before == "pending":
            yield 1
            if (fault := _fault(job, move["at_ms"], beat_ms)) is not None:
                yield f"job {job['job_id'][:12]} ({job['binding']}) was claimed at {move['at_ms']}, {fault}"


def _fault(job: Row, at_ms: int, beat_ms: int) -> str | None:
    if job["binding"] == "downbeat":
        bar_ms = beat_ms * len(_PHASES)
        is_early = at_ms // bar_ms * bar_ms < job["created_ms"]
        return "in the bar in which it was scheduled" if is_early else None
    phase = _PHASES[at_ms // beat_ms % len(_PHASES)]
    return None if job["binding"] == f"during:{phase}" else f"in {phase}"


PHASE_CHECKS: Final = (
    Check(
        "shared-phases", "all nodes agree on the phase of a beat, and bound jobs start in it", shared_phases
    ),
)
