"""Every screen, light and dark: accessible, without a fault, and on a phone, too."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.console.conftest import OpenPage
from tests.support.console.watched_page import NARROW, WIDE, WatchedPage
from tools.fleet.fleet import CODERS, SECOND, Fleet

_ROWS: Final = "css=[data-row]"


class Screen(NamedTuple):
    """A screen: its address, its title, and what the fleet shows on it. `{…}` is an id of the fleet."""

    path: str
    title: str
    markers: tuple[str, ...]


SCREENS: Final = (
    Screen("", "Needs you", ("Which currency should gift cards use?", "deploy-notes")),
    Screen("fleet", "Fleet", (CODERS[0], SECOND)),
    Screen("agent/coder-ben", CODERS[1], ("template:receipt", "20.00 USD")),
    Screen("jobs", "Jobs", (_ROWS,)),
    Screen("jobs?view=board", "Jobs", ("css=.jobs-card",)),
    Screen("jobs?view=graph", "Jobs", ("release.notes",)),
    Screen("job/{failed}", "image.resize", ("the decoder ended with exit code 1", "verified")),
    Screen("job/{running}", "code.refactor", ("step 2 of 3",)),
    Screen("job/{question}", "design.ask", ("It waits for an answer",)),
    Screen("job/{succeeded}", "test.unit", ("coverage.txt", "verified")),
    Screen("job/{pending}", "release.notes", ("code.review",)),
    Screen("locks", "Locks", (_ROWS, "Waiting")),
    Screen("messages", "Messages", ("css=.messages-list a",)),
    Screen("messages/gift-cards", "Messages", ("The tax rules need a decision",)),
    Screen("messages?write=1", "Messages", ("Priority",)),
    Screen("conflicts", "Conflicts", (_ROWS,)),
    Screen("conflicts/{conflict}", "Conflict", ("use the blue pool after 18:00",)),
    Screen("rhythm", "Rhythm", (CODERS[1], "css=.rhythm-score svg")),
    Screen("costs", "Costs", (CODERS[0], "css=.uplot canvas")),
    Screen("log", "Log", (_ROWS,)),
    Screen("log?op={op}", "Log", ("as it was written",)),
    Screen("approval/{approval}", "Approval", ("2.4.0", "deployer")),
    Screen("health", "Health", ("Circuit breaker", "How long things take")),
    Screen("no-such-screen", "Not found", ("See what needs you",)),
)


@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: screen.path or "needs")
async def test_a_screen_is_accessible_to_everyone_light_and_dark(
    signed_in: WatchedPage, fleet: Fleet, screen: Screen
) -> None:
    page = signed_in.page
    (last,) = (await fleet.node.get("/v1/oplog", order="newest", limit=1))["items"]
    await page.emulate_media(color_scheme="light", reduced_motion="reduce")
    await signed_in.show(screen.path.format(**fleet.ids, op=last["op_id"]), screen.title)
    for marker in screen.markers:
        await _found(page, marker).first.wait_for()
    await expect(page).to_have_title(re.compile(rf"^{re.escape(screen.title)}\b.* · vox-mesh$"))
    await assert_accessible(signed_in)


async def assert_accessible(watched: WatchedPage) -> None:
    """Axe finds nothing, light and dark, and the page does not scroll sideways on a phone."""
    page = watched.page
    await page.emulate_media(color_scheme="light", reduced_motion="reduce")
    assert await watched.violations() == []
    await page.emulate_media(color_scheme="dark")
    assert await watched.violations() == []
    await page.set_viewport_size(NARROW)
    assert await watched.overflowing() == []
    await page.set_viewport_size(WIDE)


def _found(page: Page, marker: str) -> Locator:
    main = page.locator("main")
    return main.locator(marker) if marker.startswith("css=") else main.get_by_text(marker)


async def test_dialogs_and_overlays_are_accessible_light_and_dark(signed_in: WatchedPage) -> None:
    page = signed_in.page
    await signed_in.show("locks", "Locks")
    await page.locator(_ROWS).first.wait_for()
    await page.keyboard.press("?")
    await page.get_by_role("dialog", name="Keys").wait_for()
    await assert_accessible(signed_in)
    await page.keyboard.press("Escape")
    await page.keyboard.press("Control+k")
    await page.get_by_role("dialog", name="Find or do").wait_for()
    await assert_accessible(signed_in)
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Break the lock on").first.click()
    await page.get_by_role("dialog", name="Break this lock?").wait_for()
    await assert_accessible(signed_in)
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_signing_in_is_accessible_light_and_dark(browser: Browser, fleet: Fleet) -> None:
    watched = await WatchedPage.open(browser, fleet.node.url)
    await watched.show("", "Sign in")
    await assert_accessible(watched)
    await watched.context.close()
    watched.check()


async def test_a_theme_that_was_chosen_stays_whatever_the_system_has(open_page: OpenPage) -> None:
    watched = await open_page("thea")
    page = watched.page
    color = "getComputedStyle(document.body).color"
    await page.emulate_media(color_scheme="light")
    light = await page.evaluate(color)
    await page.get_by_role("button", name="Light or dark").click()
    dark = await page.evaluate(color)
    assert dark != light
    await page.reload()
    await page.get_by_role("heading", level=1, name="Needs you").wait_for()
    assert await page.evaluate(color) == dark
