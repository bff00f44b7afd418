"""Copilot CLI: hooks by command. Events come in two forms, by how their names are written where they are set.

In the form with lower-case names the event is not named: its fields tell which one it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vox_mesh.errors import MeshError
from vox_mesh.hosts.hooks.decisions import HookDecision
from vox_mesh.hosts.hooks.events import EventKind, HookEvent, name_at, text_at
from vox_mesh.hosts.hooks.tools import ToolUse, tool_use
from vox_mesh.model.base.json_text import read_json

_BEFORE_TOOL: Final = "PreToolUse"
_KINDS: Final = {
    "SessionStart": EventKind.SESSION_START,
    "UserPromptSubmit": EventKind.PROMPT,
    "PostToolUse": EventKind.AFTER_TOOL,
    "Stop": EventKind.STOP,
    "SessionEnd": EventKind.SESSION_END,
}
_SIGNS: Final = (
    ("toolResult", "PostToolUse"),
    ("toolName", _BEFORE_TOOL),
    ("stopReason", "Stop"),
    ("prompt", "UserPromptSubmit"),
    ("source", "SessionStart"),
    ("reason", "SessionEnd"),
)
"""The first of these fields that an event has tells which one it is."""

_WITH_CONTEXT: Final = frozenset({EventKind.SESSION_START, EventKind.AFTER_TOOL})


def parse(raw: Mapping[str, Any]) -> HookEvent:
    """Return the event that a document of the host describes."""
    name = name_at(raw, "hook_event_name")
    if not name:
        name = next((each for field, each in _SIGNS if field in raw), "")
    is_before = name == _BEFORE_TOOL
    given = raw.get("tool_input", raw.get("toolArgs"))
    use = tool_use(name_at(raw, "tool_name", "toolName"), _read(given)) if is_before else ToolUse()
    return HookEvent(
        use.kind if is_before else _KINDS.get(name, EventKind.OTHER),
        name,
        session_id=name_at(raw, "session_id", "sessionId"),
        cwd=text_at(raw, "cwd", "workingDirectory"),
        paths=use.paths,
        command=use.command,
        folder=use.folder,
        is_reminded=raw.get("stop_hook_active") is True or raw.get("stopHookActive") is True,
    )


def _read(given: Any) -> Any:
    """Return the arguments of a tool, which may come as a text in JSON; a patch is a text itself."""
    if not isinstance(given, str) or not given.lstrip().startswith("{"):
        return given
    try:
        return read_json(given.encode(errors="replace"))
    except MeshError:
        return given


def render(event: HookEvent, decision: HookDecision) -> dict[str, Any]:
    """Return the answer that the host expects. A note is shown as progress, if nothing else is said."""
    if decision.denied and event.name == _BEFORE_TOOL:
        return {"permissionDecision": "deny", "permissionDecisionReason": decision.denied}
    if decision.stays and event.kind is EventKind.STOP:
        return {"decision": "block", "reason": decision.stays}
    if decision.context and event.kind in _WITH_CONTEXT:
        return {"additionalContext": decision.context}
    return {"type": "progress", "message": decision.note} if decision.note else {}
