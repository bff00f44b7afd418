"""Handlers are merged one by one: those of others stay, ours are replaced, and leave without a trace."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.setup.jsonc import DOCUMENTS
from vox_mesh.hosts.hooks.script.vox_mesh_hook import BEFORE
from vox_mesh.hosts.setup.documents.errors import DocumentRefused
from vox_mesh.hosts.setup.documents.json_document import JsonDocument
from vox_mesh.hosts.setup.hook_plan import MISSING_SCRIPT, HookPlan
from vox_mesh.hosts.setup.hook_verdict import HookResult, verdict_on
from vox_mesh.hosts.setup.hosts.host import HookHost
from vox_mesh.hosts.setup.registry import HOSTS

_PLAN = HookPlan(
    host="claude",
    home=Path("/srv/project/.vox"),
    python="/usr/bin/python3",
    project=Path("/srv/project"),
)
_OTHER = replace(_PLAN, auto=True, agent="coder", home=Path("/srv/it's $HOME/.vox"))


@pytest.fixture(params=sorted(HOSTS))
def host(request: pytest.FixtureRequest) -> HookHost:
    """Each of the hosts."""
    return HOSTS[request.param]


@given(st.sampled_from(sorted(HOSTS)), DOCUMENTS)
def test_a_removal_restores_any_document_byte_for_byte(name: str, text: str) -> None:
    host = HOSTS[name]
    try:
        installed = host.put(text, _PLAN)
    except DocumentRefused:
        return
    assert host.put(installed, _PLAN) == installed, "a second installation changes nothing"
    assert host.take(installed) == text
    updated = host.put(installed, _OTHER)
    assert updated != installed
    assert host.take(updated) == text, "an update, too"


def test_a_file_that_was_made_for_the_hooks_is_gone_with_them(host: HookHost) -> None:
    installed = host.put(None, _PLAN)
    assert host.take(installed) is None
    assert host.take(host.put(installed, _OTHER)) is None


@pytest.mark.parametrize("is_strict", [False, True])
def test_every_installed_command_says_what_was_asked_for(host: HookHost, is_strict: bool) -> None:
    plan = replace(_OTHER, host=host.name, strict=is_strict)
    calls = host.calls(host.put(None, plan))
    assert calls
    assert {HookPlan.of_command(call.command) for call in calls if "--wait" not in call.command} == {plan}


@pytest.mark.parametrize("command", ["", "'", "vox_mesh_hook.py", "python3 -IS vox_mesh_hook.py"])
def test_a_command_of_another_form_is_no_plan(command: str) -> None:
    assert HookPlan.of_command(command) is None


@pytest.mark.parametrize("missing", ["script", "interpreter"])
def test_a_handler_without_its_script_or_interpreter_answers_with_json_and_0(
    host: HookHost, missing: str, tmp_path: Path
) -> None:
    python = sys.executable if missing == "script" else str(tmp_path / "python3")
    plan = HookPlan(host.name, tmp_path, python)
    for call in host.calls(host.put(None, plan)):
        if "--wait" not in call.command:
            assert not _is_denied(_answer(call.command))


@pytest.mark.parametrize("missing", ["script", "interpreter"])
def test_a_strict_handler_without_its_script_or_interpreter_denies_in_the_form_of_its_host(
    host: HookHost, missing: str, tmp_path: Path
) -> None:
    python = sys.executable if missing == "script" else str(tmp_path / "python3")
    installed = host.calls(host.put(None, HookPlan(host.name, tmp_path, python, strict=True)))
    calls = [call for call in installed if "--wait" not in call.command]
    denied = {call.event for call in calls if _is_denied(_answer(call.command))}
    # The plugin of opencode runs one command, and stops nothing but what is about to be done.
    before = {call.event for call in calls if call.event in BEFORE or host.name == "opencode"}
    assert denied == before != set()


def _answer(command: str) -> dict[str, Any]:
    ended = subprocess.run(["/bin/sh", "-c", command], input=b"{}", capture_output=True, timeout=60)
    assert ended.returncode == 0
    found = json.loads(ended.stdout)
    assert isinstance(found, dict)
    return found


def _is_denied(answer: dict[str, Any]) -> bool:
    verdict = verdict_on("before_edit", answer, is_node_up=False)
    return verdict.result is HookResult.DENIED and verdict.text == MISSING_SCRIPT


def test_what_the_user_changes_meanwhile_stays() -> None:
    claude = HOSTS["claude"]
    document = JsonDocument(claude.put('{\n  "model": "opus" // mine\n}\n', _PLAN))
    mine: dict[str, Any] = {"type": "command", "command": "make lint"}
    document = document.with_element(("hooks", "PreToolUse"), {"matcher": "Bash", "hooks": [mine]})
    document = document.with_member(("env",), {"A": "1"})
    left = claude.take(document.text)
    assert left is not None
    assert "// mine" in left
    assert JsonDocument(left).value == {
        "model": "opus",
        "hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [mine]}]},
        "env": {"A": "1"},
    }


def test_a_handler_that_the_user_adds_to_a_group_of_ours_stays() -> None:
    claude = HOSTS["claude"]
    value = JsonDocument(claude.put(None, _PLAN)).value
    value["hooks"]["Stop"][0]["hooks"].insert(0, {"type": "command", "command": "notify-send done"})
    left = claude.take(json.dumps(value, indent=2))
    assert left is not None
    assert json.loads(left) == {
        "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "notify-send done"}]}]}
    }


def test_handlers_of_others_are_not_taken_for_ours() -> None:
    claude = HOSTS["claude"]
    text = '{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "vox-mesh status"}]}, 5], "X": 1}}'
    assert claude.calls(text) == []
    assert claude.take(text) == text
