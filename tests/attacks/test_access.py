"""Attacks of a local user, a proxy and a stranger on the HTTP service of a real node."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.messages.relaying import PATIENCE_S, TOKEN, address_of, assert_problem
from tests.support.nodes.shared_mesh import SharedMesh
from tools.homes import FILE
from vox_mesh.errors import BadSettings
from vox_mesh.http import connections
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode
from vox_mesh.store import new_key

_COMMAND: Final = {"manifests": [{"command": ["/bin/true"], "timeout": 5}]}
_FOREIGN: Final = "http://192.0.2.1:7400"


@pytest.fixture
def shared_mesh(tmp_path: Path) -> SharedMesh:
    """A mesh in a file."""
    return SharedMesh(FILE, tmp_path, None, new_key(), has_relay=True)


@pytest.fixture
def home(folder: Path) -> Path:
    """The home of the node `ann` in `near`: with a short name, as a socket needs it."""
    return folder / "ann" / "vox"


@pytest.fixture
def near(home: Path) -> SharedMesh:
    """A mesh in that folder."""
    return SharedMesh(FILE, home.parents[1], None, new_key(), has_relay=True)


@pytest.fixture
async def node(near: SharedMesh) -> AsyncIterator[MeshNode]:
    """A node that runs commands, with nothing configured."""
    async with Mesh.open(near.settings("ann", worker_exec=True)) as node:
        yield node


def _socket(home: Path) -> Path:
    return home / "slots" / "ann" / "http.sock"


async def _over_tcp(node: MeshNode, method: str, path: str, **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=address_of(node), timeout=PATIENCE_S, trust_env=False) as client:
        return await client.request(method, path, **more)


async def _over_socket(home: Path, method: str, path: str, **more: Any) -> httpx.Response:
    transport = httpx.AsyncHTTPTransport(uds=str(_socket(home)))
    async with httpx.AsyncClient(base_url="http://node", timeout=PATIENCE_S, transport=transport) as client:
        return await client.request(method, path, **more)


# --- who is let in -------------------------------------------------------------------------------


async def test_no_local_user_schedules_a_command_without_a_token(node: MeshNode) -> None:
    for headers in ({}, {"Host": "127.0.0.1"}, {"Authorization": "Basic eA=="}):
        answer = await _over_tcp(node, "POST", "/v1/jobs", json=_COMMAND, headers=headers)
        assert answer.status_code == HTTPStatus.UNAUTHORIZED, answer.text
    assert (await _over_tcp(node, "GET", "/v1/jobs")).status_code == HTTPStatus.UNAUTHORIZED
    assert await node.jobs.queries.listed() == []


async def test_the_token_of_a_home_is_strong_and_private_and_opens_the_service(
    node: MeshNode, home: Path
) -> None:
    file = home / "token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    token = file.read_text().strip()
    assert len(token) == 64
    answer = await _over_tcp(node, "GET", "/v1/nodes", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == HTTPStatus.OK


async def test_the_same_user_needs_no_token_on_the_local_socket(node: MeshNode, home: Path) -> None:
    path = _socket(home)
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert (await _over_socket(home, "POST", "/v1/jobs", json=_COMMAND)).status_code == HTTPStatus.OK
    wrong = await _over_socket(home, "GET", "/v1/jobs", headers={"Authorization": "Bearer x"})
    assert_problem(wrong, HTTPStatus.UNAUTHORIZED, "token_wrong")


@pytest.mark.usefixtures("node")
async def test_another_user_is_not_served_on_the_local_socket(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_ROOT", -1)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(httpx.TransportError):
        await _over_socket(home, "GET", "/livez")


@pytest.mark.parametrize("header", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "Via", "Origin"])
async def test_what_a_proxy_passes_on_needs_a_token(node: MeshNode, home: Path, header: str) -> None:
    passed_on = {header: "for=198.51.100.7"}
    answer = await _over_socket(home, "POST", "/v1/jobs", json=_COMMAND, headers=passed_on)
    assert_problem(answer, HTTPStatus.FORBIDDEN, "forwarded")
    answer = await _over_tcp(node, "POST", "/v1/jobs", json=_COMMAND, headers=passed_on)
    assert_problem(answer, HTTPStatus.UNAUTHORIZED, "token_missing")
    assert await node.jobs.queries.listed() == []


async def test_an_address_of_another_machine_without_a_token_stops_the_start(shared_mesh: SharedMesh) -> None:
    with pytest.raises(BadSettings, match="used with VOX_MESH_TOKEN"):
        async with Mesh.open(shared_mesh.settings("ann", control_addr=_FOREIGN, bind="127.0.0.1:0")):
            pass


# --- the files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["http.sock", "http.new"])
async def test_a_planted_link_is_refused_and_not_followed(near: SharedMesh, home: Path, name: str) -> None:
    target, slot = near.folder / "target", _socket(home).parent
    target.write_text("precious")
    slot.mkdir(parents=True, mode=0o755)
    (slot / name).symlink_to(target)
    with pytest.raises(BadSettings, match="symbolic link"):
        async with Mesh.open(near.settings("ann")):
            pass
    assert target.read_text() == "precious"


async def test_the_socket_of_a_killed_node_is_replaced(near: SharedMesh, home: Path) -> None:
    _socket(home).parent.mkdir(parents=True, mode=0o700)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(_socket(home)))
    async with Mesh.open(near.settings("ann")):
        assert (await _over_socket(home, "GET", "/livez")).status_code == HTTPStatus.OK


async def test_a_home_with_a_long_path_has_no_socket_and_the_log_says_why(
    shared_mesh: SharedMesh, caplog: pytest.LogCaptureFixture
) -> None:
    long = shared_mesh.folder / ("x" * 100)
    async with Mesh.open(shared_mesh.settings("ann", home_dir=long)) as node:
        assert not _socket(long).exists()
        assert "bytes, 107 are possible" in caplog.text
        assert (await _over_tcp(node, "GET", "/livez")).status_code == HTTPStatus.OK


@pytest.mark.parametrize("fault", ["link", "open", "weak"])
async def test_a_planted_token_file_stops_the_start(shared_mesh: SharedMesh, fault: str) -> None:
    home = shared_mesh.folder / "ann" / "vox"
    home.mkdir(parents=True, mode=0o700)
    planted = shared_mesh.folder / "planted"
    planted.write_text("known" if fault == "weak" else "0123456789abcdef" * 4)
    planted.chmod(0o644 if fault == "open" else 0o600)
    if fault == "link":
        (home / "token").symlink_to(planted)
    else:
        planted.rename(home / "token")
    with pytest.raises(BadSettings, match="token"):
        async with Mesh.open(shared_mesh.settings("ann")):
            pass


# --- what no token allows ------------------------------------------------------------------------


async def test_no_token_makes_the_owner_act(shared_mesh: SharedMesh) -> None:
    async with Mesh.open(shared_mesh.settings("ann", token=TOKEN)) as node:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        for method, path, body in (
            ("PUT", "/v1/roles/coordinator", {"node_id": "ann"}),
            ("PUT", "/v1/routes/demo.x", {"node_id": "ann"}),
            ("DELETE", "/v1/routes/demo.x", None),
            ("POST", "/v1/nodes/ann/rekey", {"key": "ed25519:" + "0" * 64}),
        ):
            answer = await _over_tcp(node, method, path, json=body, headers=bearer)
            assert_problem(answer, HTTPStatus.FORBIDDEN, "owner_only")
            assert answer.json()["hint"].startswith("run `vox-mesh ")
        assert (await node.roles.coordinator()) is None


# --- guessing ------------------------------------------------------------------------------------


async def test_a_client_that_guesses_tokens_is_slowed_and_no_other(
    shared_mesh: SharedMesh, pauses: list[float]
) -> None:
    async with Mesh.open(shared_mesh.settings("ann", token=TOKEN)) as node:
        for guess in range(25):
            answer = await _over_tcp(node, "GET", "/v1/nodes", headers={"Authorization": f"Bearer {guess}"})
            assert_problem(answer, HTTPStatus.UNAUTHORIZED, "token_wrong")
        assert len(pauses) == 5
        assert min(pauses) >= 1
        good = await _over_tcp(node, "GET", "/v1/nodes", headers={"Authorization": f"Bearer {TOKEN}"})
        assert good.status_code == HTTPStatus.OK
        assert len(pauses) == 5
