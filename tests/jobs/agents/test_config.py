"""The file of agents: what it may say, and who may have written it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs.agent_jobs import agent_config, write_agents
from vox_mesh.errors import BadSettings, MeshError
from vox_mesh.jobs.agents.config import BadAgents, PermissionDecision, read_agents


def test_kinds_are_those_of_the_names_and_a_single_agent_is_the_default(tmp_path: Path) -> None:
    path = tmp_path / "agents.yaml"
    one = write_agents(path, coder=agent_config(tmp_path))
    assert {kind: name for kind, (name, _) in one.by_kind.items()} == {
        "agent": "coder",
        "agent.coder": "coder",
    }
    two = write_agents(path, coder=agent_config(tmp_path), tester=agent_config(tmp_path))
    assert sorted(two.by_kind) == ["agent.coder", "agent.tester"]
    path.write_text(path.read_text() + "default: tester\n")
    assert read_agents(path).by_kind["agent"][0] == "tester"


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"command": []}, "command"),
        ({"command": "claude"}, "must be an array"),
        ({"mode": "shell"}, "mode"),
        ({"folder": "relative"}, "must be an absolute path"),
        ({"repositories": ["../x"]}, "must be an absolute path"),
        ({"env": ["VOX_MESH_TOKEN"]}, "does not begin with VOX_"),
        ({"variables": {"LD_PRELOAD": "x"}}, "does not begin with VOX_"),
        ({"secrets": ["VOX_DB_TOKEN"]}, "can't be given to jobs"),
        ({"allow": ["everything"]}, "allow"),
        ({"allow": ["read"], "deny": ["read"]}, "read must be in allow or in deny"),
        ({"timeout": "soon"}, "timeout"),
        ({"shell": True}, "shell"),
        ({"mesh": {"agent_id": "mesh", "token_file": "/t", "node": "unix:/s"}}, "agent_id"),
    ],
)
def test_a_file_with_faults_is_refused_with_the_line_of_each(
    tmp_path: Path, fields: dict[str, Any], fault: str
) -> None:
    with pytest.raises(BadAgents, match=fault) as caught:
        write_agents(tmp_path / "agents.yaml", coder=agent_config(tmp_path, **fields))
    assert str(tmp_path / "agents.yaml") in str(caught.value)


def test_a_file_that_others_could_have_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agents.yaml"
    write_agents(path, coder=agent_config(tmp_path))
    path.chmod(0o666)
    with pytest.raises(BadSettings, match="can be written by other users"):
        read_agents(path)


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(MeshError, match="VOX_WORKER_AGENTS"):
        read_agents(tmp_path / name)


def test_a_denial_counts_before_all_else(tmp_path: Path) -> None:
    fields = {"allow": ["read"], "deny": ["delete"], "otherwise": "allow"}
    agents = write_agents(tmp_path / "agents.yaml", coder=agent_config(tmp_path, **fields))
    config = agents.agents["coder"]
    decided = [config.decision_for(kind) for kind in ("read", "delete", "execute", "unheard of")]
    allowed, denied = PermissionDecision.ALLOW, PermissionDecision.DENY
    assert decided == [allowed, denied, allowed, allowed]
