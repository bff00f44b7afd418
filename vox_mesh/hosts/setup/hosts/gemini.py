"""Gemini CLI: hooks by command, with timeouts in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from vox_mesh.hosts.setup.hook_handlers import HookHandler
from vox_mesh.hosts.setup.hook_plan import MISSING_SCRIPT, HookPlan
from vox_mesh.hosts.setup.hosts.host import TIMEOUT_S, JsonHost


def _handlers(plan: HookPlan) -> Sequence[HookHandler]:
    asks, may_deny = _command(plan), _command(plan, may_deny=True)
    return (
        HookHandler("SessionStart", asks),
        HookHandler("BeforeAgent", asks),
        HookHandler("BeforeTool", may_deny, "write_file|replace"),
        HookHandler("BeforeTool", may_deny, "run_shell_command"),
        HookHandler("AfterTool", asks),
        HookHandler("AfterAgent", asks),
        HookHandler("SessionEnd", asks),
    )


def _command(plan: HookPlan, *, may_deny: bool = False) -> Mapping[str, Any]:
    without = json.dumps({"systemMessage": MISSING_SCRIPT})
    return {
        "name": "vox-mesh",
        "type": "command",
        "command": plan.command(may_deny=may_deny, without=without),
        "timeout": TIMEOUT_S * 1_000,
    }


GEMINI: Final = JsonHost(
    name="gemini",
    title="Gemini CLI",
    project_file=".gemini/settings.json",
    user_folder=".gemini",
    user_name="settings.json",
    make_handlers=_handlers,
    advice="Gemini CLI reads settings of trusted folders only, and warns once of new hooks of a project",
)
