"""The end of a phrase, as it is written down: in the log, and with what it cost."""

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


async def write_end(parts: PhraseParts, end: PhraseEnd, *beside: Statement) -> float:
    """Write it down, with what follows from it, in one script that may wait for the database; its cost.

    That it can't be written hides nothing of what the phrase ended in.
    """
    cost = parts.budgets.cost_of(end)
    told = {
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
        op = Op(END_PHRASE, canonical(told))
        script = Script(parts.budgets.record(end), *beside, op=op, key=end.phrase_id, appendable=True)
        await parts.ground.store.write(script, timeout=WRITE_S)
    except Exception as error:  # nor does anything else that is wrong with writing it
        _log.error("the end of phrase %s (%s) was not recorded: %s", end.phrase_id, end.outcome, error)
    return cost


def why(error: BaseException) -> str:
    """Why it failed, in few words."""
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "cancelled"
    return " ".join(f"{type(error).__name__}: {error}".split())


def note_of(remarks: list[str]) -> str:
    """All that is to be said of it, as far as it fits."""
    text = "; ".join(remarks).encode(errors="replace").decode().replace("\0", "\ufffd")
    return text if len(text) <= MAX_NOTES else text[: MAX_NOTES - 1] + "…"
