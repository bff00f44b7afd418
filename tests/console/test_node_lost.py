"""A node that goes away while its console is open: the page says so, finds the others, and comes back."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from playwright.async_api import Browser, expect

from tests.support.console.watched_page import WatchedPage
from tools.fleet.node_process import NodeProcess

_AWAY = r"Failed to load resource|ERR_|net::"


async def test_a_page_names_the_lost_node_offers_another_and_recovers(
    browser: Browser, tmp_path: Path
) -> None:
    first = await NodeProcess.start(tmp_path, "first")
    second = await NodeProcess.start(tmp_path, "second")
    watched = await WatchedPage.open(browser, first.url)
    page = watched.page
    try:
        await watched.sign_in(first)
        watched.tolerate(_AWAY)
        watched.tolerate(f"request off origin: {second.url}/livez")
        await first.kill()
        alert = page.get_by_role("alert").filter(has_text="first does not answer")
        await expect(alert).to_contain_text("first does not answer")
        await expect(alert.get_by_role("link", name="Open at second")).to_have_attribute(
            "href", f"{second.url}/ui/"
        )
        # Its sessions were in its memory: people sign in again.
        first = await NodeProcess.start(tmp_path, "first", "--bind", f"127.0.0.1:{urlsplit(first.url).port}")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
        await watched.sign_in(first)
        await expect(alert).to_have_count(0)
    finally:
        await watched.context.close()
        await first.kill()
        await second.kill()
    watched.check()
