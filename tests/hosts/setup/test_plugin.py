"""The plugin for Claude Code: made of the same sources as a setup, and as Claude Code wants it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.conftest import VoxCommand
from tests.support.running.repositories import GIT_SETTINGS, new_repository
from tools.claude_plugin import FOLDER, ROOT, plugin_files
from vox_mesh.hosts.setup.hook_plan import HookPlan
from vox_mesh.hosts.setup.hosts.claude import CLAUDE

_EVENTS: Final = {
    *("SessionStart", "SessionEnd", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolBatch"),
    *("PreCompact", "PostCompact", "Stop", "SubagentStart", "SubagentStop", "Notification"),
}
_HANDLER: Final = {"type", "command", "args", "timeout", "async", "asyncRewake", "if", "once", "onFailure"}
_MANIFEST: Final = {"name", "version", "description", "author", "license", "keywords"}
_TIMEOUT_S: Final = 60


def read(name: str) -> Any:
    """A JSON file of the plugin."""
    return json.loads((ROOT / FOLDER / name).read_text())


def test_the_plugin_in_the_repository_is_up_to_date() -> None:
    for name, text in plugin_files().items():
        assert (ROOT / name).read_text() == text, f"{name}: run `python -m tools.claude_plugin`"


def test_the_manifests_have_the_fields_that_the_host_knows() -> None:
    manifest = read(".claude-plugin/plugin.json")
    assert set(manifest) == _MANIFEST
    market = json.loads((ROOT / ".claude-plugin" / "marketplace.json").read_text())
    (listed,) = market["plugins"]
    assert (listed["name"], ROOT / listed["source"]) == (manifest["name"], ROOT / FOLDER)


def test_the_hooks_are_those_of_a_setup() -> None:
    hooks = read("hooks/hooks.json")["hooks"]
    assert set(hooks) <= _EVENTS
    plan = HookPlan("claude", Path("/a"), "python3")
    installed = json.loads(CLAUDE.put(None, plan))["hooks"]
    shape = [(event, group.get("matcher")) for event in hooks for group in hooks[event]]
    assert shape == [(event, group.get("matcher")) for event in installed for group in installed[event]]
    for groups in hooks.values():
        for handler in (each for group in groups for each in group["hooks"]):
            assert set(handler) <= _HANDLER
            script = handler["args"][0].replace("${CLAUDE_PLUGIN_ROOT}", str(ROOT / FOLDER))
            assert Path(script).is_file()


def test_claude_code_accepts_it() -> None:
    claude = shutil.which("claude")
    if claude is None:
        pytest.skip("Claude Code is not installed")
    for folder in (ROOT / FOLDER, ROOT):
        done = subprocess.run(
            [claude, "plugin", "validate", "--strict", str(folder)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def call(project: Path, event: dict[str, Any]) -> Any:
    """What the hook of the plugin answers in a project."""
    answer = subprocess.run(
        ["sh", str(ROOT / FOLDER / "hooks" / "run.sh")],
        input=json.dumps(event),
        env={"PATH": os.environ["PATH"], "CLAUDE_PROJECT_DIR": str(project), "HOME": str(project)},
        cwd=project,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=True,
    )
    return json.loads(answer.stdout)


def test_it_denies_an_edit_in_a_project_with_a_mesh_and_is_silent_in_others(tmp_path: Path) -> None:
    vox = VoxCommand(tmp_path / "project", **GIT_SETTINGS, HOME=str(tmp_path))
    new_repository(vox.folder, vox.environment)
    path = vox.folder / "app.py"
    event = {
        "session_id": "s",
        "cwd": str(vox.folder),
        "hook_event_name": "PreToolUse",
        "tool_name": "Write",
        "tool_input": {"file_path": str(path), "content": "x"},
    }
    assert call(vox.folder, event) == {}, "no mesh"
    vox("init")
    assert "locks not checked" in call(vox.folder, event)["systemMessage"], "no node"
    with vox.running("up") as node:
        while "node up" not in node.stderr.readline():
            assert node.poll() is None
        vox("lock", "acquire", "file:app.py", "--agent", "reviewer")
        denied = call(vox.folder, event)["hookSpecificOutput"]
    assert denied["permissionDecision"] == "deny"
    assert "reviewer" in denied["permissionDecisionReason"]
