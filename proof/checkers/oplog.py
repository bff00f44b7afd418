"""The op log: chains without gaps, complete, and append-only as the monitor saw them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from proof.archived_log import deleted_entries, log_rows
from proof.final_state import final_rows, grouped
from proof.history import History, Operation
from proof.losses import Losses
from proof.op_hash import op_hash
from proof.verdicts import Check
from proof.workloads.oplog import LAST
from vox_mesh.model.jobs.records import CLAIM, COMPLETE, START
from vox_mesh.model.nodes.store_memory import ROLLED_BACK
from vox_mesh.model.oplog.chain import NO_HASH, LogEntry

_APPEND: Final = "log.append"
_LED_BY: Final = {START: CLAIM, COMPLETE: START}

_BEHIND: Final = ("the memory of node", "as its cause, which was not there")
"""What verifying rightly finds until a rollback is recorded."""

_NOTICED_S: Final = 5.0
"""How long after a rollback a node, which may be paused or restarted then, has recorded it."""


def _chains(history: History) -> dict[str, list[LogEntry]]:
    """Return the entries of each chain, by sequence number."""
    rows = grouped(log_rows(history), "node_id")
    chains = {node: [LogEntry(**row) for row in its] for node, its in rows.items()}
    return {node: sorted(chain, key=lambda entry: entry.seq) for node, chain in chains.items()}


def chains_whole(history: History) -> Iterator[str | int]:
    """Recompute every chain; and no node has found a fault in one, or changed an entry.

    Until a node has recorded a rollback, others rightly find that the log is behind what nodes remember.
    """
    for node, chain in _chains(history).items():
        prev = NO_HASH
        for seq, entry in enumerate(chain, start=1):
            yield 1
            if entry.seq != seq:
                yield f"{node}: entry {seq} is missing, the next one is {entry.seq}"
                break
            if entry.prev != prev:
                yield f"{node}: entry {seq} ({entry.kind}) does not follow the one before it"
            if entry.hash != op_hash(entry):
                yield f"{node}: entry {seq} ({entry.kind}) is not what it was when it was hashed"
            prev = entry.hash
    deleted = deleted_entries(history)
    for edit in final_rows(history, "proof_log_edits"):
        if edit["deed"] == "delete" and deleted.has(edit["node_id"], edit["seq"]):
            yield 1
            continue
        yield f"{edit['node_id']}: entry {edit['seq']} saw an {edit['deed']} at {edit['at_ms']}"
    yield from problems_found(history, "log.verify")


def problems_found(history: History, verification: str) -> Iterator[str | int]:
    """Return what nodes have found by verifying, but for what is rightly found after a rollback."""
    losses = Losses(history)
    for operation in history.operations(verification):
        yield int(operation.is_ok)
        is_behind = losses.touches(operation.began - _NOTICED_S, operation.ended)
        for problem in operation.result.get("problems", ()):
            if is_behind and any(each in problem for each in _BEHIND):
                continue
            yield f"{operation.who} found at {operation.ended:.3f}: {problem}"


def chains_complete(history: History) -> Iterator[str | int]:
    """An acknowledged op is in the log once; an unknown one at most once; a rejected one is not."""
    entries = grouped(log_rows(history), "op_id")
    operations: dict[str, list[Operation]] = {}
    for operation in history.operations(_APPEND):
        operations.setdefault(operation.args["key"], []).append(operation)
    losses = Losses(history)
    for key, tries in operations.items():
        yield 1
        there = entries.get(key, [])
        if len(there) > 1:
            yield f"op {key} is in the log {len(there)} times"
        if any(operation.is_ok and not losses.may_have_lost(operation) for operation in tries) and not there:
            yield f"op {key} was appended and is not in the log: {tries[0]}"
        if there and there[0]["accepted"] and not any(operation.may_have_happened for operation in tries):
            yield f"op {key} is in the log, and every append by {tries[0].who} was refused"


def causes_first(history: History) -> Iterator[str | int]:
    """A start names its claim, a completion its start, each committed before; a rollback may lose some."""
    entries = {row["op_id"]: row for row in log_rows(history)}
    has_lost = any(row["kind"] == ROLLED_BACK for row in entries.values())
    for row in entries.values():
        if row["kind"] not in _LED_BY or not row["accepted"]:
            continue
        yield 1
        what = f"{row['node_id']}: entry {row['seq']} ({row['kind']})"
        causes = [entries[each] for each in json.loads(row["causal_deps"]) if each in entries]
        if not has_lost and _LED_BY[row["kind"]] not in {each["kind"] for each in causes}:
            yield f"{what} names no {_LED_BY[row['kind']]} that led to it"
        if any(each["id"] >= row["id"] for each in causes):
            yield f"{what} comes before what led to it"


def heads_kept(history: History) -> Iterator[str | int]:
    """Every head that the monitor saw is in its chain, and no head went back.

    Heads read in a lost window, or across a rollback, may be gone.
    """
    losses = Losses(history)
    entries = {(node, entry.seq): entry.hash for node, its in _chains(history).items() for entry in its}
    highest: dict[str, int] = {}
    for event in history.notes("monitor.head"):
        if losses.touches(event.data.get("asked_at", event.at), event.at):
            continue
        yield 1
        chain, seq, head = event.data["chain"], event.data["seq"], event.data["hash"]
        if seq < highest.get(chain, 0):
            yield f"{chain} ended at {seq} at {event.at:.3f}, and before that at {highest[chain]}"
        highest[chain] = max(seq, highest.get(chain, 0))
        if entries.get((chain, seq)) != head:
            yield f"{chain}: entry {seq} is another one than at {event.at:.3f}, or is gone"


def goes_on(history: History) -> Iterator[str | int]:
    """Every node that was there at the end could append once more."""
    drained = {note.data["player"] for note in history.notes("drained")}
    last: dict[str, list[Operation]] = {}
    for operation in history.operations(_APPEND):
        if operation.args.get("number") == LAST and operation.who in drained:
            last.setdefault(operation.who, []).append(operation)
    for tries in last.values():
        yield 1
        if not any(operation.is_ok for operation in tries):
            yield f"{tries[-1]}, when all was well, as {len(tries)} times before"


OPLOG_CHECKS: Final = (
    Check("chains-whole", "every chain of the log has no gaps and correct hashes", chains_whole),
    Check("chains-complete", "every op appended to the log is there, once", chains_complete),
    Check("causes-first", "the log names what led to an op, and that comes before it", causes_first),
    Check("log-goes-on", "when all faults have healed, every node can append to the log", goes_on),
    Check("heads-kept", "the log only grows: an entry once seen stays", heads_kept),
)
