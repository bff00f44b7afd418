"""Claude Code: handlers by command, or over HTTP where the node has a fixed address."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from vox_mesh.hosts.setup.hook_handlers import HookHandler
from vox_mesh.hosts.setup.hook_plan import MISSING_SCRIPT, HookPlan
from vox_mesh.hosts.setup.hosts.host import TIMEOUT_S, JsonHost

_EDITS: Final = "Edit|Write|NotebookEdit|MultiEdit"
_WAIT_S: Final = 86_400


def _handlers(plan: HookPlan) -> Sequence[HookHandler]:
    asked = _http if plan.address is not None and not plan.strict else _command
    return (
        HookHandler("SessionStart", _command(plan)),
        HookHandler("UserPromptSubmit", asked(plan)),
        HookHandler("PreToolUse", asked(plan, may_deny=True), _EDITS),
        HookHandler("PreToolUse", {**asked(plan, may_deny=True), "if": "Bash(git *)"}, "Bash"),
        HookHandler("PostToolBatch", asked(plan)),
        # The script counts what the session has used, from the transcript.
        HookHandler("Stop", _command(plan)),
        HookHandler("Stop", _waiter(plan)),
        HookHandler("SessionEnd", _command(plan)),
    )


def _command(plan: HookPlan, *, may_deny: bool = False) -> Mapping[str, Any]:
    command = plan.command(may_deny=may_deny, without=json.dumps({"systemMessage": MISSING_SCRIPT}))
    # Without it, the action goes on after a timeout. Versions before 2.1.295 ignore it.
    strict = {"onFailure": "block"} if may_deny and plan.strict else {}
    return {"type": "command", "command": command, "timeout": TIMEOUT_S, **strict}


def _waiter(plan: HookPlan) -> Mapping[str, Any]:
    return {"type": "command", "command": plan.waiter(), "timeout": _WAIT_S, "asyncRewake": True}


def _http(plan: HookPlan, *, may_deny: bool = False) -> Mapping[str, Any]:
    return {
        "type": "http",
        "url": plan.url(),
        "headers": {"Authorization": "Bearer $VOX_AGENT_TOKEN"},
        "allowedEnvVars": ["VOX_AGENT_TOKEN"],
        "timeout": TIMEOUT_S,
    }


CLAUDE: Final = JsonHost(
    name="claude",
    title="Claude Code",
    project_file=".claude/settings.local.json",
    user_folder=".claude",
    user_name="settings.json",
    folder_variable="CLAUDE_CONFIG_DIR",
    make_handlers=_handlers,
)
