"""The files of the console: sent to any browser, with headers that let it run nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.messages.relaying import TOKEN, address_of, assert_problem
from tests.support.nodes.served_console import ConsoleBrowser
from tests.support.nodes.shared_mesh import SharedMesh
from tools.homes import FILE
from vox_mesh.http.console.files import FOLDER
from vox_mesh.http.console.headers import MAX_SOURCES, content_policy
from vox_mesh.mesh import Mesh
from vox_mesh.store import new_key
from vox_mesh.store.script import Script, Statement

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("path", ["/ui/", "/ui/jobs?state=failed", "/ui/job/01ARZ3", "/ui/a/b/c.js"])
async def test_every_view_is_the_same_page(browser: ConsoleBrowser, path: str) -> None:
    answer = await browser.client.get(browser.url + path)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert answer.content == (FOLDER / "index.html").read_bytes()


async def test_files_are_compressed_and_sent_once(browser: ConsoleBrowser) -> None:
    url, body = f"{browser.url}/ui/static/vendor.js", (FOLDER / "vendor.js").read_bytes()
    plain = await browser.client.get(url, headers={"Accept-Encoding": "identity"})
    packed = await browser.client.get(url, headers={"Accept-Encoding": "gzip, br"})
    assert plain.content == packed.content == body
    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert int(packed.headers["Content-Length"]) < len(body) / 2
    assert plain.headers["ETag"] != packed.headers["ETag"]
    for each, encoding in ((plain, "identity"), (packed, "gzip")):
        known = {"If-None-Match": f'"other", W/{each.headers["ETag"]}', "Accept-Encoding": encoding}
        again = await browser.client.get(url, headers=known)
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "name",
    ["missing.js", "app/main.js", "%2e%2e/mesh.py", "..%2f..%2fpyproject.toml", "app", "/etc/passwd", "%00"],
)
async def test_only_files_of_the_console_are_served(browser: ConsoleBrowser, name: str) -> None:
    assert_problem(await browser.client.get(f"{browser.url}/ui/static/{name}"), 404, "not_found")


@pytest.mark.parametrize("path", ["/ui", "/ui/", "/ui/static/vendor.js", "/ui/static/none", "/ui/session"])
async def test_everything_has_the_headers_of_the_console(browser: ConsoleBrowser, path: str) -> None:
    headers = (await browser.client.get(browser.url + path)).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize(
    "url",
    [
        *("http://x; script-src *", "http://x 'unsafe-inline'", "http://x\r\nSet-Cookie: a=b", "http://*:80"),
        *("javascript://x:1", "http://u:p@x:1", "http://x:99999", "http://x/path", "http://[::1", "x", ""),
        "http://x:1,http://y:1",
    ],
)
async def test_a_hostile_address_changes_no_policy(url: str) -> None:
    assert content_policy([url]) == content_policy([])


async def test_few_addresses_of_nodes_fit_into_a_policy() -> None:
    urls = [f"http://node-{number}:7400" for number in range(3 * MAX_SOURCES)]
    policy = content_policy(["http://[::1]:7400", "https://Example.com", *urls])
    assert "connect-src 'self' http://[::1]:7400 https://example.com http://node-0:7400 " in policy
    assert policy.count("://") == MAX_SOURCES


async def test_another_name_of_this_machine_is_refused(browser: ConsoleBrowser) -> None:
    for path in ("/ui/", "/ui/static/vendor.js"):
        answer = await browser.client.get(browser.url + path, headers={"Host": "evil.example"})
        assert_problem(answer, 421, "bad_host")


async def test_a_page_knows_the_nodes_that_signed_their_addresses(tmp_path: Path) -> None:
    shared_mesh = SharedMesh(FILE, tmp_path, None, new_key(), has_relay=True)
    async with (
        Mesh.open(shared_mesh.settings("ann", token=TOKEN)) as ann,
        Mesh.open(shared_mesh.settings("ben", token=TOKEN)) as ben,
        Mesh.open(shared_mesh.settings("eve", token=TOKEN)) as eve,
    ):
        plant = "UPDATE node_addresses SET control_addr = 'http://evil.example:80' WHERE node_id = 'eve'"
        await ann.store.write(Script(Statement(plant)))
        async with ConsoleBrowser.opened(address_of(ann)) as browser:
            policy = (await browser.ask("GET", "/ui/")).headers["Content-Security-Policy"]
        assert f"connect-src 'self' {address_of(ben)};" in policy
        assert address_of(eve) not in policy


async def test_without_the_setting_there_is_no_console(tmp_path: Path) -> None:
    shared_mesh = SharedMesh(FILE, tmp_path, None, new_key(), has_relay=True)
    async with (
        Mesh.open(shared_mesh.settings("ann", token=TOKEN, ui=False)) as node,
        ConsoleBrowser.opened(address_of(node)) as browser,
    ):
        for method, path in (("GET", "/ui/"), ("GET", "/ui/static/vendor.js"), ("POST", "/ui/session")):
            assert_problem(await browser.ask(method, path), 404, "not_found")
        browser.secret = "anything"
        assert_problem(await browser.ask("GET", "/v1/me"), 401, "token_missing")
