"""The handlers of Claude Code."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from vox_mesh.hosts.setup.hook_plan import MISSING_SCRIPT, HookPlan
from vox_mesh.hosts.setup.installer import install_script
from vox_mesh.hosts.setup.registry import HOSTS

_PLAN = HookPlan("claude", Path("/p/.vox"), "/usr/bin/python3", Path("/p"))


def test_a_node_with_a_fixed_address_is_asked_over_http_where_the_host_can() -> None:
    hooks = json.loads(HOSTS["claude"].put(None, replace(_PLAN, address="http://127.0.0.1:7400")))["hooks"]
    edit = hooks["PreToolUse"][0]["hooks"][0]
    assert edit["url"] == "http://127.0.0.1:7400/v1/hooks/claude?project=%2Fp"
    assert edit["headers"] == {"Authorization": "Bearer $VOX_AGENT_TOKEN"}
    assert edit["allowedEnvVars"] == ["VOX_AGENT_TOKEN"]
    for event in ("SessionStart", "Stop", "SessionEnd"):  # HTTP is not supported, or the script reads a file
        assert {handler["type"] for group in hooks[event] for handler in group["hooks"]} == {"command"}


def test_a_strict_hook_is_a_command_since_http_fails_open() -> None:
    plan = replace(_PLAN, address="http://127.0.0.1:7400", strict=True)
    assert "http://" not in HOSTS["claude"].put(None, plan)


def test_a_strict_hook_that_ends_without_an_answer_denies_edits_and_commits_only() -> None:
    hooks = json.loads(HOSTS["claude"].put(None, replace(_PLAN, strict=True)))["hooks"]
    blocking = {
        (event, group.get("matcher"))
        for event, groups in hooks.items()
        for group in groups
        if group["hooks"][0].get("onFailure") == "block"
    }
    assert blocking == {("PreToolUse", group["matcher"]) for group in hooks["PreToolUse"]}
    assert "onFailure" not in HOSTS["claude"].put(None, _PLAN)


def test_only_the_waiter_at_stop_runs_in_the_background() -> None:
    hooks = json.loads(HOSTS["claude"].put(None, _PLAN))["hooks"]
    waking = {
        event for event, groups in hooks.items() for each in groups if "asyncRewake" in each["hooks"][0]
    }
    assert waking == {"Stop"}
    assert [group["hooks"][0].get("asyncRewake") for group in hooks["Stop"]] == [None, True]


def test_a_handler_is_a_short_line_that_a_person_can_read() -> None:
    hooks = json.loads(HOSTS["claude"].put(None, replace(_PLAN, agent="coder")))["hooks"]
    edit = hooks["PreToolUse"][0]["hooks"][0]
    call, _, without = edit["command"].partition(" || echo ")
    script = "/p/.vox/hooks/vox_mesh_hook.py"
    assert call == f"/usr/bin/python3 -IS {script} claude --agent coder --project /p"
    assert without == f"'{json.dumps({'systemMessage': MISSING_SCRIPT})}'"


def test_the_waiter_ends_at_once_where_the_host_would_wait_for_it(tmp_path: Path) -> None:
    plan = HookPlan("claude", tmp_path, sys.executable)
    install_script(plan.script)
    assert _wait(plan, CLAUDE_CODE_ENTRYPOINT="sdk-cli") == (0, b"{}\n")


def test_a_waiter_whose_script_is_gone_wakes_no_agent(tmp_path: Path) -> None:
    assert _wait(HookPlan("claude", tmp_path, sys.executable)) == (0, b"")


def _wait(plan: HookPlan, **variables: str) -> tuple[int, bytes]:
    hooks = json.loads(HOSTS["claude"].put(None, plan))["hooks"]
    ended = subprocess.run(
        ["/bin/sh", "-c", hooks["Stop"][1]["hooks"][0]["command"]],
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    return ended.returncode, ended.stdout
