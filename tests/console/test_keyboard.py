"""Locks and jobs with a keyboard alone; the tests of what needs a person and of conflicts do theirs, too."""

from __future__ import annotations

from playwright.async_api import expect

from tests.support.console.additions import add_failed_job, add_lock
from tests.support.console.keyboard import tab_to
from tests.support.console.watched_page import WatchedPage
from tools.fleet.fleet import Fleet


async def test_a_lock_is_broken_with_a_reason(signed_in: WatchedPage, fleet: Fleet) -> None:
    key = await add_lock(fleet)
    page = signed_in.page
    await page.keyboard.press("g")
    await page.keyboard.press("l")
    button = page.get_by_role("button", name=f"Break the lock on {key}")
    await button.wait_for()
    await tab_to(page, f"Break the lock on {key}")
    await page.keyboard.press("Enter")
    await tab_to(page, "Reason")
    await page.keyboard.type("its holder is asleep")
    await page.keyboard.press("Enter")
    await expect(button).to_have_count(0)
    assert (await fleet.node.get("/v1/locks", key=key))["items"] == []
    broken = await fleet.node.get("/v1/oplog", kind="BreakLock", agent="person:alice")
    assert any("its holder is asleep" in str(each) for each in broken["items"])


async def test_failed_jobs_are_found_and_retried(signed_in: WatchedPage, fleet: Fleet) -> None:
    kind = "keyboard.fail"
    for _ in range(2):
        await add_failed_job(fleet, kind)
    page = signed_in.page
    await page.keyboard.press("g")
    await page.keyboard.press("j")
    await page.get_by_label("Kind").wait_for()
    await page.keyboard.press("/")
    await expect(page.get_by_label("Kind")).to_be_focused()
    await page.keyboard.type(kind)
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Retry 2 failed").wait_for()
    await tab_to(page, "Retry 2 failed")
    await page.keyboard.press("Enter")
    await page.get_by_role("dialog").wait_for()
    await tab_to(page, "Retry 2")
    await page.keyboard.press("Enter")
    await expect(page.locator("body")).to_contain_text("Retried 2")
    (counts,) = (await fleet.node.get("/v1/jobs/counts", kind=kind))["items"]
    assert (counts["pending"], counts["failed"]) == (2, 2)
