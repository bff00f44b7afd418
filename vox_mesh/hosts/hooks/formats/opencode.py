"""opencode: a plugin, which sends the name of each of its hooks with the values that it is called with.

The document has `hook`, `directory`, and `input`, `output` or `event` as the host gives them. The answer has
`deny`, `context`, `note` and `stay`, each only if there is something to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vox_mesh.hosts.hooks.decisions import HookDecision
from vox_mesh.hosts.hooks.events import EventKind, HookEvent, name_at, object_at, text_at
from vox_mesh.hosts.hooks.tools import ToolUse, tool_use

_BEFORE_TOOL: Final = "tool.execute.before"
_KINDS: Final = {
    "chat.message": EventKind.PROMPT,
    "tool.execute.after": EventKind.AFTER_TOOL,
    "session.created": EventKind.SESSION_START,
    "session.idle": EventKind.STOP,
    "session.deleted": EventKind.SESSION_END,
    "session.compacted": EventKind.SESSION_START,
}


def parse(raw: Mapping[str, Any]) -> HookEvent:
    """Return the event that a document of the plugin describes."""
    event, given = object_at(raw, "event"), object_at(raw, "input")
    properties = object_at(event, "properties")
    name = name_at(event, "type") or name_at(raw, "hook")
    use = ToolUse(_KINDS.get(name, EventKind.OTHER))
    if name == _BEFORE_TOOL:
        use = tool_use(name_at(given, "tool"), object_at(raw, "output").get("args"))
    session = name_at(given, "sessionID") or name_at(properties, "sessionID")
    return HookEvent(
        use.kind,
        name,
        session_id=session or name_at(object_at(properties, "info"), "id"),
        cwd=text_at(raw, "directory"),
        paths=use.paths,
        command=use.command,
        folder=use.folder,
        is_reminded=raw.get("is_reminded") is True,
    )


def render(event: HookEvent, decision: HookDecision) -> dict[str, Any]:
    """Return the answer that the plugin expects."""
    said = {
        "deny": decision.denied if event.name == _BEFORE_TOOL else "",
        "context": decision.context,
        "note": decision.note,
        "stay": decision.stays if event.kind is EventKind.STOP else "",
    }
    return {name: text for name, text in said.items() if text}
