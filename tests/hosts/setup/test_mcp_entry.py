"""The entry of the MCP server: put into the files of every host, and taken out byte for byte."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from vox_mesh.hosts.hooks.script.vox_mesh_hook import HOSTS as UNDERSTOOD
from vox_mesh.hosts.setup.documents.errors import DocumentRefused
from vox_mesh.hosts.setup.file_part import FilePart, SetupState
from vox_mesh.hosts.setup.host_paths import HOSTS
from vox_mesh.hosts.setup.mcp_entry import McpPlan, configured_agent
from vox_mesh.hosts.setup.registry import HOSTS as HOOK_HOSTS

_HOME: Final = Path("/a b/.vox")
_FOREIGN_JSON: Final = (
    "{}",
    "{ }\n",
    '{"mcpServers": {}}',
    '// mine\n{\n\t"mcpServers": {\n\t\t"other": {"args": []}, // kept\n\t},\n\t"servers": {"a": {}},\r\n}\n',
    '{"mcp": {"b": 1}, "servers": {}, "mcpServers": {"c": [1, 2]}}',
)
_FOREIGN_TOML: Final = (
    "",
    "\n",
    'model = "o"',
    "# mine\n[mcp_servers.other]\ncommand = 'x'\n",
    "[a]\r\nb = 1\r\n",
)


def parts(host: str, base: Path, *, agent: str = "coder", for_user: bool = False) -> list[FilePart]:
    """The entries of a host."""
    return McpPlan(host, agent, _HOME, base, for_user).parts()


def variables(part: FilePart) -> dict[str, str]:
    """The variables of the server, as a session without a name of its own has them."""
    read = entry(part)
    found: dict[str, str] = read.get("env") or read["environment"]
    return {name: re.sub(r"\$\{VOX_AGENT_ID:-(\w+)\}", r"\1", value) for name, value in found.items()}


def expected(agent: str, *, for_user: bool = False) -> dict[str, str]:
    """The variables that a server needs."""
    own = {"VOX_AGENT_ID": agent}
    return own if for_user else {**own, "VOX_MESH_HOME": str(_HOME)}


def entry(part: FilePart) -> Any:
    """The entry as the host reads it."""
    text = part.file.path.read_text()
    document = tomllib.loads(text) if part.file.path.suffix == ".toml" else json.loads(text)
    (place,) = (name for name in ("mcpServers", "mcp_servers", "mcp", "servers") if name in document)
    return document[place]["vox-mesh"]


@pytest.mark.parametrize("for_user", [False, True])
@pytest.mark.parametrize("host", HOSTS)
def test_a_new_file_has_the_entry_and_is_removed_with_its_folders(
    host: str, for_user: bool, tmp_path: Path
) -> None:
    for part in parts(host, tmp_path, for_user=for_user):
        assert part.check() is SetupState.MISSING
        assert part.apply() is SetupState.ADDED
        read = entry(part)
        assert variables(part) == expected("coder", for_user=for_user)
        command = read["command"] if isinstance(read["command"], list) else [read["command"], *read["args"]]
        assert command[0].endswith("vox-mesh")
        assert command[1:] == ["mcp"]
        assert (part.check(), part.apply()) == (SetupState.PRESENT, SetupState.UNCHANGED)
    assert configured_agent(host, tmp_path, for_user=for_user) == "coder"
    assert {part.remove() for part in parts(host, tmp_path, for_user=for_user)} == {SetupState.REMOVED}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", HOSTS)
def test_a_file_of_the_user_is_restored_byte_for_byte(host: str, tmp_path: Path) -> None:
    for number, part in enumerate(parts(host, tmp_path)):
        texts = _FOREIGN_TOML if part.file.path.suffix == ".toml" else _FOREIGN_JSON
        for text in texts:
            part.file.path.parent.mkdir(parents=True, exist_ok=True)
            part.file.path.write_bytes(text.encode())
            assert part.apply() is SetupState.ADDED, (number, text)
            assert part.file.path.read_bytes() != text.encode()
            assert part.remove() is SetupState.REMOVED
            assert part.file.path.read_bytes() == text.encode()


@pytest.mark.parametrize("host", HOSTS)
def test_an_entry_of_an_earlier_setup_is_replaced_and_not_doubled(host: str, tmp_path: Path) -> None:
    for part in parts(host, tmp_path, agent="before"):
        part.apply()
    for part in parts(host, tmp_path):
        assert part.check() is SetupState.OUTDATED
        assert part.apply() is SetupState.UPDATED
        assert variables(part) == expected("coder")
        assert part.remove() is SetupState.REMOVED
    assert list(tmp_path.iterdir()) == []


def test_an_entry_that_the_user_has_formatted_stays_so(tmp_path: Path) -> None:
    (part,) = parts("claude", tmp_path)
    part.apply()
    formatted = json.dumps(json.loads(part.file.path.read_text()), indent=7)
    part.file.path.write_text(formatted)
    assert (part.check(), part.apply()) == (SetupState.PRESENT, SetupState.UNCHANGED)
    assert part.file.path.read_text() == formatted


def test_a_table_of_the_same_name_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (part,) = parts("codex", tmp_path)
    text = "[mcp_servers.vox-mesh]\ncommand = 'mine'\n"
    part.file.path.parent.mkdir()
    part.file.path.write_text(text)
    with pytest.raises(DocumentRefused, match="can't be added"):
        part.apply()
    assert part.file.path.read_text() == text


def test_no_file_holds_a_token(tmp_path: Path) -> None:
    for host in HOSTS:
        for part in parts(host, tmp_path):
            part.apply()
            text = part.file.path.read_text()
            assert "VOX_MESH_TOKEN" not in text
            assert "vxa1." not in text


@pytest.mark.parametrize("host", HOSTS)
def test_git_ignores_a_file_with_paths_of_this_machine_and_a_tracked_one_gets_none(
    host: str, tmp_path: Path
) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    exclude = tmp_path / ".git" / "info" / "exclude"
    before = exclude.read_bytes() if exclude.exists() else None
    for part in parts(host, tmp_path):
        part.apply()
    status = ["git", "status", "--porcelain"]
    assert subprocess.check_output(status, cwd=tmp_path) == b""
    for part in parts(host, tmp_path):
        part.remove()
    assert (exclude.read_bytes() if exclude.exists() else None) == before
    for part in parts(host, tmp_path):
        part.file.path.parent.mkdir(exist_ok=True)
        part.file.path.write_text("" if host == "codex" else "{}")
    subprocess.run(["git", "add", "--all"], cwd=tmp_path, check=True)
    for part in parts(host, tmp_path):
        part.apply()
        assert variables(part) == {"VOX_AGENT_ID": "coder"}
        assert "/" not in str(entry(part)["command"])


def test_every_host_with_hooks_can_be_set_up() -> None:
    assert set(HOSTS) == set(HOOK_HOSTS) == set(UNDERSTOOD)
