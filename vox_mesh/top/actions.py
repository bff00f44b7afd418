"""What can be done to the row that is selected, through the mesh as the commands do it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from vox_mesh.errors import IllegalTransition
from vox_mesh.model.jobs.records import ENDS, JobState
from vox_mesh.occ.conflicts import Take
from vox_mesh.runtime.services import MeshServices
from vox_mesh.top.panels import text_of
from vox_mesh.views.overview import ConflictLine, JobLine, LockLine, MessageLine, WaiterLine

_SHORT_ID: Final = 12
_BY_HAND: Final = "aborted by hand"


class Asks(Enum):
    """What must be answered before something is done."""

    CONFIRMATION = "confirmation"
    REASON = "reason"
    SIDE = "side"


@dataclass(frozen=True)
class RowAction:
    """Something that a key does. `refusal` says why it can't be done to an item; the answer goes to `do`."""

    key: str
    word: str
    asks: Asks
    question: Callable[[Any], str]
    refusal: Callable[[Any], str | None]
    do: Callable[[MeshServices, Any, str], Awaitable[str]]


# --- jobs ----------------------------------------------------------------------------------------


def _named(job: JobLine) -> str:
    return f"job {job.job_id[:_SHORT_ID]} ({text_of(job.kind)})"


def _abort_refusal(job: JobLine) -> str | None:
    return f"{_named(job)} has ended: it {_ending(job)}" if job.state in ENDS else None


def _ending(job: JobLine) -> str:
    return "was aborted" if job.state == JobState.ABORTED else str(job.state)


async def _abort(mesh: MeshServices, job: JobLine, _: str) -> str:
    try:
        await mesh.jobs.abort(job.job_id, reason=_BY_HAND)
    except IllegalTransition:
        return f"{_named(job)} had ended before"
    return f"{_named(job)} is aborted"


def _retry_refusal(job: JobLine) -> str | None:
    return None if job.state in ENDS else f"{_named(job)} is {job.state}: only one that has ended is retried"


async def _retry(mesh: MeshServices, job: JobLine, _: str) -> str:
    again = await mesh.jobs.retry(job.job_id)
    when = "is retried" if again.is_new else "was retried before"
    return f"{_named(job)} {when} as {again.job_id[:_SHORT_ID]}"


# --- locks ---------------------------------------------------------------------------------------


def _break_question(lock: LockLine) -> str:
    holder = f"{text_of(lock.holder_agent)} on {text_of(lock.holder_node)}"
    return f"Break the lock {text_of(lock.lock_key)} of {holder}?"


def _break_refusal(lock: LockLine | WaiterLine) -> str | None:
    return f"nobody holds {text_of(lock.lock_key)} itself" if isinstance(lock, WaiterLine) else None


async def _break(mesh: MeshServices, lock: LockLine, reason: str) -> str:
    _, holders = await mesh.locks.break_lock(lock.lock_key, reason)
    who = ", ".join(text_of(holder.holder_agent) for holder in holders)
    return f"{text_of(lock.lock_key)} is broken: {who} held it"


# --- messages ------------------------------------------------------------------------------------


def _letter(message: MessageLine) -> str:
    what, sender, receiver = message.msg_type, message.sender_agent, message.receiver_agent
    return f"{text_of(what)} from {text_of(sender)} to {text_of(receiver)}"


def _resend_refusal(message: MessageLine) -> str | None:
    if message.standing == "dead":
        return None
    return f"the {_letter(message)} is {message.standing}: only a dead letter is sent again"


async def _resend(mesh: MeshServices, message: MessageLine, _: str) -> str:
    await mesh.messages.queries.retry(message.message_uuid)
    return f"the {_letter(message)} is sent again"


# --- conflicts -----------------------------------------------------------------------------------


async def _resolve(mesh: MeshServices, conflict: ConflictLine, side: str) -> str:
    done = await mesh.conflicts.resolve(conflict.conflict_id, take=Take(side))
    return f"conflict {conflict.conflict_id} is resolved: {done.resolution}"


DEEDS: Final[dict[str, tuple[RowAction, ...]]] = {
    "jobs": (
        RowAction("a", "abort", Asks.CONFIRMATION, lambda j: f"Abort {_named(j)}?", _abort_refusal, _abort),
        RowAction("r", "retry", Asks.CONFIRMATION, lambda j: f"Retry {_named(j)}?", _retry_refusal, _retry),
    ),
    "locks": (RowAction("b", "break", Asks.REASON, _break_question, _break_refusal, _break),),
    "messages": (
        RowAction(
            "r",
            "send again",
            Asks.CONFIRMATION,
            lambda message: f"Send the {_letter(message)} again?",
            _resend_refusal,
            _resend,
        ),
    ),
    "conflicts": (
        RowAction(
            "s",
            "settle",
            Asks.SIDE,
            lambda conflict: f"Settle the conflict in {text_of(conflict.table_name)}: which side?",
            lambda _: None,
            _resolve,
        ),
    ),
}
"""By panel."""

KEYS: Final = frozenset(deed.key for deeds in DEEDS.values() for deed in deeds)


async def done(deed: RowAction, mesh: MeshServices, item: Any, answer: str) -> str:
    """Do it, and vouch for it at once: whoever looks may go on looking for hours."""
    try:
        return await deed.do(mesh, item, answer)
    finally:
        if mesh.oplog.is_seal_due:
            await mesh.store.write(mesh.oplog.seal_script())
