"""The socket for agents under other users: the user who connects decides the agent, and nothing else does."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.messages.relaying import PATIENCE_S, TOKEN, assert_problem
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.running.confined import IS_ROOT, OTHER_USER
from tools.homes import FILE
from vox_mesh.errors import BadSettings
from vox_mesh.http.agent_socket import parse_agents
from vox_mesh.mesh import Mesh
from vox_mesh.store import new_key

_ME: Final = os.getuid()
_TAKE: Final = {"kinds": ["build"]}
_ASK: Final = """
import http.client, os, socket, sys
path, user, *groups = sys.argv[1:]
os.setgroups([int(each) for each in groups])
os.setgid(int(user) - 1)
os.setuid(int(user))
connection = http.client.HTTPConnection("node", timeout=30)
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(path)
connection.request("POST", "/v1/jobs/take", '{"kinds": ["build"]}', {"Content-Type": "application/json"})
answer = connection.getresponse()
print(answer.status, answer.read().decode())
"""


@pytest.fixture
def shared_mesh(folder: Path) -> SharedMesh:
    """A mesh in that folder."""
    return SharedMesh(FILE, folder, None, new_key(), has_relay=True)


def _settings(shared_mesh: SharedMesh, uids: str, **more: Any) -> Any:
    return shared_mesh.settings("ann", agent_socket=_path(shared_mesh.folder), agent_uids=uids, **more)


def _path(folder: Path) -> Path:
    return folder / "agents.sock"


async def _ask(folder: Path, method: str, path: str, **more: Any) -> httpx.Response:
    transport = httpx.AsyncHTTPTransport(uds=str(_path(folder)))
    async with httpx.AsyncClient(base_url="http://node", timeout=PATIENCE_S, transport=transport) as client:
        return await client.request(method, path, **more)


async def test_a_mapped_user_is_its_agent_and_no_other(shared_mesh: SharedMesh, folder: Path) -> None:
    async with Mesh.open(_settings(shared_mesh, f"{_ME}=coder")) as node:
        await node.jobs.schedule("build")
        taken = await _ask(folder, "POST", "/v1/jobs/take", json=_TAKE)
        assert [each["agent"] for each in taken.json()] == ["coder"], taken.text
        other = await _ask(folder, "POST", "/v1/jobs/take", json=_TAKE, headers={"Vox-Agent": "boss"})
        assert_problem(other, HTTPStatus.FORBIDDEN, "not_your_name")
        for path in ("/metrics", "/v1/artifacts/blake3:" + 64 * "0"):
            assert_problem(await _ask(folder, "GET", path), HTTPStatus.FORBIDDEN, "agent_only")
        assert_problem(await _ask(folder, "GET", "/v1/health"), HTTPStatus.FORBIDDEN, "owner_only")
        assert stat.S_IMODE(_path(folder).lstat().st_mode) == 0o660
    assert not _path(folder).exists()


async def test_the_nodes_own_user_without_an_agent_is_refused_even_with_the_token(
    shared_mesh: SharedMesh, folder: Path
) -> None:
    async with Mesh.open(_settings(shared_mesh, f"{OTHER_USER}=coder", token=TOKEN)):
        for headers in ({}, {"Authorization": f"Bearer {TOKEN}"}):
            answer = await _ask(folder, "GET", "/v1/nodes", headers=headers)
            assert_problem(answer, HTTPStatus.FORBIDDEN, "user_without_agent")
            assert f"add {_ME}=AGENT to VOX_MESH_AGENT_UIDS" in answer.json()["hint"]


@pytest.mark.skipif(not IS_ROOT, reason="only root can connect as another user")
@pytest.mark.parametrize(
    ("groups", "printed"),
    [([OTHER_USER], "200 []"), ([], "PermissionError")],
    ids=["in-the-group", "not-in-the-group"],
)
async def test_another_user_needs_the_group(
    shared_mesh: SharedMesh, folder: Path, groups: list[int], printed: str
) -> None:
    settings = _settings(shared_mesh, f"{OTHER_USER}=coder", agent_socket_group=str(OTHER_USER))
    async with Mesh.open(settings):
        # Only then another user: it may not be able to enter the folder of this interpreter.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", _ASK, str(_path(folder)), str(OTHER_USER), *map(str, groups)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert printed in output.decode()


def _open_to_others(folder: Path, mode: int) -> None:
    _path(folder).unlink()
    folder.chmod(mode)


@pytest.mark.parametrize(
    ("mode", "reason"), [(0o775, "other users may write"), (None, "another process listens")]
)
async def test_a_socket_that_others_could_replace_or_that_is_in_use_is_not_made(
    shared_mesh: SharedMesh,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    mode: int | None,
    reason: str,
) -> None:
    async with Mesh.open(_settings(shared_mesh, f"{_ME}=coder")):
        if mode is not None:
            _open_to_others(folder, mode)
        settings = shared_mesh.settings("ben", agent_socket=_path(folder), agent_uids=f"{_ME}=tester")
        async with Mesh.open(settings):
            assert reason in caplog.text
        assert _path(folder).exists() == (mode is None)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("1001", "must be USER=AGENT"),
        ("1001=", "agent name must be"),
        ("1001=a,1001=b", "must name user 1001 once"),
        ("no-such-user=a", "not found"),
    ],
)
def test_a_wrong_map_is_refused_at_the_start(text: str, fault: str) -> None:
    with pytest.raises(BadSettings, match=fault):
        parse_agents(text)
    assert parse_agents("1001=coder, root=boss") == {1001: "coder", 0: "boss"}
