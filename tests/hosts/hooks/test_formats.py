"""The forms of hosts: every recorded event is understood, and every answer is one that its host reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.hosts.hooks.hosts import HOSTS, RECORDED, SESSION, Host, payload
from vox_mesh.hosts.hooks.decisions import NOTHING, HookDecision
from vox_mesh.hosts.hooks.engine import FORMATS
from vox_mesh.hosts.hooks.events import EventKind, HookEvent
from vox_mesh.hosts.hooks.patches import patched_paths
from vox_mesh.hosts.hooks.tools import tool_use

PROJECT: Final = Path("/repo")
KINDS: Final = {
    "session_start": EventKind.SESSION_START,
    "compact": EventKind.SESSION_START,
    "prompt": EventKind.PROMPT,
    "before_shell": EventKind.BEFORE_SHELL,
    "after_tool": EventKind.AFTER_TOOL,
    "stop": EventKind.STOP,
    "stop_again": EventKind.STOP,
    "session_end": EventKind.SESSION_END,
}


def _parsed(host: str, event: str) -> HookEvent:
    raw = payload(host, event, PROJECT, file="/repo/a b.py", command="git commit")
    found: HookEvent = FORMATS[host].parse(raw)
    return found


def test_every_host_has_recorded_events_of_each_kind() -> None:
    for host in HOSTS:
        assert {event for of, event in RECORDED if of == host} >= {*KINDS} - {"compact"} | {"before_edit"}


@pytest.mark.parametrize(("host", "event"), RECORDED, ids="-".join)
def test_a_recorded_event_is_understood(host: str, event: str) -> None:
    found = _parsed(host, event)
    known = [kind for name, kind in KINDS.items() if event.startswith(name)]
    assert found.kind is (known[-1] if known else EventKind.BEFORE_EDIT)
    assert found.session_id == SESSION
    assert found.cwd == str(PROJECT)
    assert found.paths == (("/repo/a b.py",) if found.kind is EventKind.BEFORE_EDIT else ())
    assert found.command == ("git commit" if found.kind is EventKind.BEFORE_SHELL else "")
    assert found.is_reminded is (event == "stop_again")


def test_a_decision_is_said_where_the_host_reads_it_and_nowhere_else(host: Host) -> None:
    everything = HookDecision(denied="no", context="facts", note="note", stays="wait")
    before = FORMATS[host.name].render(_parsed(host.name, "before_edit"), everything)
    assert host.denied(before) == "no"
    start = FORMATS[host.name].render(_parsed(host.name, "session_start"), HookDecision(context="facts"))
    assert host.context(start) == "facts"
    stop = FORMATS[host.name].render(_parsed(host.name, "stop"), HookDecision(stays="wait"))
    assert host.stays(stop) == "wait"
    noted = FORMATS[host.name].render(_parsed(host.name, "before_edit"), HookDecision(note="note"))
    assert host.note(noted) == "note"
    assert not host.denied(noted)
    for event in KINDS:
        if (host.name, event) in RECORDED:
            assert FORMATS[host.name].render(_parsed(host.name, event), NOTHING) == {}
            only_denied = FORMATS[host.name].render(_parsed(host.name, event), HookDecision(denied="no"))
            assert host.denied(only_denied) == ("no" if event == "before_shell" else "")


def test_codex_is_answered_nothing_that_fails_open() -> None:
    for event in ("before_edit", "before_shell"):
        for decision in (NOTHING, HookDecision(context="facts"), HookDecision(note="note")):
            answer = FORMATS["codex"].render(_parsed("codex", event), decision)
            assert "permissionDecision" not in answer.get("hookSpecificOutput", {})
    assert FORMATS["codex"].render(_parsed("codex", "session_end"), HookDecision(note="note")) == {}


@pytest.mark.parametrize("host", list(HOSTS))
@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"hook_event_name": 5, "session_id": [], "cwd": {}, "tool_input": 7, "stop_hook_active": "yes"},
        {"hook_event_name": "PreToolUse", "tool_name": "Edit", "tool_input": ["x"]},
        {"hook_event_name": "BeforeTool", "tool_name": "replace", "tool_input": None},
        {"hook_event_name": "preToolUse", "tool_name": "Write", "workspace_roots": [1], "loop_count": "x"},
        {"toolName": "edit", "toolArgs": "{not json"},
        {"hook": "tool.execute.before", "input": {"tool": "edit"}, "output": {"args": "x"}},
        {"hook": "event", "event": {"type": "session.created", "properties": {"info": 3}}},
    ],
)
def test_no_event_of_another_shape_leads_to_a_bug(host: str, raw: dict[str, Any]) -> None:
    event = FORMATS[host].parse(raw)
    assert event.paths == ()
    FORMATS[host].render(event, HookDecision(denied="no", context="facts", note="note", stays="wait"))


def test_a_patch_names_all_files_that_it_changes() -> None:
    patch = (
        "*** Begin Patch\n*** Add File: new.py\n+x\n*** Update File: old name.py\n*** Move to: moved.py\n@@\n"
        "-*** Delete File: quoted.py\n*** Delete File: gone.py\r\n*** Update File: new.py\n*** End Patch\n"
    )
    assert patched_paths(patch) == ["new.py", "old name.py", "moved.py", "gone.py"]
    heredoc = f"cd sub && apply_patch <<'EOF'\n{patch}EOF"
    assert tool_use("Bash", {"command": heredoc}).paths == ("new.py", "old name.py", "moved.py", "gone.py")
    assert tool_use("shell", {"command": ["bash", "-lc", heredoc]}).kind is EventKind.BEFORE_EDIT


def test_a_tool_counts_by_what_it_does() -> None:
    assert tool_use("mcp__files__write_file", {"path": "a"}).paths == ("a",)
    assert tool_use("editFiles", {"files": ["a", "b", 3]}).paths == ("a", "b")
    assert tool_use("str_replace_editor", {"command": "view", "path": "a"}).kind is EventKind.OTHER
    assert tool_use("Read", {"file_path": "a"}).kind is EventKind.OTHER
    assert tool_use("local_shell", {"command": ["git", "commit"], "workdir": "/x"}).command == "git commit"
    assert tool_use("local_shell", {"command": ["git", "commit"], "workdir": "/x"}).folder == "/x"
