"""Edits: what agents commit was under their locks, every refusal is explained, and all mail acknowledged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from proof.editing.commit_witness import NOTE
from proof.final_state import final_rows
from proof.history import Event, History
from proof.verdicts import Check
from vox_mesh.model.locks.patterns import FILE, overlap
from vox_mesh.model.locks.records import milliseconds_at

_ACTIONS: Final = re.compile(
    r"vox-mesh (lock acquire|send)|wait (with|for)|send the holder|ask (the|their) holder"
)
_UNTIL: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|\d+(\.\d+)? s\b")
_CODE: Final = re.compile(r"[a-z]+(_[a-z]+)*: ")
_WAKES: Final = 2
_NOT_LOCKED: Final = re.compile(r"(path is|paths are) not locked by ")


def edits_under_locks(history: History) -> Iterator[str | int]:
    """Compare each commit with the locks that the database had when its branch moved."""
    witnessed = {note.data["commit"]: note for note in history.notes(NOTE)}
    for note in history.notes("committed"):
        yield 1
        commit, author = note.data["commit"], note.data["author"]
        seen = witnessed.get(commit)
        if seen is None:
            yield f"commit {commit} of {author} was not witnessed"
            continue
        for path in note.data["paths"]:
            holders = [lock["holder_agent"] for lock in _in_force(seen, path)]
            if holders != [author]:
                yield f"commit {commit} of {author} changes {path}, which {holders or 'no one'} held"


def _in_force(seen: Event, path: str) -> list[dict[str, Any]]:
    """Return the locks on a path that had not expired at a commit."""
    return [
        lock
        for lock in seen.data["locks"]
        if overlap(lock["lock_key"], FILE + path) and milliseconds_at(lock["expires_at"]) > seen.data["at_ms"]
    ]


def only_allowed_committed(history: History) -> Iterator[str | int]:
    """Compare the edits in the commits with the edits of agents, and the answers of their hooks."""
    edits = {note.data["mark"]: note for note in history.notes("edit")}
    yield sum(not note.data["allowed"] for note in edits.values())
    for note in history.notes("committed"):
        for mark in note.data["marks"]:
            yield 1
            edit = edits.get(mark)
            if edit is None or edit.who != note.data["author"]:
                yield f"{note.data['author']} committed the edit {mark}, which is not its own"
            elif not edit.data["allowed"]:
                yield f"{edit.who} committed the edit {mark} of {edit.data['path']} against the rules"


def hook_and_guard_agree(history: History) -> Iterator[str | int]:
    """Compare each answer of the guard with those of the hook to the edits before it."""
    edits = history.notes("edit")
    for operation in history.operations("commit"):
        own = [each for each in edits if each.who == operation.who and each.at <= operation.began]
        if not own or operation.step == "unknown":
            continue
        yield 1
        if own[-1].data["allowed"] and not operation.is_ok:
            yield f"the guard refused what the hook had allowed: {operation}"


def refusals_explained(history: History) -> Iterator[str | int]:
    """Look for the code, the holder, the expiry and an action in the text of each refusal."""
    agents = {note.who for note in history.notes("hook")}
    for note in history.notes("refusal"):
        yield 1
        text, via = note.data["text"], note.data["via"]
        missing = [] if _ACTIONS.search(text) else ["an action"]
        if not _NOT_LOCKED.search(text):
            missing += [] if any(name in text for name in agents - {note.who}) else ["the holder"]
            missing += [] if _UNTIL.search(text) else ["the expiry"]
        if via == "mcp" and not _CODE.match(text):
            missing.append("the code")
        if missing:
            yield f"a refusal of {note.who} by {via} lacks {', '.join(missing)}: {text!r}"


def mail_acknowledged(history: History) -> Iterator[str | int]:
    """Compare the messages that were sent with the rows at the end."""
    states = {row["message_uuid"]: row["state"] for row in final_rows(history, "a2a_messages")}
    for note in history.notes("sent"):
        yield 1
        if (state := states.get(note.data["id"])) != "acked":
            yield f"message {note.data['id']} of {note.who} to {note.data['to']} is {state}"


def left_locks_end(history: History) -> Iterator[str | int]:
    """Look for a later lock of another agent on each file that a killed agent left locked, and an edit."""
    for left in history.notes("left-behind"):
        yield 1
        path, later = left.data["path"], [each for each in history.notes("taken-over") if each.at > left.at]
        if all(each.data["path"] != path for each in later):
            yield f"{path} was left locked by a killed agent, and no other could edit it"
        locks = [each for each in history.operations("lock") if each.is_ok and each.args["path"] == path]
        for lock in locks:
            if lock.began > left.at and lock.result["token"] <= left.data["token"]:
                yield f"{path}: {lock} has no higher token than the lock that was left behind"


def idle_are_woken(history: History) -> Iterator[str | int]:
    """Look at how the waiters of idle agents ended, and for the sender and the fence in their words."""
    for note in history.notes("woken"):
        yield 1
        text, senders = note.data["text"], {each.who for each in history.notes("sent")} - {note.who}
        if note.data["status"] != _WAKES or "<untrusted-" not in text or not any(map(text.count, senders)):
            yield f"the waiter of {note.who} ended with {note.data['status']} and {text!r}"


def agents_end_well(history: History) -> Iterator[str | int]:
    """Look for agents that ended with an error: something was answered that they do not expect."""
    yield len(history.notes("killed"))
    for note in history.notes("unexpected"):
        yield f"{note.data['who']} ended with {note.data['status']}: {note.data['log']}"


EDIT_CHECKS: Final = (
    Check(
        "edits-under-locks",
        "every committed path was under an exclusive lock of its author when the commit was made",
        edits_under_locks,
    ),
    Check(
        "only-allowed-committed",
        "no edit that a hook denied, and none without its lock, is committed",
        only_allowed_committed,
    ),
    Check(
        "hook-and-guard-agree",
        "the guard lets in what the hook has allowed and locked",
        hook_and_guard_agree,
    ),
    Check(
        "refusals-explained",
        "every refusal names the holder, the expiry and an action, and over MCP a code",
        refusals_explained,
    ),
    Check("mail-acknowledged", "every message between the agents is acknowledged", mail_acknowledged),
    Check(
        "left-locks-end",
        "files that a killed agent held are edited by others under higher tokens",
        left_locks_end,
    ),
    Check(
        "idle-are-woken",
        "mail wakes an idle agent, with its text fenced and its sender named",
        idle_are_woken,
    ),
    Check("agents-end-well", "no agent is answered anything that it does not expect", agents_end_well),
)
