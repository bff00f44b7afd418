"""Actions on the selected row, which do what the commands do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from vox_mesh.cli.top.panels import text_of
from vox_mesh.errors import IllegalTransition
from vox_mesh.model.jobs.records import ENDS
from vox_mesh.occ.conflicts import Take
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.overview import (
    ApprovalLine,
    ConflictLine,
    JobLine,
    LockLine,
    MessageLine,
    WaiterLine,
)

_SHORT_ID: Final = 12
_BY_HAND: Final = "aborted by hand"


class Asks(Enum):
    """The answer an action needs before it runs."""

    CONFIRMATION = "confirmation"
    REASON = "reason"
    SIDE = "side"
    DECISION = "decision"
    """A confirmation by a person who sees exactly what is asked."""


@dataclass(frozen=True)
class RowAction:
    """An action bound to a key. `refusal` returns why it can't run on an item; `do` gets the answer."""

    key: str
    word: str
    asks: Asks
    question: Callable[[Any], str]
    refusal: Callable[[Any], str | None]
    do: Callable[[MeshServices, Any, str], Awaitable[str]]


# --- jobs ----------------------------------------------------------------------------------------


def _job_name(job: JobLine) -> str:
    return f"job {job.job_id[:_SHORT_ID]} ({text_of(job.kind)})"


def _abort_refusal(job: JobLine) -> str | None:
    return f"{_job_name(job)} already ended: {job.state}" if job.state in ENDS else None


async def _abort(mesh: MeshServices, job: JobLine, _: str) -> str:
    try:
        await mesh.jobs.abort(job.job_id, reason=_BY_HAND)
    except IllegalTransition:
        return f"{_job_name(job)} already ended"
    return f"{_job_name(job)} aborted"


def _retry_refusal(job: JobLine) -> str | None:
    return None if job.state in ENDS else f"{_job_name(job)} is {job.state}: only ended jobs can be retried"


async def _retry(mesh: MeshServices, job: JobLine, _: str) -> str:
    again = await mesh.jobs.retry(job.job_id)
    when = "retried" if again.is_new else "was retried before"
    return f"{_job_name(job)} {when} as {again.job_id[:_SHORT_ID]}"


# --- locks ---------------------------------------------------------------------------------------


def _break_question(lock: LockLine) -> str:
    holder = f"{text_of(lock.holder_agent)} on {text_of(lock.holder_node)}"
    return f"Break the lock {text_of(lock.lock_key)} of {holder}?"


def _break_refusal(lock: LockLine | WaiterLine) -> str | None:
    return f"{text_of(lock.lock_key)} is not held" if isinstance(lock, WaiterLine) else None


async def _break(mesh: MeshServices, lock: LockLine, reason: str) -> str:
    _, holders = await mesh.locks.break_lock(lock.lock_key, reason)
    who = ", ".join(text_of(holder.holder_agent) for holder in holders)
    return f"{text_of(lock.lock_key)} broken, held by {who}"


# --- messages ------------------------------------------------------------------------------------


def _message_name(message: MessageLine) -> str:
    what, sender, receiver = message.msg_type, message.sender_agent, message.receiver_agent
    return f"{text_of(what)} from {text_of(sender)} to {text_of(receiver)}"


def _resend_refusal(message: MessageLine) -> str | None:
    if message.standing == "dead":
        return None
    return f"{_message_name(message)} is {message.standing}: only dead letters can be sent again"


async def _resend(mesh: MeshServices, message: MessageLine, _: str) -> str:
    await mesh.messages.queries.retry(message.message_uuid)
    return f"{_message_name(message)} sent again"


# --- conflicts -----------------------------------------------------------------------------------


async def _resolve(mesh: MeshServices, conflict: ConflictLine, side: str) -> str:
    done = await mesh.conflicts.resolve(conflict.conflict_id, take=Take(side))
    return f"conflict {conflict.conflict_id} resolved: {done.resolution}"


# --- approvals -----------------------------------------------------------------------------------


def _asked_by(approval: ApprovalLine) -> str:
    return f"{text_of(approval.operation)} of {text_of(approval.agent)}"


async def _approve(mesh: MeshServices, approval: ApprovalLine, _: str) -> str:
    done = await mesh.approvals.approve(approval.approval_id)
    why = f": {text_of(done.refusal)}" if done.refusal else ""
    return f"{_asked_by(approval)} approved, and {done.state.value}{why}"


async def _deny(mesh: MeshServices, approval: ApprovalLine, reason: str) -> str:
    await mesh.approvals.deny(approval.approval_id, reason)
    return f"{_asked_by(approval)} denied"


ROW_ACTIONS: Final[dict[str, tuple[RowAction, ...]]] = {
    "jobs": (
        RowAction(
            "a", "abort", Asks.CONFIRMATION, lambda j: f"Abort {_job_name(j)}?", _abort_refusal, _abort
        ),
        RowAction(
            "r", "retry", Asks.CONFIRMATION, lambda j: f"Retry {_job_name(j)}?", _retry_refusal, _retry
        ),
    ),
    "locks": (RowAction("b", "break", Asks.REASON, _break_question, _break_refusal, _break),),
    "messages": (
        RowAction(
            "r",
            "send again",
            Asks.CONFIRMATION,
            lambda message: f"Send {_message_name(message)} again?",
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
    "approvals": (
        RowAction(
            "a",
            "approve",
            Asks.DECISION,
            lambda approval: f"Approve the {_asked_by(approval)}, exactly as follows?",
            lambda _: None,
            _approve,
        ),
        RowAction(
            "d",
            "deny",
            Asks.REASON,
            lambda approval: f"Deny the {_asked_by(approval)}?",
            lambda _: None,
            _deny,
        ),
    ),
}
"""The actions by panel."""

KEYS: Final = frozenset(action.key for actions in ROW_ACTIONS.values() for action in actions)


async def run_action(action: RowAction, mesh: MeshServices, item: Any, answer: str) -> str:
    """Run an action and seal its log entries at once: this process may stay open for hours."""
    try:
        return await action.do(mesh, item, answer)
    finally:
        if mesh.oplog.is_seal_due:
            await mesh.store.write(mesh.oplog.seal_script())
