"""What an answer to a hook means: whether the mesh was asked, and what the host does with it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

UNCHECKED: Final = "vox-mesh: locks not checked"
"""How every text begins that is sent instead of an answer of the mesh."""

_BEFORE: Final = ("before_edit", "before_commit")
_REASONS: Final = ("permissionDecisionReason", "reason", "agent_message", "deny")
_CONTEXTS: Final = ("additionalContext", "additional_context", "context")
_REMINDERS: Final = ("reason", "followup_message", "stay")
_NOTES: Final = ("systemMessage", "user_message", "message", "note")


class HookResult(StrEnum):
    """The kinds of answers."""

    DENIED = "denied"
    ALLOWED = "allowed"
    NOT_CHECKED = "not checked"
    CONTEXT = "context"
    REMINDER = "reminder"
    NOTHING = "nothing to say"


class HookVerdict(NamedTuple):
    """An answer in plain words, and the text in it."""

    result: HookResult
    meaning: str
    text: str = ""

    @property
    def is_checked(self) -> bool:
        """Whether the answer is that of the mesh."""
        return self.result is not HookResult.NOT_CHECKED and not self.text.startswith(UNCHECKED)


def verdict_on(kind: str, answer: Mapping[str, Any], *, is_node_up: bool) -> HookVerdict:
    """Return what the answer to a recorded event means, in the form of any host."""
    specific = answer.get("hookSpecificOutput")
    said = {**answer, **(specific if isinstance(specific, Mapping) else {})}
    if _is_denied(said):
        meaning = "the host stops the action and gives the agent the text"
        return HookVerdict(HookResult.DENIED, meaning, _first(said, _REASONS))
    if (note := _first(said, _NOTES)).startswith(UNCHECKED) or not is_node_up:
        meaning = "the mesh was not asked: the action is allowed, and the host shows the note"
        return HookVerdict(HookResult.NOT_CHECKED, meaning, note)
    if text := _first(said, _CONTEXTS):
        return HookVerdict(HookResult.CONTEXT, "the host gives the agent the text", text)
    if text := _first(said, _REMINDERS):
        return HookVerdict(HookResult.REMINDER, "the agent goes on once and reads the text", text)
    if kind in _BEFORE:
        meaning = "the mesh was asked, and no other agent holds the files: the host goes on as usual"
        return HookVerdict(HookResult.ALLOWED, meaning, note)
    return HookVerdict(HookResult.NOTHING, "the mesh was asked: the host goes on as usual", note)


def _is_denied(said: Mapping[str, Any]) -> bool:
    decisions = (said.get(name) for name in ("permissionDecision", "decision", "permission"))
    return "deny" in decisions or "deny" in said


def _first(said: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((str(said[name]) for name in names if said.get(name)), "")
