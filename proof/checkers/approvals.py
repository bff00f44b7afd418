"""Approvals: what was approved is done once, as it was asked, and nothing else by a grant that asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import orjson

from proof.archived_log import log_rows
from proof.final_state import Row
from proof.history import History
from proof.verdicts import Check

_REQUEST: Final = "RequestApproval"
_APPROVE: Final = "Approve"


def applied_once(history: History) -> Iterator[str | int]:
    """Compare what was asked and approved in the log with the ops that name the approvals."""
    entries = log_rows(history)
    accepted = sorted((row for row in entries if row["accepted"]), key=lambda row: row["id"])
    asked = {row["op_id"]: row for row in accepted if row["kind"] == _REQUEST}
    approved = {_payload(row)["approval"]: row for row in accepted if row["kind"] == _APPROVE}
    refused = {row["op_id"] for row in entries if not row["accepted"]}
    grants = {row["grant"] for row in asked.values()}
    done: dict[str, list[Row]] = {}
    for row in accepted:
        if row["kind"] != _REQUEST and row["grant"] in grants:
            named = [each for each in orjson.loads(row["causal_deps"]) if each in asked]
            if len(named) != 1:
                yield f"op {row['op_id']} was done by a grant that asks, and names no approval"
            for approval in named:
                done.setdefault(approval, []).append(row)
    for approval, request in asked.items():
        yield 1
        ops = done.get(approval, [])
        has_failed = _payload(request)["applied_as"] in refused
        if len(ops) != (approval in approved and not has_failed):
            yield f"approval {approval} was applied {len(ops)} times; given: {approval in approved}"
        for op in ops:
            if op["kind"] != _payload(request)["operation"] or not _is_as_asked(op, request):
                yield f"op {op['op_id']} is not what approval {approval} was asked for"
            if approval in approved and op["id"] < approved[approval]["id"]:
                yield f"op {op['op_id']} comes before approval {approval} was given"


def _is_as_asked(op: Row, request: Row) -> bool:
    wanted, given = _payload(request)["arguments"], _payload(op)
    return bool({name: value for name, value in given.items() if name != "at_ms"} == wanted)


def _payload(row: Row) -> Row:
    read: Row = orjson.loads(row["payload"])
    return read


APPROVAL_CHECKS: Final = (
    Check(
        "approval-applied-once",
        "what was approved is done once, exactly as it was asked",
        applied_once,
    ),
)
