"""Gemini CLI: hooks by command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vox_mesh.hosts.hooks.decisions import HookDecision
from vox_mesh.hosts.hooks.events import EventKind, HookEvent, name_at, text_at
from vox_mesh.hosts.hooks.tools import ToolUse, tool_use

_BEFORE_TOOL: Final = "BeforeTool"
_KINDS: Final = {
    "SessionStart": EventKind.SESSION_START,
    "BeforeAgent": EventKind.PROMPT,
    "AfterTool": EventKind.AFTER_TOOL,
    "AfterAgent": EventKind.STOP,
    "SessionEnd": EventKind.SESSION_END,
}
_WITH_CONTEXT: Final = frozenset({"SessionStart", "BeforeAgent", "AfterTool"})


def parse(raw: Mapping[str, Any]) -> HookEvent:
    """Return the event that a document of the host describes."""
    name = name_at(raw, "hook_event_name")
    is_before = name == _BEFORE_TOOL
    use = tool_use(name_at(raw, "tool_name"), raw.get("tool_input")) if is_before else ToolUse()
    return HookEvent(
        use.kind if is_before else _KINDS.get(name, EventKind.OTHER),
        name,
        session_id=name_at(raw, "session_id"),
        cwd=text_at(raw, "cwd"),
        paths=use.paths,
        command=use.command,
        folder=use.folder,
        is_reminded=raw.get("stop_hook_active") is True,
    )


def render(event: HookEvent, decision: HookDecision) -> dict[str, Any]:
    """Return the answer that the host expects."""
    answer: dict[str, Any] = {}
    if decision.denied and event.name == _BEFORE_TOOL:
        answer |= {"decision": "deny", "reason": decision.denied}
    if decision.stays and event.kind is EventKind.STOP:
        answer |= {"decision": "block", "reason": decision.stays}
    if decision.context and event.name in _WITH_CONTEXT:
        answer["hookSpecificOutput"] = {"hookEventName": event.name, "additionalContext": decision.context}
    if decision.note:
        answer["systemMessage"] = decision.note
    return answer
