"""What a phrase reports: status claims while it runs, and its end with its cost."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.oplog.op_names import END_PHRASE
from vox_mesh.model.rhythm.claims import MAX_NOTES, ClaimState
from vox_mesh.model.rhythm.costs import PhraseEnd
from vox_mesh.rhythm.phrases.spec import WRITE_S, PhraseParts
from vox_mesh.rhythm.status_claims import StatusClaimWriter
from vox_mesh.store.script import Op, Script, Statement

PLAN: Final = "plan"
WORK: Final = "work"
REVIEW: Final = "review"

_STATES: Final = {PLAN: ClaimState.PLANNING, WORK: ClaimState.EXECUTING, REVIEW: ClaimState.REVIEW}


class StatusReporter:
    """Claims the status of the task, and collects remarks for the recorded end."""

    def __init__(self, status: StatusClaimWriter, agent: str, task: str, score: str | None = None) -> None:
        self._status = status
        self._subject = (agent, task)
        self._score = score
        self._state = ClaimState.PLANNING
        self._progress: float | None = None
        self._notes = ""
        self._has_ended = False
        self._open_waits = 0
        self._remarks: dict[str, None] = {}

    def add_remark(self, remark: str) -> None:
        """Add a remark for the recorded end; duplicates are dropped."""
        self._remarks[remark] = None

    @property
    def remarks(self) -> list[str]:
        """The remarks, in the order they were added."""
        return list(self._remarks)

    def begin_phase(self, name: str, beats_left: float, at_ms: int | None = None) -> None:
        """Claim the state of a phase that has begun, now or at a time, unless the task waits."""
        self._state = _STATES[name]
        if not self._open_waits:
            self._claim(self._state, beats_left, at_ms=at_ms)

    def progress(self, done: float, notes: str, beats_left: float) -> None:
        """Claim the progress of the task."""
        self._status.claim(
            *self._subject,
            self._state,
            beats_left=math.ceil(beats_left),
            progress=done,
            notes=notes,
            score=self._score,
        )
        self._progress, self._notes = done, notes

    def begin_wait(self, wait_for: Sequence[str], beats_left: float) -> None:
        """Claim that the task waits, for at most these beats."""
        self._claim(ClaimState.WAITING, beats_left, wait_for=wait_for)
        self._open_waits += 1

    def end_wait(self, beats_left: float) -> None:
        """Claim that the wait is over."""
        self._open_waits -= 1
        self._claim(self._state, beats_left)

    def report_overrun(self, phase: str) -> None:
        """Claim that a phase has used all its beats."""
        self.add_remark(f"{phase} overran")
        self._claim(self._state, 0.0, overran=True)

    def begin_fallback(self, name: str, beats_left: float) -> None:
        """Claim that a fallback runs."""
        self._claim(ClaimState.REVIEW, beats_left, notes=f"falls back on {name}")

    def finish(self, state: ClaimState, note: str, ended_ms: int) -> None:
        """Claim the final state, in the beat of the recorded end. Later claims of the phrase are ignored."""
        self._claim(state, notes=note or self._notes, at_ms=ended_ms)
        self._has_ended = True

    def _claim(
        self,
        state: ClaimState,
        beats_left: float | None = None,
        *,
        wait_for: Sequence[str] = (),
        notes: str | None = None,
        overran: bool = False,
        at_ms: int | None = None,
    ) -> None:
        if self._has_ended:
            return
        self._status.claim(
            *self._subject,
            state,
            wait_for=wait_for,
            beats_left=None if beats_left is None else math.ceil(beats_left),
            progress=self._progress,
            notes=self._notes if notes is None else notes,
            overran=overran,
            at_ms=at_ms,
            score=self._score,
        )


# --- the end -------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)


async def write_end(parts: PhraseParts, end: PhraseEnd, *statements: Statement) -> float:
    """Write the end and the statements that follow from it in one spoolable script; return its cost.

    A failure to write is logged and does not replace the phrase's own outcome.
    """
    cost = parts.budgets.cost_of(end)
    try:
        script = Script(
            parts.budgets.record(end), *statements, op=end_op(end, cost), key=end.phrase_id, appendable=True
        )
        await parts.context.store.write(script, timeout=WRITE_S)
    except Exception as error:  # no failure to write may hide the phrase's outcome
        _log.error(
            "phrase end not recorded: phrase_id=%s outcome=%s error=%s", end.phrase_id, end.outcome, error
        )
    return cost


def end_op(end: PhraseEnd, cost: float) -> Op:
    """Return the op that records the end of a phrase."""
    job = {"job": end.job_id} if end.job_id else {}
    return Op(END_PHRASE, canonical({**end_document(end, cost), "task": end.task_id, **job}))


def end_document(end: PhraseEnd, cost: float) -> dict[str, Any]:
    """Return the end of a phrase for the log: for an op of its own, or for the one that ends its job."""
    document = {
        "phrase": end.phrase_id,
        "agent": end.agent_id,
        "attempt": end.attempt,
        "outcome": end.outcome.value,
        "beats": _in_json(end.beats),
        "waited": _in_json(end.waited),
        "overruns": end.overruns,
        "cost": int(cost) if cost.is_integer() else cost,
        "began_ms": end.began_ms,
        "ended_ms": end.ended_ms,
        "note": end.note,
    }
    if end.account:
        document["account"] = end.account
    return document


def _in_json(beats: Mapping[str, float]) -> dict[str, float]:
    """Return whole numbers as integers, as canonical JSON has them: these are encoded faster."""
    return {name: int(count) if count == int(count) else count for name, count in beats.items()}


def describe_error(error: BaseException) -> str:
    """Return a one-line description of an error."""
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "cancelled"
    return " ".join(f"{type(error).__name__}: {error}".split())


def join_remarks(remarks: list[str]) -> str:
    """Join the remarks, truncated to the maximum length of notes."""
    text = "; ".join(remarks).encode(errors="replace").decode().replace("\0", "\ufffd")
    return text if len(text) <= MAX_NOTES else text[: MAX_NOTES - 1] + "…"
