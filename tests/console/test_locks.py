"""The screen of locks: who holds and who waits, and a lock that a person breaks."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from playwright.async_api import expect

from tests.support.console.watched_page import WatchedPage
from tools.fleet.fleet import CODERS, Fleet

REASON = "its agent is stuck in a loop"


async def test_person_breaks_a_lock_and_the_log_has_the_reason(fleet: Fleet, signed_in: WatchedPage) -> None:
    """The holder's lock goes, the waiter gets it, and both are on the screen without a reload."""
    page, pattern, key = signed_in.page, "file:src/broken/**", "file:src/broken/cart.py"
    await fleet.node.send("/v1/locks", {"keys": [pattern], "agent": CODERS[0], "ttl": "1h"})
    wanted = {"keys": [key], "agent": CODERS[1], "ttl": "1h", "wait": "60s"}
    await signed_in.show(f"locks?key={key}", "Locks")
    held = page.get_by_role("table", name="Held locks")
    row = held.get_by_role("row").filter(has_text=pattern)
    await expect(row).to_contain_text(CODERS[0])

    waiting = asyncio.create_task(fleet.node.ask("POST", "/v1/locks", wanted))
    queue = page.get_by_role("table", name="Waiters").get_by_role("row").filter(has_text=key)
    await expect(queue).to_contain_text(pattern)
    await expect(row).to_contain_text(CODERS[1])

    await row.get_by_role("button", name="Break the lock on").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Reason").fill(REASON)
    await dialog.get_by_role("button", name="Break the lock").click()
    await expect(row).to_have_count(0)
    await expect(held.get_by_role("row").filter(has_text=key)).to_contain_text(CODERS[1])
    assert (await waiting).status_code == HTTPStatus.CREATED

    entries = (await fleet.node.get("/v1/oplog", kind="BreakLock", limit=500))["items"]
    (broken,) = [each for each in entries if REASON in f"{each['payload']}"]
    assert (broken["agent"], broken["accepted"]) == ("person:alice", True)


async def test_locks_are_filtered_by_the_address_and_read_only_people_see_no_tokens(
    fleet: Fleet, reader: WatchedPage
) -> None:
    """A link to an agent's locks shows only these; without the right to break one, there is no button."""
    page = reader.page
    await reader.show(f"locks?agent={CODERS[1]}", "Locks")
    held = page.get_by_role("table", name="Held locks")
    await expect(held.get_by_role("row").filter(has_text=fleet.ids["lock"])).to_contain_text("hidden")
    await expect(held.get_by_role("row").filter(has_text=CODERS[0])).to_have_count(0)
    await expect(held.get_by_role("button", name="Break")).to_have_count(0)

    await page.get_by_label("Held by").fill("no-such-agent")
    await expect(page.get_by_text("No lock matches")).to_be_visible()
    assert "agent=no-such-agent" in page.url
    await page.get_by_role("button", name="Show all").click()
    await expect(held.get_by_role("row").filter(has_text=CODERS[0])).not_to_have_count(0)
