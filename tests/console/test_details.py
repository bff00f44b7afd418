"""What all screens have in common: exact times on hover, ids to copy, and an address for everything."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
from playwright.async_api import Browser, Page, expect

from tests.console.conftest import OpenPage
from tests.support.console.additions import add_failed_job, new_name
from tests.support.console.watched_page import WatchedPage
from tools.fleet.fleet import CODERS, SECOND, Fleet

_WRONG_TIMES: Final = """() => [...document.querySelectorAll("main time")].filter((each) => {
  const exact = new Date(each.dateTime).toLocaleString();
  return Number.isNaN(Date.parse(each.dateTime)) || ![exact, `since ${exact}`].includes(each.title)
    || !/^(now|\\d+ (ms|s|min|h|d)( ago)?|in \\d+ (s|min|h|d))$/.test(each.textContent);
}).map((each) => each.outerHTML)"""
_NO_CLIPBOARD: Final = "Object.defineProperty(Navigator.prototype, 'clipboard', { get: () => undefined });"
"""As in a page that came without TLS from another machine."""

_COPIES: Final = """window.copied = [];
document.addEventListener("copy", () => window.copied.push(document.activeElement.value));"""


@pytest.mark.parametrize(
    "path",
    ["", "fleet", "agent/coder-ben", "jobs", "job/{failed}", "locks", "messages/gift-cards", "rhythm", "log"],
    ids=lambda path: path or "needs",
)
async def test_every_time_is_exact_on_hover(signed_in: WatchedPage, fleet: Fleet, path: str) -> None:
    page = signed_in.page
    await page.goto(f"/ui/{path.format(**fleet.ids)}")
    await page.locator("main time").first.wait_for()
    assert await page.evaluate(_WRONG_TIMES) == []


async def test_the_time_on_hover_is_that_of_the_node(signed_in: WatchedPage, fleet: Fleet) -> None:
    page, kind = signed_in.page, new_name("timed")
    job = await add_failed_job(fleet, kind)
    ended_ms = (await fleet.node.get(f"/v1/jobs/{job}"))["ended_ms"]
    await signed_in.show(f"job/{job}", kind)
    exact = await page.evaluate("ms => [new Date(ms).toISOString(), new Date(ms).toLocaleString()]", ended_ms)
    shown = page.locator(f"main time[datetime='{exact[0]}']").first
    await expect(shown).to_have_attribute("title", exact[1])


async def _copied(page: Page) -> Any:
    return await page.evaluate("navigator.clipboard.readText()")


@pytest.mark.parametrize(
    ("path", "label", "name"),
    [
        ("jobs?kind=code.refactor", "job's id", "running"),
        ("job/{running}", "job's id", "running"),
        ("approval/{approval}", "id of the approval", "approval"),
        ("conflicts/{conflict}", "id of the conflict", "conflict"),
        ("locks?key={lock}", "key", "lock"),
    ],
)
async def test_an_id_that_is_cut_is_copied_whole(
    signed_in: WatchedPage, fleet: Fleet, path: str, label: str, name: str
) -> None:
    page, wanted = signed_in.page, fleet.ids[name]
    await signed_in.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.goto(f"/ui/{path.format(**fleet.ids)}")
    button = page.locator(f"[title='{wanted}']").get_by_role("button", name=f"Copy the {label}").first
    await button.click()
    await expect(page.get_by_text("Copied the").first).to_be_visible()
    assert await _copied(page) == wanted


async def test_an_id_is_copied_where_the_page_has_no_clipboard(browser: Browser, fleet: Fleet) -> None:
    watched = await WatchedPage.open(browser, fleet.node.url)
    await watched.context.add_init_script(_NO_CLIPBOARD)
    await watched.context.add_init_script(_COPIES)
    await watched.sign_in(fleet.node)
    page, job = watched.page, fleet.ids["running"]
    await watched.show(f"job/{job}", "code.refactor")
    button = page.locator(f"[title='{job}']").get_by_role("button", name="Copy the").first
    await button.click()
    await expect(page.get_by_text("Copied the")).to_be_visible()
    assert await page.evaluate("window.copied") == [job]
    await expect(button).to_be_focused()
    await watched.context.close()
    watched.check()


@pytest.mark.parametrize(
    ("path", "title", "marker"),
    [
        ("?kind=dead_letter", "Needs you", "Dead letters"),
        (f"fleet?node={SECOND}", "Fleet", SECOND),
        (f"agent/{CODERS[1]}", CODERS[1], "template:receipt"),
        ("jobs?kind=image.*&state=failed", "Jobs", "image.resize"),
        ("jobs?view=board", "Jobs", "code.refactor"),
        ("job/{succeeded}", "test.unit", "coverage.txt"),
        ("locks?key={lock}", "Locks", "file:src/mail.py"),
        ("messages/gift-cards", "Messages", "Ben takes the mails"),
        ("messages?view=overdue", "Messages", "reviewer"),
        ("conflicts/{conflict}", "Conflict", "use the blue pool after 18:00"),
        ("costs?by=model", "Costs", "haiku"),
        ("log?kind=AbortJob&job={aborted}", "Log", "AbortJob"),
        ("approval/{approval}", "Approval", "2.4.0"),
    ],
)
async def test_an_address_opens_the_same_in_a_new_window(
    signed_in: WatchedPage, fleet: Fleet, path: str, title: str, marker: str
) -> None:
    page, address = signed_in.page, f"/ui/{path.format(**fleet.ids)}"
    await page.goto(address)
    await page.get_by_role("heading", level=1, name=title).wait_for()
    await expect(page.get_by_role("main").get_by_text(marker).first).to_be_visible()
    await expect(page).to_have_url(f"{fleet.node.url}{address}")


async def test_the_way_back_leads_through_the_screens_that_were_seen(
    open_page: OpenPage, fleet: Fleet
) -> None:
    watched = await open_page("walker")
    page = watched.page
    await page.get_by_role("link", name="Jobs", exact=True).first.click()
    await page.get_by_label("Kind").fill("code.refactor")
    await expect(page).to_have_url(re.compile("kind=code.refactor"))
    await page.get_by_role("table", name="Jobs").get_by_role("link", name="code.refactor").click()
    await page.get_by_role("heading", level=1, name="code.refactor").wait_for()
    await page.go_back()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    await expect(page).to_have_title("Jobs · vox-mesh")
    await page.go_back()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Needs you")
    await page.go_forward()
    await page.go_forward()
    await expect(page.get_by_role("heading", level=1)).to_have_text("code.refactor")
    assert page.url.endswith(f"/ui/job/{fleet.ids['running']}")
