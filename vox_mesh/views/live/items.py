"""Items of each kind, made from the rows of the query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from vox_mesh.model.base.json_text import read_stored, shown
from vox_mesh.model.grants.approval import ApprovalRequest
from vox_mesh.model.locks.records import milliseconds_at
from vox_mesh.model.messages.records import DEFAULT_TYPE, ROLE
from vox_mesh.model.rhythm.promises import HelpState
from vox_mesh.model.rhythm.tokens import MONEY, money_text
from vox_mesh.views.grants.approvals import act_lines
from vox_mesh.views.live.item import MAX_TITLE, AttentionItem, AttentionKind, ScreenLink, Urgency

PERSON: Final = "person:"
"""The prefix of the names by which people act."""


def conflict(values: Sequence[Any]) -> AttentionItem:
    """Return the item of an open conflict."""
    conflict_id, table_name, row_key, left_node, left_agent, right_node, deferred_to, created_at = values
    left_by = left_agent or left_node
    return AttentionItem(
        kind=AttentionKind.CONFLICT,
        id=conflict_id,
        title=f"Conflict in {table_name}: {_key_text(row_key)}"[:MAX_TITLE],
        detail=f"{left_by} and {right_node or 'another writer'} changed this row",
        since_ms=milliseconds_at(created_at),
        urgency=Urgency.NOW,
        link=ScreenLink("conflict", conflict_id),
        more={
            "conflict_id": conflict_id,
            "table_name": table_name,
            "row_key": row_key,
            "left_by": left_by,
            "right_by": right_node,
            "deferred_to": deferred_to,
        },
    )


def question(values: Sequence[Any]) -> AttentionItem:
    """Return the item of an open question. One that an agent is asked can wait for that agent."""
    job_id, question_id, asked_by, asked_of, asked_ms, expires_ms, text, kind = values
    document: dict[str, Any] = read_stored(text)
    asked = str(document.get("text", ""))
    is_for_people = asked_of is None or asked_of.startswith((ROLE, PERSON))
    return AttentionItem(
        kind=AttentionKind.QUESTION,
        id=question_id,
        title=asked.partition("\n")[0][:MAX_TITLE],
        detail=f"{asked_by} asks {asked_of or 'anyone'} for job {kind}",
        since_ms=asked_ms,
        urgency=Urgency.NOW if is_for_people else Urgency.LATER,
        link=ScreenLink("job", job_id),
        more={
            "job_id": job_id,
            "job_kind": kind,
            "question_id": question_id,
            "text": asked,
            "choices": [str(each) for each in document.get("choices") or ()],
            "schema": document.get("schema"),
            "asked_by": asked_by,
            "asked_of": asked_of,
            "expires_ms": expires_ms,
        },
    )


def approval(request: ApprovalRequest) -> AttentionItem:
    """Return the item of an approval that waits for a decision."""
    asks_for = act_lines(request)
    return AttentionItem(
        kind=AttentionKind.APPROVAL,
        id=request.approval_id,
        title=f"{request.agent} asks for approval: {'; '.join(asks_for)}"[:MAX_TITLE],
        detail=request.operation.name,
        since_ms=request.asked_ms,
        urgency=Urgency.NOW,
        link=ScreenLink("approval", request.approval_id),
        more={
            "approval_id": request.approval_id,
            "agent": request.agent,
            "operation": request.operation.name,
            "asks_for": asks_for,
            "digest": request.operation.digest,
            "expires_ms": request.expires_ms,
        },
    )


def dead_letter(values: Sequence[Any]) -> AttentionItem:
    """Return the item of a message that could not be delivered."""
    sender, receiver, reason = values[1], values[2], values[8]
    title = f"Message from {sender} to {receiver} not delivered"
    return _message(AttentionKind.DEAD_LETTER, values, title, reason or "")


def overdue_ack(values: Sequence[Any]) -> AttentionItem:
    """Return the item of a message that is not acknowledged in time."""
    sender, receiver, msg_type = values[1:4]
    title = f"{receiver} has not acknowledged a message from {sender}"
    return _message(AttentionKind.OVERDUE_ACK, values, title, "" if msg_type == DEFAULT_TYPE else msg_type)


def _message(kind: AttentionKind, values: Sequence[Any], title: str, detail: str) -> AttentionItem:
    message_uuid, sender, receiver, msg_type, priority, thread_id, since_ms, attempts, _ = values
    return AttentionItem(
        kind=kind,
        id=message_uuid,
        title=title,
        detail=detail,
        since_ms=int(since_ms),
        urgency=Urgency.SOON,
        link=ScreenLink("message", message_uuid),
        more={
            "message_uuid": message_uuid,
            "sender_agent": sender,
            "receiver_agent": receiver,
            "msg_type": msg_type,
            "priority": priority,
            "thread_id": thread_id,
            "attempts": attempts,
        },
    )


def failed_job(values: Sequence[Any]) -> AttentionItem:
    """Return the item of a failed job without a retry."""
    job_id, kind, claimer, attempts, ended_ms, exit_code, reason = values
    return AttentionItem(
        kind=AttentionKind.FAILED_JOB,
        id=job_id,
        title=f"Job {kind} failed",
        detail=reason or ("" if exit_code is None else f"exit code {exit_code}"),
        since_ms=int(ended_ms),
        urgency=Urgency.SOON,
        link=ScreenLink("job", job_id),
        more={
            "job_id": job_id,
            "job_kind": kind,
            "claimer": claimer,
            "attempts": attempts,
            "exit_code": exit_code,
        },
    )


_PROMISES: Final = {
    HelpState.PROMISED: "{helper} is late with the help promised to {asker}",
    HelpState.BROKEN: "{helper} broke a promise to {asker}",
    HelpState.EXPIRED: "{helper} did not answer {asker} as promised",
    HelpState.UNANSWERED: "Request for help by {asker} was not answered",
}


def broken_promise(values: Sequence[Any]) -> AttentionItem:
    """Return the item of a promise that is late or was broken, or of a request without any."""
    thread_id, asker, helper, task_id, state, due_ms, ended_ms, on_fail = values
    return AttentionItem(
        kind=AttentionKind.BROKEN_PROMISE,
        id=thread_id,
        title=_PROMISES[HelpState(state)].format(asker=asker, helper=helper),
        detail=f"instead: {on_fail}" if on_fail else task_id,
        since_ms=int(due_ms if ended_ms is None else ended_ms),
        urgency=Urgency.SOON if ended_ms is None else Urgency.LATER,
        link=ScreenLink("rhythm", thread_id),
        more={
            "thread_id": thread_id,
            "asker": asker,
            "helper": helper,
            "task_id": task_id,
            "state": state,
            "due_ms": due_ms,
        },
    )


def budget(values: Sequence[Any]) -> AttentionItem:
    """Return the item of a limit that is used up, or nearly."""
    subject, resource, spent, most, since_ms = values
    share = spent / most if most > 0 else 1.0
    name, _, currency = resource.partition(":")
    is_money = resource.startswith(MONEY)
    used, limit = (money_text(round(each)) if is_money else _amount(each) for each in (spent, most))
    return AttentionItem(
        kind=AttentionKind.BUDGET,
        id=f"{subject} {resource}",
        title=f"{subject} has used {share:.0%} of its {name.replace('_', ' ')}",
        detail=f"{used} of {limit} {currency or name.replace('_', ' ')}",
        since_ms=int(since_ms),
        urgency=Urgency.NOW if share >= 1 else Urgency.SOON,
        link=ScreenLink("costs", subject),
        more={
            "subject": subject,
            "resource": resource,
            "spent": used.replace(",", ""),
            "most": limit.replace(",", ""),
            "share": round(share, 4),
        },
    )


def _amount(value: float) -> str:
    """Return an amount as people write it."""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"


def _key_text(row_key: str) -> str:
    """Return the key of a row as people write it, or the stored text if it is no object."""
    key = shown(row_key)
    return ", ".join(f"{name}={value}" for name, value in key.items()) if isinstance(key, dict) else row_key


def dead_node(values: Sequence[Any]) -> AttentionItem:
    """Return the item of a node that has died and not come back."""
    node_id, host, last_seen_ms, load, agent_id, activity = values
    return AttentionItem(
        kind=AttentionKind.NODE_DEAD,
        id=node_id,
        title=f"Node {node_id} is dead",
        detail=f"on {host}" + (f", last activity: {activity}" if activity else ""),
        since_ms=last_seen_ms,
        urgency=Urgency.SOON,
        link=ScreenLink("node", node_id),
        more={"node_id": node_id, "host": host, "load": load, "agent_id": agent_id},
    )
