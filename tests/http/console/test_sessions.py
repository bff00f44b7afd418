"""Sessions: signing in and out, both secrets, and when a session ends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.messages.relaying import TOKEN, assert_problem
from tests.support.nodes.served_console import ConsoleBrowser, ServedConsole
from tests.support.nodes.serving import READ_TOKEN
from vox_mesh.http.console import codes
from vox_mesh.http.console.sessions import IDLE_MS, LASTS_MS, MAX_SESSIONS

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_code_signs_in_once(served: ServedConsole, browser: ConsoleBrowser) -> None:
    answer = await served.ask_for_code({"name": "alice"})
    code, path = answer.json()["code"], answer.json()["path"]
    assert path == f"/ui/#code={code}"
    assert (answer.json()["url"], answer.json()["expires_in_s"]) == (served.url, codes.LASTS_S)
    session = await browser.sign_in(code=code)
    assert (session["name"], session["may_write"], session["node_id"]) == ("alice", True, "ann")
    assert session == await browser.get("/ui/session")
    async with ConsoleBrowser.opened(served.url) as other:
        assert_problem(await other.ask("POST", "/ui/session", {"code": code}), 401, "code_wrong")


async def test_a_code_is_over_after_a_minute(served: ServedConsole, browser: ConsoleBrowser) -> None:
    code, last = await served.code(), await served.code()
    served.now_ms += codes.LASTS_S * 1_000 - 1
    await browser.sign_in(code=last)
    served.now_ms += 1
    assert_problem(await browser.ask("POST", "/ui/session", {"code": code}), 401, "code_wrong")


async def test_few_codes_wait(served: ServedConsole, browser: ConsoleBrowser) -> None:
    first, *more = [await served.code() for _ in range(codes.MAX_CODES + 1)]
    assert_problem(await browser.ask("POST", "/ui/session", {"code": first}), 401, "code_wrong")
    await browser.sign_in(code=more[0])


@pytest.mark.parametrize(("token", "may_write"), [(TOKEN, True), (READ_TOKEN, False)])
async def test_a_token_signs_in_with_its_rights(browser: ConsoleBrowser, token: str, may_write: bool) -> None:
    session = await browser.sign_in(token=token, name="bob")
    assert (session["name"], session["agent"], session["may_write"]) == ("bob", "person:bob", may_write)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"token": "a-wrong-token", "name": "bob"}, 401, "token_wrong"),
        ({"code": "a-wrong-code"}, 401, "code_wrong"),
        ({"token": TOKEN}, 422, "bad_body"),
        ({"token": TOKEN, "name": "bob", "code": "x"}, 422, "bad_body"),
        ({"token": TOKEN, "name": "b b"}, 422, "bad_body"),
        ({"token": TOKEN, "name": "\u202ebob"}, 422, "bad_body"),
        ({"token": TOKEN, "name": "b" * 65}, 422, "bad_body"),
        ({"token": TOKEN, "name": "bob", "may_write": True}, 422, "bad_body"),
        ({"token": "x" * 2_000, "name": "bob"}, 422, "bad_body"),
        ({}, 422, "bad_body"),
        ([], 422, "bad_body"),
    ],
)
async def test_what_opens_no_session(browser: ConsoleBrowser, body: Any, status: int, code: str) -> None:
    answer = await browser.ask("POST", "/ui/session", body)
    assert_problem(answer, status, code)
    assert "Set-Cookie" not in answer.headers


async def test_the_cookie_is_for_this_page_only(served: ServedConsole, browser: ConsoleBrowser) -> None:
    port = served.url.rpartition(":")[2]
    answer = await browser.ask("POST", "/ui/session", {"code": await served.code()})
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith(f"vox_console_{port}=")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} < set(cookie.split("; "))
    assert "Secure" not in cookie
    assert answer.headers["Cache-Control"] == "no-store"
    value = cookie.partition("=")[2].partition(";")[0]
    assert value not in answer.text


async def test_a_proxy_with_tls_makes_the_cookie_secure(
    served: ServedConsole, browser: ConsoleBrowser
) -> None:
    host = served.url.removeprefix("http://")
    code = await served.code()
    answer = await browser.ask("POST", "/ui/session", {"code": code}, Origin=f"https://{host}")
    assert "Secure" in answer.headers["Set-Cookie"].split("; ")


@pytest.mark.parametrize("path", ["/v1/me", "/v1/nodes", "/v1/events", "/ui/session", "/v1/openapi.json"])
async def test_neither_half_of_a_session_is_enough(alice: ConsoleBrowser, path: str) -> None:
    assert_problem(await alice.ask("GET", path, Vox_Console=None), 401, "session_ended")
    assert_problem(await alice.ask("GET", path, Vox_Console="x" * 43), 401, "session_ended")
    async with ConsoleBrowser.opened(alice.url) as thief:
        thief.secret = alice.secret
        assert_problem(await thief.ask("GET", path), 401, "session_ended")


async def test_halves_of_two_sessions_are_none(served: ServedConsole, alice: ConsoleBrowser) -> None:
    async with served.signed_in("bob") as bob:
        assert_problem(await alice.ask("GET", "/v1/me", Vox_Console=bob.secret), 401, "session_ended")


async def test_signing_out_ends_the_session(served: ServedConsole, alice: ConsoleBrowser) -> None:
    cookies = dict(alice.client.cookies)
    answer = await alice.ask("DELETE", "/ui/session")
    assert (answer.status_code, answer.content) == (204, b"")
    assert not alice.client.cookies
    alice.client.cookies.update(cookies)
    assert_problem(await alice.ask("GET", "/v1/me"), 401, "session_ended")


async def test_a_session_ends_after_half_a_day_of_use(served: ServedConsole) -> None:
    async with served.signed_in() as browser:
        for _ in range(LASTS_MS // IDLE_MS * 2 - 1):
            served.now_ms += IDLE_MS // 2
            await browser.get("/v1/me")
        served.now_ms += IDLE_MS // 2
        assert_problem(await browser.ask("GET", "/v1/me"), 401, "session_ended")


async def test_a_session_ends_after_an_hour_without_use(served: ServedConsole) -> None:
    async with served.signed_in() as browser:
        served.now_ms += IDLE_MS - 1
        await browser.get("/v1/me")
        served.now_ms += IDLE_MS
        assert_problem(await browser.ask("GET", "/v1/me"), 401, "session_ended")


async def test_the_least_recently_used_session_makes_room(served: ServedConsole) -> None:
    async with served.signed_in("first") as first, served.signed_in("second") as second:
        await first.get("/v1/me")
        for number in range(MAX_SESSIONS - 1):
            async with served.signed_in(f"person-{number}"):
                pass
        assert len(served.sessions) == MAX_SESSIONS
        await first.get("/v1/me")
        assert_problem(await second.ask("GET", "/v1/me"), 401, "session_ended")


async def test_no_flood_of_a_lower_rank_ends_a_session_or_a_code(
    served: ServedConsole, browser: ConsoleBrowser
) -> None:
    served.now_ms += LASTS_MS  # the sessions of other tests are over
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    async with served.signed_in("alice") as alice, ConsoleBrowser.opened(served.url) as bob:
        code = await served.code("carl")
        for _ in range(codes.MAX_CODES + 1):
            answer = await browser.client.post(f"{served.url}/ui/codes", json={"name": "eve"}, headers=bearer)
            assert answer.status_code == 200
        await bob.sign_in(token=TOKEN, name="bob")
        for number in range(MAX_SESSIONS + 1):
            await browser.sign_in(token=READ_TOKEN, name=f"eve-{number}")
        assert len(served.sessions) == MAX_SESSIONS
        for each in (alice, bob):
            await each.get("/v1/me")
        for _ in range(MAX_SESSIONS):
            await browser.sign_in(code=await served.code("dan"))
        full = {"token": READ_TOKEN, "name": "eve"}
        assert_problem(await browser.ask("POST", "/ui/session", full), 429, "too_many_sessions")
    async with ConsoleBrowser.opened(served.url) as carl:
        assert (await carl.sign_in(code=code))["name"] == "carl"


async def test_a_stream_uses_its_session_and_ends_with_it(served: ServedConsole) -> None:
    async with (
        served.signed_in() as browser,
        browser.client.stream(
            "GET", f"{browser.url}/v1/events?topics=locks", headers=browser.headers
        ) as stream,
    ):
        assert stream.status_code == 200
        lines = stream.aiter_lines()
        assert await anext(lines) == "event: reset"
        served.now_ms += IDLE_MS - 1
        await served.node.locks.acquire("stream:used", agent="coder", ttl=60.0)
        async for line in lines:
            if line == "event: locks":
                break
        served.now_ms += IDLE_MS - 1
        await browser.get("/v1/me")  # the stream has used the session since
        await browser.ask("DELETE", "/ui/session")
        await served.node.locks.acquire("stream:ended", agent="coder", ttl=60.0)
        rest = [line async for line in lines]
        assert not any("stream:ended" in line for line in rest)


async def test_a_node_that_stops_ends_all_sessions(served: ServedConsole) -> None:
    async with served.signed_in() as browser, ConsoleBrowser.opened(served.url) as late:
        code = await served.code()
        served.endpoint.end()
        assert_problem(await browser.ask("GET", "/v1/me"), 401, "session_ended")
        assert_problem(await late.ask("POST", "/ui/session", {"code": code}), 401, "code_wrong")
        token = {"token": TOKEN, "name": "bob"}
        assert_problem(await late.ask("POST", "/ui/session", token), 503, "leaving")
