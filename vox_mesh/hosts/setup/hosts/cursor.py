"""Cursor: hooks by command, without groups."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from vox_mesh.hosts.setup.hook_handlers import HandlerLayout, HookHandler
from vox_mesh.hosts.setup.hook_plan import MISSING_SCRIPT, HookPlan
from vox_mesh.hosts.setup.hosts.host import TIMEOUT_S, JsonHost


def _handlers(plan: HookPlan) -> Sequence[HookHandler]:
    asks, may_deny = _command(plan), _command(plan, may_deny=True)
    return (
        HookHandler("sessionStart", asks),
        HookHandler("beforeSubmitPrompt", asks),
        HookHandler("preToolUse", may_deny, "Write|Edit|StrReplace|MultiEdit|EditNotebook|ApplyPatch|Delete"),
        HookHandler("beforeShellExecution", may_deny, "git"),
        HookHandler("postToolUse", asks),
        HookHandler("stop", asks),
        HookHandler("sessionEnd", asks),
    )


def _command(plan: HookPlan, *, may_deny: bool = False) -> Mapping[str, Any]:
    without = json.dumps({"permission": "allow", "user_message": MISSING_SCRIPT}) if may_deny else "{}"
    strict = {"failClosed": True} if may_deny and plan.strict else {}
    command = plan.command(may_deny=may_deny, without=without)
    return {"command": command, "timeout": TIMEOUT_S, **strict}


CURSOR: Final = JsonHost(
    name="cursor",
    title="Cursor",
    project_file=".cursor/hooks.json",
    user_folder=".cursor",
    user_name="hooks.json",
    layout=HandlerLayout(is_grouped=False, made_with={"version": 1}),
    make_handlers=_handlers,
    advice="Cursor runs hooks of a project only in a workspace that you trust",
)
