"""Claude Code: hooks over HTTP and by command. Other hosts have adopted its form, with fewer answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vox_mesh.hosts.hooks.decisions import HookDecision
from vox_mesh.hosts.hooks.events import USAGE, EventKind, HookEvent, name_at, text_at
from vox_mesh.hosts.hooks.tools import ToolUse, tool_use

BEFORE_TOOL: Final = "PreToolUse"
_KINDS: Final = {
    "SessionStart": EventKind.SESSION_START,
    "UserPromptSubmit": EventKind.PROMPT,
    "PostToolUse": EventKind.AFTER_TOOL,
    "PostToolBatch": EventKind.AFTER_TOOL,
    "Stop": EventKind.STOP,
    "SessionEnd": EventKind.SESSION_END,
}
_WITH_CONTEXT: Final = frozenset(
    {"SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolBatch"}
)


def parse(raw: Mapping[str, Any]) -> HookEvent:
    """Return the event that a document of the host describes."""
    name = name_at(raw, "hook_event_name")
    is_before = name == BEFORE_TOOL
    use = tool_use(name_at(raw, "tool_name"), raw.get("tool_input")) if is_before else ToolUse()
    usage = raw.get(USAGE)
    return HookEvent(
        use.kind if is_before else _KINDS.get(name, EventKind.OTHER),
        name,
        session_id=name_at(raw, "session_id"),
        cwd=text_at(raw, "cwd"),
        paths=use.paths,
        command=use.command,
        folder=use.folder,
        is_reminded=raw.get("stop_hook_active") is True,
        usage=usage if isinstance(usage, Mapping) else None,
    )


def render(event: HookEvent, decision: HookDecision) -> dict[str, Any]:
    """Return the answer that the host expects."""
    answer: dict[str, Any] = {}
    specific: dict[str, Any] = {}
    if decision.denied and event.name == BEFORE_TOOL:
        specific |= {"permissionDecision": "deny", "permissionDecisionReason": decision.denied}
    if decision.context and event.name in _WITH_CONTEXT:
        specific["additionalContext"] = decision.context
    if specific:
        answer["hookSpecificOutput"] = {"hookEventName": event.name, **specific}
    if decision.stays and event.name == "Stop":
        answer |= {"decision": "block", "reason": decision.stays}
    if decision.note:
        answer["systemMessage"] = decision.note
    return answer
