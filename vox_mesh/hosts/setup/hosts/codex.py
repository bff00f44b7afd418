"""Codex: the form of Claude Code, by command only. Codex runs a hook only after the user has trusted it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from vox_mesh.hosts.setup.hook_handlers import HookHandler
from vox_mesh.hosts.setup.hook_plan import MISSING_SCRIPT, HookPlan
from vox_mesh.hosts.setup.hosts.host import TIMEOUT_S, JsonHost

_MAX_AT_END_S: Final = 3
"""The longest time that Codex gives a handler at the end of a session."""


def _handlers(plan: HookPlan) -> Sequence[HookHandler]:
    asks, may_deny = _command(plan), _command(plan, may_deny=True)
    return (
        HookHandler("SessionStart", asks),
        HookHandler("UserPromptSubmit", asks),
        HookHandler("PreToolUse", may_deny, "apply_patch|Edit|Write"),
        HookHandler("PreToolUse", may_deny, "Bash"),
        HookHandler("PostToolUse", asks),
        HookHandler("Stop", asks),
        HookHandler("SessionEnd", {**_command(plan, without="{}"), "timeout": _MAX_AT_END_S}),
    )


def _command(
    plan: HookPlan, *, may_deny: bool = False, without: str = json.dumps({"systemMessage": MISSING_SCRIPT})
) -> Mapping[str, Any]:
    return {
        "type": "command",
        "command": plan.command(may_deny=may_deny, without=without),
        "timeout": TIMEOUT_S,
    }


CODEX: Final = JsonHost(
    name="codex",
    title="Codex",
    project_file=".codex/hooks.json",
    user_folder=".codex",
    user_name="hooks.json",
    folder_variable="CODEX_HOME",
    make_handlers=_handlers,
    advice="Codex skips hooks that are not trusted: start `codex`, type /hooks and trust those of vox-mesh",
)
