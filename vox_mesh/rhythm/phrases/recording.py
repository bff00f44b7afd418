"""Recording the end of a phrase, in the op log and with its cost."""

from __future__ import annotations

import asyncio
import logging

from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.rhythm.claims import MAX_NOTES
from vox_mesh.model.rhythm.ends import PhraseEnd
from vox_mesh.oplog.op_kinds import END_PHRASE
from vox_mesh.rhythm.phrases.spec import WRITE_S, PhraseParts
from vox_mesh.store.script import Op, Script, Statement

_log = logging.getLogger(__name__)


async def write_end(parts: PhraseParts, end: PhraseEnd, *statements: Statement) -> float:
    """Write the end and the statements that follow from it in one spoolable script; return its cost.

    A failure to write is logged and does not replace the phrase's own outcome.
    """
    cost = parts.budgets.cost_of(end)
    payload = {
        "phrase": end.phrase_id,
        "agent": end.agent_id,
        "task": end.task_id,
        "attempt": end.attempt,
        "outcome": end.outcome.value,
        "beats": dict(end.beats),
        "waited": dict(end.waited),
        "overruns": end.overruns,
        "cost": cost,
        "began_ms": end.began_ms,
        "ended_ms": end.ended_ms,
        "note": end.note,
        **({"job": end.job_id} if end.job_id else {}),
        **({"account": end.account} if end.account else {}),
    }
    try:
        op = Op(END_PHRASE, canonical(payload))
        script = Script(parts.budgets.record(end), *statements, op=op, key=end.phrase_id, appendable=True)
        await parts.context.store.write(script, timeout=WRITE_S)
    except Exception as error:  # no failure to write may hide the phrase's outcome
        _log.error(
            "phrase end not recorded: phrase_id=%s outcome=%s error=%s", end.phrase_id, end.outcome, error
        )
    return cost


def describe_error(error: BaseException) -> str:
    """Return a one-line description of an error."""
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "cancelled"
    return " ".join(f"{type(error).__name__}: {error}".split())


def join_remarks(remarks: list[str]) -> str:
    """Join the remarks, truncated to the maximum length of notes."""
    text = "; ".join(remarks).encode(errors="replace").decode().replace("\0", "\ufffd")
    return text if len(text) <= MAX_NOTES else text[: MAX_NOTES - 1] + "…"
