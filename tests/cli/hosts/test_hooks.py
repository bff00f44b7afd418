"""Hooks of hosts, from their installation to a denied edit, with a real node and the installed command."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.conftest import VoxCommand
from tests.support.running.repositories import GIT_SETTINGS
from tools.forked import Process
from vox_mesh.hosts.setup.registry import HOSTS

_PATIENCE_S: Final = 60.0
_FILES: Final = {name: host.project_file for name, host in HOSTS.items()}


@pytest.fixture
def vox(tmp_path_factory: pytest.TempPathFactory) -> VoxCommand:
    """Commands in a repository with a mesh, at a path that is short enough for a socket."""
    folder = tmp_path_factory.mktemp("p")
    (folder / "home").mkdir()
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    (folder / ".git" / "info" / "exclude").write_text("# mine\n/home\n/.vox\n")
    command = VoxCommand(folder, HOME=str(folder / "home"), XDG_CONFIG_HOME=str(folder / "home" / "config"))
    command = command.having(**GIT_SETTINGS)
    assert command("init", "--no-recovery-key").code == 0
    return command


@contextmanager
def _node(vox: VoxCommand, **variables: str) -> Iterator[Process]:
    """A node that listens."""
    with vox.having(**variables).running("up") as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "node up: " in line)
        yield process


def _answer(vox: VoxCommand, host: str, *options: str) -> Any:
    """What the installed handler answers to a recorded event."""
    return vox("hooks", "test", host, *options, "--json").document["answer"]


def _denied(host: str, answer: dict[str, Any]) -> str | None:
    """The reason of a denial, as this host understands it."""
    match host:
        case "claude" | "codex":
            given = answer.get("hookSpecificOutput", {})
            is_denied, reason = (
                given.get("permissionDecision") == "deny",
                given.get("permissionDecisionReason"),
            )
        case "gemini":
            is_denied, reason = answer.get("decision") == "deny", answer.get("reason")
        case "cursor":
            is_denied, reason = answer.get("permission") == "deny", answer.get("agent_message")
        case "copilot":
            is_denied = answer.get("permissionDecision") == "deny"
            reason = answer.get("permissionDecisionReason")
        case _:
            is_denied, reason = "deny" in answer, answer.get("deny")
    return reason if is_denied else None


@pytest.mark.parametrize("host", sorted(HOSTS))
def test_an_edit_of_a_file_that_another_agent_holds_is_denied(vox: VoxCommand, host: str) -> None:
    assert vox("hooks", "install", host, "--agent", "coder").code == 0
    away = _answer(vox, host, "--path", "a.txt")
    assert _denied(host, away) is None, "fails open"
    assert "not checked" in json.dumps(away), "and says so"
    with _node(vox):
        assert vox("lock", "acquire", "file:a.txt", "--agent", "other").code == 0
        reason = _denied(host, _answer(vox, host, "--path", "a.txt"))
        assert reason is not None
        assert "other" in reason
        assert _denied(host, _answer(vox, host, "--path", "b.txt")) is None
        for event in ("session_start", "before_commit", "stop", "session_end"):
            assert _denied(host, _answer(vox, host, "--event", event)) is None
    assert vox("hooks", "install", host, "--agent", "coder", "--strict").code == 0
    assert _denied(host, _answer(vox, host, "--path", "a.txt")) is not None, "strict: fails closed"


@pytest.mark.parametrize("host", sorted(HOSTS))
def test_a_handler_whose_script_is_gone_still_answers(vox: VoxCommand, host: str) -> None:
    vox("hooks", "install", host)
    shutil.rmtree(vox.folder / ".vox" / "hooks")
    assert _denied(host, _answer(vox, host)) is None
    assert vox("hooks", "status", host, "--json").document[0]["state"] == "outdated"


@pytest.mark.parametrize("host", sorted(HOSTS))
def test_an_installation_leaves_no_trace_after_its_removal(vox: VoxCommand, host: str) -> None:
    before = (vox.folder / ".git" / "info" / "exclude").read_bytes()
    names = set(vox.folder.iterdir())
    assert vox("hooks", "install", host, "--json").document["changed"] is True
    assert vox("hooks", "install", host, "--json").document["changed"] is False
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=vox.folder, capture_output=True, text=True, check=True
    )
    assert status.stdout == "", "git does not see the file"
    assert (vox.folder / _FILES[host]).stat().st_mode & 0o777 == 0o600
    assert vox("hooks", "remove", host, "--json").document["changed"] is True
    assert vox("hooks", "remove", host, "--json").document["changed"] is False
    assert set(vox.folder.iterdir()) == names
    assert (vox.folder / ".git" / "info" / "exclude").read_bytes() == before


@pytest.mark.parametrize("host", sorted(HOSTS))
def test_hooks_of_the_user_are_in_the_users_configuration(vox: VoxCommand, host: str) -> None:
    installed = Path(vox("hooks", "install", host, "--user", "--json").document["file"])
    assert installed.is_relative_to(vox.folder / "home")
    assert "--project" not in installed.read_text()
    assert vox("hooks", "status", host, "--json").document[0]["scope"] == "user"
    assert vox("hooks", "remove", host, "--user", "--json").document["changed"] is True
    assert not installed.exists()


@pytest.mark.parametrize("host", sorted(HOSTS))
def test_a_test_says_what_the_answer_means(vox: VoxCommand, host: str) -> None:
    assert vox("hooks", "install", host, "--agent", "coder").code == 0
    away = vox("hooks", "test", host)
    assert away.code == 1
    assert "not checked" in away.out
    assert "vox-mesh up" in away.out, "and what to do"
    with _node(vox):
        free = vox("hooks", "test", host, "--json")
        assert (free.code, free.document["result"], free.document["agent"]) == (0, "allowed", "coder")
        held = vox("hooks", "test", host, "--held")
        assert held.code == 0
        assert "denied" in held.out
        assert 'lock of agent "vox-mesh-hooks-test"' in held.out
        assert vox("lock", "list", "--json").document == [], "it is released"
        started = vox("hooks", "test", host, "--event", "session_start", "--json").document
        assert started["result"] == "context"
        assert "coder" in started["text"]
        assert vox("lock", "acquire", "file:a.txt", "--agent", "coder").code == 0
        stopped = vox("hooks", "test", host, "--event", "stop", "--json").document
        assert stopped["result"] == "reminder"
        assert "a.txt" in stopped["text"]
    assert vox("hooks", "install", host, "--agent", "coder", "--strict").code == 0
    strict = vox("hooks", "test", host, "--json")
    assert (strict.code, strict.document["result"]) == (1, "denied")
    assert "must have 1 to 64 letters" in vox("hooks", "install", host, "--agent", "a b").error
    assert "--held needs" in vox("hooks", "test", host, "--held", "--event", "stop").error


def test_a_free_file_is_locked_before_the_edit_and_the_test_releases_it(vox: VoxCommand) -> None:
    vox("hooks", "install", "claude", "--agent", "coder", "--auto")
    with _node(vox):
        assert _denied("claude", _answer(vox, "claude", "--path", "a.txt")) is None
        assert vox("lock", "list", "--json").document == []


def test_a_repository_can_not_direct_the_hooks_to_a_file_outside_of_it(vox: VoxCommand) -> None:
    secret = vox.folder.parent / "secret.json"
    secret.write_text("{}")
    (vox.folder / ".claude").mkdir()
    (vox.folder / ".claude" / "settings.local.json").symlink_to(secret)
    ended = vox("hooks", "install", "claude")
    assert "must be in" in ended.error
    assert ended.code == 1
    assert secret.read_text() == "{}"


def test_a_file_that_git_tracks_is_left_unchanged(vox: VoxCommand) -> None:
    file = vox.folder / ".gemini" / "settings.json"
    file.parent.mkdir()
    file.write_text("{}")
    subprocess.run(["git", "add", "-f", file], cwd=vox.folder, check=True)
    assert "--user" in vox("hooks", "install", "gemini").error
    assert file.read_text() == "{}"


def test_a_file_that_can_not_be_parsed_is_refused_in_one_line(vox: VoxCommand) -> None:
    file = vox.folder / ".cursor" / "hooks.json"
    file.parent.mkdir()
    file.write_text('{"hooks": {')
    for command in ("install", "remove", "test"):
        assert "line 1" in vox("hooks", command, "cursor").error
    assert file.read_text() == '{"hooks": {'
    assert vox("hooks", "status", "cursor", "--json").document[0]["state"] == "unreadable"


def test_the_state_names_the_first_reason_why_hooks_do_not_work(vox: VoxCommand) -> None:
    def state() -> str:
        found: str = vox("hooks", "status", "codex", "--json").document[0]["state"]
        return found

    assert state() == "not installed"
    vox("hooks", "install", "codex")
    assert state() == "not trusted"
    config = vox.folder / "home" / ".codex" / "config.toml"
    config.parent.mkdir()
    key = f"{(vox.folder / '.codex' / 'hooks.json').resolve()}:pre_tool_use:0:0"
    config.write_text(f'[hooks.state."{key}"]\ntrusted_hash = "sha256:00"\n')
    assert state() == "node not answering"
    with _node(vox):
        assert state() == "installed"
        script = vox.folder / ".vox" / "hooks" / "vox_mesh_hook.py"
        script.write_text(script.read_text() + "# changed\n")
        assert state() == "outdated"
        vox("hooks", "install", "codex")
        assert state() == "installed"
    assert vox("hooks", "status").code == 1


def test_a_node_with_a_fixed_address_is_called_over_http(vox: VoxCommand, unused_tcp_port: int) -> None:
    at = vox.having(VOX_MESH_BIND=f"127.0.0.1:{unused_tcp_port}")
    with _node(at):
        assert vox("lock", "acquire", "file:a.txt", "--agent", "other").code == 0
        vox("agents", "init", "coder")
        assert vox("agents", "admit", "coder").code == 0
        assert vox("grant", "issue", "coder", "coder", "--lasts", "1h").code == 0
        token = vox("agents", "token", "issue", "coder", "--json").document["token"]
        agent = at.having(VOX_AGENT_TOKEN=token)
        assert agent("hooks", "install", "claude").code == 0
        text = (vox.folder / ".claude" / "settings.local.json").read_text()
        assert token not in text
        shown = agent("hooks", "test", "claude", "--path", "a.txt", "--json").document
        assert shown["handler"] == "http"
        assert _denied("claude", shown["answer"]) is not None
    assert "did not answer" in agent("hooks", "test", "claude").error


def test_no_token_of_the_mesh_is_written_anywhere(vox: VoxCommand) -> None:
    secret = "a-token-of-the-mesh-that-is-secret"
    having = vox.having(VOX_MESH_TOKEN=secret, VOX_AGENT_TOKEN="a-token-of-an-agent")
    for host, file in _FILES.items():
        assert having("hooks", "install", host).code == 0
        assert secret not in (vox.folder / file).read_text()
        assert "a-token-of-an-agent" not in (vox.folder / file).read_text()


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_plugin_of_opencode_denies_an_edit_and_adds_context(vox: VoxCommand) -> None:
    vox("hooks", "install", "opencode", "--agent", "coder")
    plugin = vox.folder / _FILES["opencode"]
    program = f"""
        const {{ VoxMesh }} = await import({json.dumps(plugin.as_uri())})
        const client = {{ app: {{ log: async ({{ body }}) => console.log("note", body.message) }} }}
        const hooks = await VoxMesh({{ client, directory: {json.dumps(str(vox.folder))} }})
        const input = {{ tool: "write", sessionID: "s", callID: "c" }}
        for (const name of ["a.txt", "b.txt"]) {{
          const args = {{ filePath: {json.dumps(str(vox.folder))} + "/" + name, content: "x" }}
          try {{ await hooks["tool.execute.before"](input, {{ args }}); console.log("allowed", name) }}
          catch (error) {{ console.log("denied", name, error.message.includes("other")) }}
        }}
        await hooks.event({{ event: {{ type: "session.created", properties: {{ info: {{ id: "s" }} }} }} }})
        const output = {{ parts: [{{ type: "text", text: "hello" }}] }}
        await hooks["chat.message"]({{ sessionID: "s" }}, output)
        console.log("context", output.parts[0].text.startsWith("hello\\n\\n"))
    """

    def run() -> list[str]:
        done = subprocess.run(
            ["node", "--input-type=module", "--eval", program],
            cwd=vox.folder,
            env=vox.environment,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    with _node(vox):
        assert vox("lock", "acquire", "file:a.txt", "--agent", "other").code == 0
        assert run() == ["denied a.txt true", "allowed b.txt", "context true"]
    away = run()
    assert "allowed a.txt" in away
    assert any(line.startswith("note vox-mesh: locks not checked") for line in away)


def test_a_handler_that_came_with_a_repository_is_never_called(vox: VoxCommand, unused_tcp_port: int) -> None:
    file, sign = vox.folder / _FILES["claude"], vox.folder / "sign"
    assert vox("hooks", "install", "claude", "--agent", "coder").code == 0
    installed = file.read_text()
    script = str(vox.folder / ".vox" / "hooks" / "vox_mesh_hook.py")
    shell = {"type": "command", "command": f"touch {sign} # vox_mesh_hook.py"}
    direct = {"type": "command", "command": "touch", "args": [str(sign), f"{sign}-vox_mesh_hook.py"]}
    url = f"http://127.0.0.1:{unused_tcp_port}/v1/hooks/claude?secret=$HOME"
    for hostile in (
        json.dumps({"hooks": {"PreToolUse": [{"hooks": [shell]}]}}),
        json.dumps({"hooks": {"PreToolUse": [{"hooks": [direct]}]}}),
        json.dumps({"hooks": {"PreToolUse": [{"hooks": [{"type": "http", "url": url}]}]}}),
        installed.replace(script, str(vox.folder / "vox_mesh_hook.py")),
        installed.replace(" -IS ", " -E "),
        re.sub(r'"[^" ]*/python[^" ]* ', f'"{vox.folder / "program"} ', installed),
        installed.replace(" || echo", f"; touch {sign}; echo"),
    ):
        assert hostile != installed
        for program in ("vox_mesh_hook.py", "program"):
            (vox.folder / program).write_text(f"#!/bin/sh\ntouch {sign}\n")
            (vox.folder / program).chmod(0o755)
        file.write_text(hostile)
        said = vox("hooks", "test", "claude")
        assert said.code != 0, hostile
        assert "hook_failed" in said.error, said.error
        assert not sign.exists(), hostile
    file.write_text(installed)
    assert vox("hooks", "test", "claude", "--json").document["result"] == "not checked"
