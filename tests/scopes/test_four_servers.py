"""One process serves scopes on four real servers, and one command sees all of them."""

from __future__ import annotations

import json
from typing import Any

from tests.scopes.conftest import SCOPES
from tools.fork_server import Program
from tools.forked import Process
from tools.homes import environment
from tools.sqld import Server
from vox_mesh import Settings
from vox_mesh.cli.node.served_scopes import open_nodes
from vox_mesh.runtime.scopes import settings_of_scopes

_PATIENCE_S = 60.0


def _asked(settings: Settings, *arguments: str) -> Any:
    """What a command prints as JSON."""
    program = Program((*arguments, "--json"), environment(settings), module="vox_mesh.cli")
    with Process(program) as process:
        out, err = process.communicate(_PATIENCE_S)
    assert process.returncode == 0, err
    return json.loads(out)


async def test_one_process_serves_four_servers_and_one_command_sees_all(
    on_servers: Settings, servers: dict[str, Server]
) -> None:
    async with open_nodes(settings_of_scopes(on_servers, SCOPES)) as meshes:
        names = {mesh.store.mesh_id[0]: mesh.identity.node_id for mesh in meshes}
        assert list(names) == list(SCOPES)
        async with meshes[1].locks.hold("task:deploy", agent="ada"):
            assert await meshes[0].locks.holders() == []  # another database
            seen = _asked(on_servers, "lock", "list", "--all-scopes")
            assert [(each["scope"], len(each["records"])) for each in seen] == [
                (scope, int(scope == "east")) for scope in SCOPES
            ]
        found = _asked(on_servers, "nodes", "--all-scopes")
        assert {each["scope"]: [node["node_id"] for node in each["records"]] for each in found} == {
            scope: [node_id] for scope, node_id in names.items()
        }
        servers["south"].freeze()
        try:
            hurried = on_servers.model_copy(update={"db_deadline": 2.0, "db_request_timeout": 1.0})
            listed = {each["scope"]: each for each in _asked(hurried, "scopes")}
            assert listed["south"]["state"] != "reachable"
            assert listed["south"]["error"]
            assert {listed[scope]["state"] for scope in SCOPES[:3]} == {"reachable"}
        finally:
            servers["south"].thaw()
