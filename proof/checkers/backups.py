"""Backups: the listed ones are complete, of one moment, and the newest can be restored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from proof.final_state import final_rows
from proof.history import Data, History, Operation
from proof.losses import Losses
from proof.verdicts import Check

_MAKE: Final = "backup.make"


def backups_restore(history: History) -> Iterator[str | int]:
    """Compare what backups hold with what nodes and the monitor knew before each was begun."""
    made = {each.result["backup"]: each for each in history.operations(_MAKE) if each.result.get("backup")}
    for listing in history.notes("final.backups"):
        yield from _newest_listed(history, made, listing.data["names"])
    for note in history.notes("final.backup"):
        yield 1
        name, content = note.data["name"], note.data
        if "error" in content:
            yield f"{name} can't be used: {content['error']}"
            continue
        yield from (f"{name}, restored: {problem}" for problem in content.get("problems", ()))
        yield from (f"{name} {fault}" for fault in _faults_within(content))
        yield from (f"{name} {fault}" for fault in _foreign(history, content))
        if name in made:
            yield from (f"{name} {fault}" for fault in _missing(history, content, made[name]))


def _newest_listed(history: History, made: dict[str, Operation], names: list[str]) -> Iterator[str]:
    """The last backup that was made is listed, unless a later attempt may have removed it."""
    last = max(made.values(), key=lambda each: each.ended, default=None)
    if last is None or last.result["backup"] in names:
        return
    later = (each for each in history.operations(_MAKE) if each.ended > last.ended)
    if all(each.is_ok for each in later):
        yield f"{last.result['backup']} was the last one made, and is not listed"


def _faults_within(content: Data) -> Iterator[str]:
    """All of it is of one moment: no job and no witness knows more of the log than it holds."""
    if content["witnessed_id"] > content["last_id"]:
        yield f"ends with entry {content['last_id']} of the log, and entry {content['witnessed_id']} was seen"
    ops = {op_id for _, _, op_id, _ in content["entries"]}
    for job_id, last_op in content["jobs"]:
        if last_op is not None and last_op not in ops:
            yield f"has job {job_id}, and not its last op {last_op}"


def _foreign(history: History, content: Data) -> Iterator[str]:
    """It has no entry that is not in the log; a rollback may have lost some since."""
    if Losses(history):
        return
    log = {(row["node_id"], row["seq"]): row["hash"] for row in final_rows(history, "agent_oplog")}
    for chain, seq, _, digest in content["entries"]:
        if log.get((chain, seq)) != digest:
            yield f"has another entry {seq} of {chain} than the log"


def _missing(history: History, content: Data, made: Operation) -> Iterator[str]:
    """It has all that was known to be in the log before it was begun, but for what a rollback lost."""
    losses = Losses(history)
    ops = {op_id for _, _, op_id, _ in content["entries"]}
    heads = {(chain, seq): digest for chain, seq, _, digest in content["entries"]}
    for append in history.operations("log.append"):
        is_known = append.is_ok and not append.result.get("spooled") and append.ended < made.began
        if is_known and not losses.may_have_lost(append) and append.args["key"] not in ops:
            yield f"lacks op {append.args['key']}, which was appended before it was begun"
    for seen in history.notes("monitor.head"):
        if seen.at >= made.began or losses.touches(seen.data["asked_at"], made.ended):
            continue
        chain, seq = seen.data["chain"], seen.data["seq"]
        if heads.get((chain, seq)) != seen.data["hash"]:
            yield f"lacks entry {seq} of {chain}, which was there before it was begun"


BACKUP_CHECKS: Final = (
    Check(
        "backups-restore",
        "each listed backup holds all that was there before it was begun, and the newest can be restored",
        backups_restore,
    ),
)
