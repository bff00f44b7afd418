"""Signing in and out: one-time codes, tokens, sessions that end, and persons who only read."""

from __future__ import annotations

from playwright.async_api import Browser, expect

from tests.console.conftest import OpenPage
from tests.support.console.watched_page import WatchedPage
from tools.fleet.fleet import Fleet
from tools.fleet.node_process import READ_TOKEN, TOKEN

_REFUSED = r"Failed to load resource: the server responded with a status of 40[13]"


async def test_a_code_signs_in_once_and_leaves_the_address(browser: Browser, fleet: Fleet) -> None:
    first, second = [await WatchedPage.open(browser, fleet.node.url) for _ in range(2)]
    path = await fleet.node.console_path("alice")
    await first.page.goto(path)
    await first.page.get_by_role("navigation", name="Screens").wait_for()
    assert "code" not in first.page.url
    second.tolerate(_REFUSED)
    await second.page.goto(path)
    await expect(second.page.get_by_role("heading", level=1)).to_contain_text("Sign in")
    await expect(second.page.locator("body")).to_contain_text("code must be used once")
    for each in (first, second):
        await each.context.close()
        each.check()


async def test_a_page_opened_again_is_still_signed_in_and_can_sign_out(open_page: OpenPage) -> None:
    signed_in = await open_page("alice")
    page = signed_in.page
    signed_in.tolerate(_REFUSED)  # of a read that is on its way
    await page.reload()
    await page.get_by_role("navigation", name="Screens").wait_for()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Sign in")
    assert [each["name"] for each in await signed_in.context.cookies()] == []
    await page.reload()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Sign in")


async def test_a_token_signs_in_with_a_name(browser: Browser, fleet: Fleet) -> None:
    watched = await WatchedPage.open(browser, fleet.node.url)
    page = watched.page
    watched.tolerate(_REFUSED)
    await page.goto("/ui/locks")
    await page.get_by_label("Your name").fill("bob")
    await page.get_by_label("Token").fill("x" * len(TOKEN))
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_contain_text("wrong token")
    await page.get_by_label("Token").fill(TOKEN)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Locks")
    await expect(page.locator(".side")).to_contain_text("bob")
    await watched.context.close()
    watched.check()


async def test_a_read_token_signs_in_to_look_only(browser: Browser, fleet: Fleet) -> None:
    watched = await WatchedPage.open(browser, fleet.node.url)
    page = watched.page
    await page.goto("/ui/")
    await page.get_by_label("Your name").fill("eve")
    await page.get_by_label("Token").fill(READ_TOKEN)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.locator(".side")).to_contain_text("read only")
    await watched.context.close()
    watched.check()


async def test_a_session_that_ends_in_another_window_ends_in_all(open_page: OpenPage) -> None:
    signed_in = await open_page("alice")
    signed_in.tolerate(_REFUSED)
    other = await signed_in.context.new_page()
    await other.goto("/ui/")
    await other.get_by_role("button", name="Sign out").click()
    await expect(signed_in.page.get_by_role("heading", level=1)).to_have_text("Sign in")


async def test_an_expired_session_asks_to_sign_in_and_comes_back_to_the_same_screen(
    open_page: OpenPage, fleet: Fleet
) -> None:
    signed_in = await open_page("alice")
    page = signed_in.page
    signed_in.tolerate(_REFUSED)
    await signed_in.show("locks?key=docs", "Locks")
    await signed_in.context.clear_cookies()
    await page.reload()
    await expect(page.locator("body")).to_contain_text("The session has ended")
    await page.get_by_label("Your name").fill("alice")
    await page.get_by_label("Token").fill(TOKEN)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Locks")
    assert page.url == f"{fleet.node.url}/ui/locks?key=docs"
