"""Someone who has half of a person's session, or whose page is in the person's browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import httpx
import pytest_asyncio

from tests.support.messages.relaying import PATIENCE_S, TOKEN, address_of, assert_problem
from tests.support.nodes.served_console import ConsoleBrowser
from tests.support.nodes.serving import READ_TOKEN
from tests.support.nodes.shared_mesh import SharedMesh
from tools.homes import FILE
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode
from vox_mesh.store import new_key

_OTHER_PAGES: Final = (
    *(("Sec_Fetch_Site", each) for each in (None, "cross-site", "same-site", "none")),
    *(("Origin", each) for each in ("http://evil.example", "http://127.0.0.1:1", "null", "http://[")),
)
"""What a browser says about requests of other pages."""


@pytest_asyncio.fixture
async def node(pauses: list[float], tmp_path: Path) -> AsyncIterator[MeshNode]:
    """A whole node."""
    shared_mesh = SharedMesh(FILE, tmp_path, None, new_key(), has_relay=True)
    async with Mesh.open(shared_mesh.settings("ann", token=TOKEN, read_token=READ_TOKEN)) as node:
        yield node


@pytest_asyncio.fixture
async def alice(node: MeshNode) -> AsyncIterator[ConsoleBrowser]:
    """The browser of a person who may do everything."""
    async with ConsoleBrowser.opened(address_of(node)) as browser:
        await browser.sign_in(token=TOKEN, name="alice")
        yield browser


async def _captured(alice: ConsoleBrowser) -> dict[str, str]:
    """What another server on this host gets from the browser: cookies are sent to all of its ports."""
    received: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await alice.client.get(f"http://127.0.0.1:{port}/")
    lines = received[0].split("\r\n")
    return dict(line.split(": ", 1) for line in lines if line.lower().startswith("cookie: "))


async def test_a_stolen_cookie_is_of_no_use(node: MeshNode, alice: ConsoleBrowser) -> None:
    cookie = await _captured(alice)
    assert any("vox_console_" in value for value in cookie.values())
    forged = {**cookie, "Sec-Fetch-Site": "same-origin", "Origin": alice.url}
    async with httpx.AsyncClient(base_url=alice.url, timeout=PATIENCE_S, trust_env=False) as thief:
        for secret in ({}, {"Vox-Console": ""}, {"Vox-Console": "guess"}):
            for method, path in (("GET", "/v1/nodes"), ("POST", "/v1/jobs"), ("GET", "/ui/session")):
                answer = await thief.request(method, path, headers=forged | secret, json={})
                assert_problem(answer, 401, "session_ended")
        assert_problem(await thief.delete("/ui/session", headers=forged), 401, "session_ended")
    assert (await alice.get("/v1/me"))["name"] == "alice"


async def test_no_other_page_uses_a_session(alice: ConsoleBrowser) -> None:
    for name, value in _OTHER_PAGES:
        headers = {name: value}
        for method, path in (("GET", "/v1/nodes"), ("POST", "/v1/jobs"), ("DELETE", "/ui/session")):
            assert_problem(await alice.ask(method, path, {}, **headers), 403, "bad_origin")
        answer = await alice.ask("POST", "/ui/session", {"token": TOKEN, "name": "eve"}, **headers)
        assert_problem(answer, 403, "bad_origin")
    assert (await alice.get("/v1/me"))["name"] == "alice"


async def test_a_rebound_name_uses_no_session(alice: ConsoleBrowser) -> None:
    answer = await alice.ask("GET", "/v1/me", Host="evil.example", Origin="http://evil.example")
    assert_problem(answer, 421, "bad_host")


async def test_a_session_is_none_for_hosts_and_nodes(alice: ConsoleBrowser) -> None:
    for method, path in (("POST", "/mcp"), ("GET", "/mcp"), ("POST", "/v1/a2a/deliver"), ("GET", "/metrics")):
        assert_problem(await alice.ask(method, path, {}), 401, "token_missing")


async def test_guesses_are_slowed_down(alice: ConsoleBrowser, pauses: list[float]) -> None:
    for number in range(25):
        await alice.ask("POST", "/ui/session", {"code": f"guess-{number}"})
        await alice.ask("GET", "/v1/me", Vox_Console=f"guess-{number}")
    assert len(pauses) == 10


async def test_a_session_ends_with_its_node(tmp_path: Path) -> None:
    shared_mesh = SharedMesh(FILE, tmp_path, None, new_key(), has_relay=True)
    async with Mesh.open(shared_mesh.settings("ann", token=TOKEN)) as first:
        port = address_of(first).rpartition(":")[2]
        async with ConsoleBrowser.opened(address_of(first)) as browser:
            await browser.sign_in(token=TOKEN, name="alice")
            cookies, secret = dict(browser.client.cookies), browser.secret
    settings = shared_mesh.settings("ann", token=TOKEN, bind=f"127.0.0.1:{port}")
    async with Mesh.open(settings) as again, ConsoleBrowser.opened(address_of(again)) as browser:
        browser.client.cookies.update(cookies)
        browser.secret = secret
        assert_problem(await browser.ask("GET", "/v1/me"), 401, "session_ended")


async def test_a_reader_takes_no_more_places_under_many_names(alice: ConsoleBrowser) -> None:
    async with AsyncExitStack() as open_streams:
        statuses: list[int] = []
        for number in range(6):
            reader = await open_streams.enter_async_context(ConsoleBrowser.opened(alice.url))
            await reader.sign_in(token=READ_TOKEN, name=f"reader-{number}")
            for _ in range(12):
                request = reader.client.build_request(
                    "GET", f"{alice.url}/v1/events?topics=beats", headers=reader.headers
                )
                answer = await reader.client.send(request, stream=True)
                open_streams.push_async_callback(answer.aclose)
                statuses.append(answer.status_code)
        own = alice.client.build_request("GET", f"{alice.url}/v1/events?topics=beats", headers=alice.headers)
        answer = await alice.client.send(own, stream=True)
        open_streams.push_async_callback(answer.aclose)
        assert answer.status_code == 200
        assert statuses.count(200) == 12


async def test_a_program_at_the_other_address_of_localhost_gets_no_session(alice: ConsoleBrowser) -> None:
    port = alice.url.rpartition(":")[2]
    for name in ("localhost", "LOCALHOST", "evil.localhost"):
        named = {"Host": f"{name}:{port}", "Origin": f"http://{name}:{port}"}
        answer = await alice.ask("POST", "/ui/session", {"token": TOKEN, "name": "alice"}, **named)
        assert_problem(answer, 421, "bad_host")
        assert_problem(await alice.ask("GET", "/v1/me", **named), 421, "bad_host")
    shown = await alice.ask("GET", "/ui/jobs?state=failed", Host=f"localhost:{port}")
    assert (shown.status_code, shown.headers["Location"]) == (307, f"{alice.url}/ui/jobs?state=failed")
