"""The service: where it listens, what it tells others, and that it begins and ends cleanly."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

import httpx
import pytest

from tests.support.messages.relaying import TOKEN, Wire, address_of
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.store.leftovers import assert_nothing_left, descriptors
from tools.sqld import free_port
from vox_mesh.errors import BadSettings
from vox_mesh.http.address import ListenAddress
from vox_mesh.http.service import Service
from vox_mesh.mesh import Mesh

_STOP_S: Final = 10.0


def _chosen(control_addr: str | None, bind: str | None = None, *, token: bool = True) -> ListenAddress:
    return ListenAddress.from_settings(control_addr, bind, has_token=token)


def _can_listen(family: socket.AddressFamily, host: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


# --- where ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("control_addr", "bind", "host", "port", "document"),
    [
        (None, None, "127.0.0.1", 0, "http://127.0.0.1:5"),
        ("http://10.0.0.7:7400", None, "10.0.0.7", 7400, "http://10.0.0.7:7400"),
        ("http://10.0.0.7:0", None, "10.0.0.7", 0, "http://10.0.0.7:5"),
        ("http://10.0.0.7:0", "0.0.0.0:0", "0.0.0.0", 0, "http://10.0.0.7:5"),
        ("http://10.0.0.7", None, "10.0.0.7", 80, "http://10.0.0.7"),
        ("https://mesh.example", "0.0.0.0:7400", "0.0.0.0", 7400, "https://mesh.example"),
        ("https://mesh.example/", "127.0.0.1:7400", "127.0.0.1", 7400, "https://mesh.example"),
        (None, "0.0.0.0:7400", "0.0.0.0", 7400, "http://127.0.0.1:5"),
        ("http://0.0.0.0:7400", None, "0.0.0.0", 7400, "http://127.0.0.1:5"),
        ("http://[::1]:7400", None, "::1", 7400, "http://[::1]:7400"),
        ("http://[fd00::7]:0", None, "fd00::7", 0, "http://[fd00::7]:5"),
        (None, "[::]:7400", "::", 7400, "http://[::1]:5"),
    ],
)
def test_a_node_listens_and_is_known_where_the_settings_say(
    control_addr: str | None, bind: str | None, host: str, port: int, document: str
) -> None:
    address = _chosen(control_addr, bind)
    assert (address.host, address.port, address.announced_url(5)) == (host, port, document)


@pytest.mark.parametrize(
    ("control_addr", "bind"),
    [
        ("http://10.0.0.7:7400", None),
        ("http://0.0.0.0:7400", None),
        ("http://[::]:7400", None),
        ("http://mesh.example:7400", "0.0.0.0:7400"),
        ("https://mesh.example", "127.0.0.1:7400"),
    ],
)
def test_without_a_token_no_address_of_another_machine_is_announced(
    control_addr: str, bind: str | None
) -> None:
    with pytest.raises(BadSettings, match="used with VOX_MESH_TOKEN"):
        _chosen(control_addr, bind, token=False)


def test_without_a_token_only_this_machine_is_let_in(caplog: pytest.LogCaptureFixture) -> None:
    address = _chosen(None, "0.0.0.0:7400", token=False)
    assert (address.host, address.port, address.announced_url(7400)) == (
        "127.0.0.1",
        7400,
        "http://127.0.0.1:7400",
    )
    assert "VOX_MESH_TOKEN is not set" in caplog.text


@pytest.mark.parametrize("control_addr", [None, "http://127.0.0.1:7400", "http://localhost:7400"])
def test_without_a_token_this_machine_is_no_reason_to_warn(
    control_addr: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    address = _chosen(control_addr, token=False)
    assert address.announced_url(7400) == (control_addr or "http://127.0.0.1:7400")
    assert caplog.records == []


async def test_a_port_of_zero_is_reported_as_the_real_one(village: SharedMesh) -> None:
    settings = village.settings("ann", control_addr="http://localhost:0", token=TOKEN)
    async with Mesh.open(settings) as node, httpx.AsyncClient(trust_env=False) as client:
        address = address_of(node)
        assert address.startswith("http://localhost:")
        assert not address.endswith(":0")
        assert (await client.get(address)).status_code == HTTPStatus.NOT_FOUND
        assert [each.control_addr for each in await node.nodes.all()] == [address]


async def test_a_node_listens_where_it_is_bound_and_tells_the_other_address(village: SharedMesh) -> None:
    port = free_port()
    settings = village.settings(
        "ann", control_addr="https://mesh.example", bind=f"127.0.0.1:{port}", token=TOKEN
    )
    async with Mesh.open(settings) as node, httpx.AsyncClient(trust_env=False) as client:
        assert address_of(node) == "https://mesh.example"
        answer = await client.get(f"http://127.0.0.1:{port}")
        assert answer.status_code == HTTPStatus.NOT_FOUND


@pytest.mark.skipif(not _can_listen(socket.AF_INET6, "::1"), reason="this machine has no IPv6")
async def test_ipv6_is_served(village: SharedMesh) -> None:
    async with (
        Mesh.open(village.settings("ann", control_addr="http://[::1]:0")) as node,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        assert address_of(node).startswith("http://[::1]:")
        assert (await client.get(address_of(node))).status_code == HTTPStatus.NOT_FOUND


@pytest.mark.parametrize("variable", ["control_addr", "bind"])
async def test_a_port_in_use_is_one_clear_line_that_names_the_variable(
    village: SharedMesh, variable: str
) -> None:
    before = descriptors()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        chosen = f"http://{where}" if variable == "control_addr" else where
        with pytest.raises(BadSettings) as raised:
            async with Mesh.open(village.settings("ann", **{variable: chosen})):
                pass
    line = raised.value.line
    assert line.startswith(f"VOX_MESH_{variable.upper()}: can't listen on {where}: ")
    assert "\n" not in line
    await assert_nothing_left(before)


async def test_two_services_never_have_the_same_port() -> None:
    """Both are bound before either serves: the second one has to fail at once."""
    first = await ListenAddress("127.0.0.1", 0, None, "VOX_MESH_BIND").listen(1)
    with first, pytest.raises(BadSettings, match="VOX_MESH_BIND"):
        await ListenAddress("127.0.0.1", first.getsockname()[1], None, "VOX_MESH_BIND").listen(1)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"control_addr": "https://mesh.example"}, "needs a proxy for TLS"),
        ({"bind": "no-such-host.invalid:7400"}, "VOX_MESH_BIND: can't listen on no-such-host.invalid:7400"),
    ],
)
async def test_where_nothing_can_listen_is_said_in_one_line(
    village: SharedMesh, settings: dict[str, Any], fault: str
) -> None:
    with pytest.raises(BadSettings) as raised:
        async with Mesh.open(village.settings("ann", token=TOKEN, **settings)):
            pass
    assert fault in raised.value.line


# --- beginning and ending ------------------------------------------------------------------------


async def test_it_stops_in_time_no_matter_who_is_still_connected(village: SharedMesh) -> None:
    before = descriptors()
    loop = asyncio.get_running_loop()
    async with Mesh.open(village.settings("ann")) as node:
        port = int(address_of(node).rpartition(":")[2])
        idle = [Wire(port) for _ in range(5)]
        for each in idle:
            await each.__aenter__()
        await idle[1].send(b"POST /v1/a2a/deliver HTTP/1.1\r\nX: ")
        await idle[2].send(
            b"POST /v1/a2a/deliver HTTP/1.1\r\nVox-Mesh-Node: ann\r\nContent-Length: 9\r\n\r\n"
        )
        began = loop.time()
    assert loop.time() - began < _STOP_S
    for each in idle:
        await each.to_the_end()
        await each.__aexit__()
    await assert_nothing_left(before)


async def test_a_service_that_is_cancelled_while_it_starts_leaves_nothing() -> None:
    await asyncio.to_thread(int)
    before = descriptors()
    for steps in range(12):
        service = Service(ListenAddress("127.0.0.1", 0, None, "VOX_MESH_BIND"), [])
        starting = asyncio.create_task(service.start())
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        await service.stop()
        await assert_nothing_left(before)


@pytest.mark.parametrize("turns", [1, 5, 20, 60, 200])
async def test_a_node_that_is_cancelled_while_it_starts_or_stops_leaves_nothing(
    village: SharedMesh, turns: int, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(int)
    async with Mesh.open(village.settings("ann", token=TOKEN)):
        pass
    caplog.set_level(logging.WARNING)
    before = descriptors()
    settings = village.settings("ann", token=TOKEN)
    opened = asyncio.Event()

    async def live() -> None:
        async with Mesh.open(settings):
            opened.set()

    living = asyncio.create_task(live())
    for _ in range(turns):
        await asyncio.sleep(0)
    living.cancel()
    with suppress(asyncio.CancelledError):
        await living
    living = asyncio.create_task(live())
    await opened.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    living.cancel()
    with suppress(asyncio.CancelledError):
        await living
    await assert_nothing_left(before)
