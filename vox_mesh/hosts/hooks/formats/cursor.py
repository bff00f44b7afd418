"""Cursor: hooks by command, with permissions of their own form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vox_mesh.hosts.hooks.decisions import HookDecision
from vox_mesh.hosts.hooks.events import EventKind, HookEvent, name_at, text_at
from vox_mesh.hosts.hooks.tools import ToolUse, tool_use

_BEFORE_TOOL: Final = "preToolUse"
_BEFORE_SHELL: Final = "beforeShellExecution"
_KINDS: Final = {
    _BEFORE_SHELL: EventKind.BEFORE_SHELL,
    "sessionStart": EventKind.SESSION_START,
    "beforeSubmitPrompt": EventKind.PROMPT,
    "postToolUse": EventKind.AFTER_TOOL,
    "stop": EventKind.STOP,
    "sessionEnd": EventKind.SESSION_END,
}
_WITH_CONTEXT: Final = frozenset({"sessionStart", "postToolUse"})


def parse(raw: Mapping[str, Any]) -> HookEvent:
    """Return the event that a document of the host describes."""
    name = name_at(raw, "hook_event_name")
    use = ToolUse(_KINDS.get(name, EventKind.OTHER))
    if name == _BEFORE_TOOL:
        use = tool_use(name_at(raw, "tool_name"), raw.get("tool_input"))
    elif name == _BEFORE_SHELL:
        use = tool_use("shell", raw)
    loops = raw.get("loop_count")
    return HookEvent(
        use.kind,
        name,
        session_id=name_at(raw, "conversation_id", "session_id"),
        cwd=text_at(raw, "cwd") or _first_root(raw),
        paths=use.paths,
        command=use.command,
        folder=use.folder,
        is_reminded=isinstance(loops, int) and loops > 0,
    )


def _first_root(raw: Mapping[str, Any]) -> str:
    roots = raw.get("workspace_roots")
    return roots[0] if isinstance(roots, list) and roots and isinstance(roots[0], str) else ""


def render(event: HookEvent, decision: HookDecision) -> dict[str, Any]:
    """Return the answer that the host expects."""
    is_before = event.name in (_BEFORE_TOOL, _BEFORE_SHELL)
    if decision.denied and is_before:
        shown = "vox-mesh: another agent holds this file, or locks could not be checked"
        return {"permission": "deny", "user_message": shown, "agent_message": decision.denied}
    if decision.note and is_before:
        return {"user_message": decision.note}  # not "allow", which would approve it for the user
    if decision.context and event.name in _WITH_CONTEXT:
        return {"additional_context": decision.context}
    return {"followup_message": decision.stays} if decision.stays and event.name == "stop" else {}
