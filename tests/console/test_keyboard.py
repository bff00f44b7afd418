"""Locks, jobs and messages with a keyboard alone; tests of questions, approvals and conflicts do theirs."""

from __future__ import annotations

from playwright.async_api import expect

from tests.support.console.additions import add_failed_job, add_lock, new_name
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


async def test_a_message_is_written_and_sent(signed_in: WatchedPage, fleet: Fleet) -> None:
    page, agent = signed_in.page, new_name("typist")
    await page.keyboard.press("g")
    await page.keyboard.press("m")
    await page.get_by_role("heading", level=1, name="Messages").wait_for()
    await tab_to(page, "Write a message")
    await page.keyboard.press("Enter")
    await page.get_by_label("Text").wait_for()
    await tab_to(page, "To")
    await page.keyboard.type(agent)
    await tab_to(page, "Text")
    await page.keyboard.type("Sent without a mouse.")
    await tab_to(page, "Send")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("region", name="Conversation")).to_contain_text("not received")
    (sent,) = (await fleet.node.get("/v1/messages", receiver=agent))["items"]
    assert (sent["sender_agent"], sent["payload"]) == ("person:alice", {"text": "Sent without a mouse."})
